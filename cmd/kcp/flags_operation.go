package main

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
)

// operation adds the flags of kube-apiserver for operating the server. The options of
// Kubernetes define them.
func (o *options) operation(f *pflag.FlagSet) {
	o.server.Operation = kcp.DefaultOperation()
	op := &o.server.Operation
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	op.Serving.AddFlags(all)
	op.Requests.AddUniversalFlags(all)
	op.Profiling.AddFlags(all)
	for _, name := range []string{
		"cert-dir", "tls-cert-file", "tls-private-key-file", "tls-sni-cert-key", "tls-cipher-suites", "tls-curve-preferences", "tls-min-version",
		"http2-max-streams-per-connection", "disable-http2-serving", "permit-port-sharing", "permit-address-sharing",
		"cors-allowed-origins", "strict-transport-security-directives", "max-requests-inflight", "max-mutating-requests-inflight",
		"request-timeout", "min-request-timeout", "goaway-chance", "livez-grace-period",
		"shutdown-delay-duration", "shutdown-send-retry-after", "shutdown-watch-termination-grace-period",
		"profiling", "contention-profiling", "debug-socket-path",
	} {
		flag := all.Lookup(name)
		if flag == nil {
			panic("the libraries that this is built with have no flag --" + name)
		}
		f.AddFlag(flag)
	}
	op.Audit.AddFlags(f)
	op.Tracing.AddFlags(f)
	f.StringVar(&op.Encryption.ConfigFile, "encryption-provider-config", "", "File with an EncryptionConfiguration: how to encrypt objects in etcd. It is valid for all workspaces.")
	f.BoolVar(&op.Encryption.Reload, "encryption-provider-config-automatic-reload", false, "Reload --encryption-provider-config when it changes.")
	f.DurationVar(&op.EventTTL, "event-ttl", op.EventTTL, "How long the server keeps events.")
	f.DurationVar(&op.ConversionTimeout, "conversion-cel-transformation-timeout", op.ConversionTimeout, "Time that the rules of an APIConversion may take for one object or one list.")
	f.Int64Var(&op.TotalObjectLimit, "logical-cluster-total-object-limit", op.TotalObjectLimit, "Maximum number of objects in one logical cluster, without events. 0 means no limit. The annotation core.kcp.io/max-total-objects of a LogicalCluster overrides it.")
	f.IntVar(&op.TenantStoragePercent, "tenant-storage-percent", op.TenantStoragePercent, "Maximum part of the database for one tenant, in percent. A tenant is everything below one topmost workspace or one home.")
	f.IntVar(&op.DeleteCollectionWorkers, "delete-collection-workers", op.DeleteCollectionWorkers, "Number of objects that a request to delete a collection deletes concurrently.")
	f.StringVar(&op.ProfilerAddress, "profiler-address", "", "Address to serve profiles at without authentication, such as 127.0.0.1:6060.")
	f.StringSliceVar(&op.Plugins.Enable, "enable-admission-plugins", nil, "Admission plugins to enable. The supported ones are always enabled.")
	f.StringSliceVar(&op.Plugins.Disable, "disable-admission-plugins", nil, "Admission plugins to disable.")
	f.StringVar(&o.host, "external-hostname", "", "Host name of the server for clients, with the port that it listens at. Short for --shard-external-url.")
	f.StringVar(&o.peerIP, "peer-advertise-ip", "", "IP address at which the other servers on the same etcd reach this one. (default that of the listener, or of the machine)")
	f.StringVar(&o.peerPort, "peer-advertise-port", "", "Port for --peer-advertise-ip. (default that of the listener)")
	for name, usage := range map[string]string{
		"cert-dir":                       "Directory for the certificate that the server creates if --tls-cert-file is not set. (default <root-directory>)",
		"tls-cert-file":                  "PEM file with the serving certificate, followed by intermediate certificates. The server reloads it when it changes.",
		"max-requests-inflight":          "Maximum number of concurrent read requests, over all clusters; 0 for no limit.",
		"max-mutating-requests-inflight": "Maximum number of concurrent write requests, over all clusters; 0 for no limit.",
		"profiling":                      "Serve profiles at /debug/pprof to members of system:masters.",
		"audit-policy-file":              "File with the audit Policy: which requests to record.",
		"tracing-config-file":            "File with a TracingConfiguration: where to send traces.",
	} {
		f.Lookup(name).Usage = usage
	}
}

// externalHost sets the external URL from --external-hostname.
func (o *options) externalHost() error {
	if o.host == "" {
		return nil
	}
	if u, err := url.Parse(o.server.ExternalURL); o.server.ExternalURL != "" && (err != nil || u.Hostname() != o.host) {
		return fmt.Errorf("--external-hostname %s and --shard-external-url %s are of different hosts; give only the URL", o.host, o.server.ExternalURL)
	}
	if o.server.ExternalURL != "" {
		return nil
	}
	if o.port == 0 {
		return fmt.Errorf("--external-hostname %s needs to know the port; choose one with --secure-port", o.host)
	}
	o.server.ExternalURL = "https://" + net.JoinHostPort(o.host, strconv.Itoa(o.port))
	return nil
}

// peerAddress sets the address for other servers from --peer-advertise-ip and --peer-advertise-port.
func (o *options) peerAddress() error {
	port := o.peerPort
	switch {
	case o.peerIP == "" && port == "":
		return nil
	case net.ParseIP(o.peerIP) == nil:
		return fmt.Errorf("--peer-advertise-ip %q is not an IP address", o.peerIP)
	case port == "" && o.port == 0:
		return fmt.Errorf("--peer-advertise-ip %s needs to know the port; choose one with --secure-port, or set --peer-advertise-port", o.peerIP)
	case port == "":
		port = strconv.Itoa(o.port)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("--peer-advertise-port %q is not a port", port)
	}
	o.server.PeerAddress = net.JoinHostPort(o.peerIP, port)
	return nil
}

// operationRefusals returns the unsupported flags of kube-apiserver for operation.
func operationRefusals() []refusal {
	return []refusal{
		{[]string{"admission-control-config-file"}, "no admission rule has a configuration"},
		{[]string{"admission-control"}, "all supported admission plugins are on and cannot be disabled; leave it out"},
		{[]string{"emulated-version", "min-compatibility-version", "emulation-forward-compatible", "runtime-config-*"}, "the server behaves as its own version of Kubernetes and no other"},
		{[]string{"watch-cache", "watch-cache-sizes", "default-watch-cache-size"}, "watch caches are there when they pay, as large as they need to be"},
		{[]string{"storage-backend"}, "objects are stored in etcd"},
		{[]string{"storage-media-type"}, "built-in kinds are stored as protobuf and others as JSON"},
		{[]string{"storage-initialization-timeout"}, "a server that is not ready after a minute says why and stops"},
		{[]string{"lease-reuse-duration-seconds"}, "only events expire, and they share leases"},
		{[]string{"enable-garbage-collector"}, "garbage is always collected"},
		{[]string{"advertise-address"}, "--shard-external-url says how clients reach the server"},
		{[]string{"enable-logs-handler"}, "the server shows no files"},
		{[]string{"show-hidden-metrics-for-version", "disabled-metrics", "allow-metric-labels*"}, "metrics are those of this version, whatever their labels"},
		{[]string{"log-dir", "log-file*", "logtostderr", "alsologtostderr", "stderrthreshold", "log-backtrace-at", "skip-headers", "skip-log-headers", "add-dir-header", "one-output"},
			"Kubernetes dropped it; the log goes to standard error, where a supervisor can take it"},
	}
}
