package main

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
)

// operation adds the flags of a kube-apiserver that say how the server is run.
// Kubernetes' own options define them.
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
	f.StringVar(&op.Encryption.ConfigFile, "encryption-provider-config", "", "File with an EncryptionConfiguration: how objects are encrypted in etcd. What it says of a resource holds for it in every workspace.")
	f.BoolVar(&op.Encryption.Reload, "encryption-provider-config-automatic-reload", false, "Read the file of --encryption-provider-config again when it changes.")
	f.DurationVar(&op.EventTTL, "event-ttl", op.EventTTL, "How long events are kept.")
	f.IntVar(&op.DeleteCollectionWorkers, "delete-collection-workers", op.DeleteCollectionWorkers, "How many objects a request to delete many deletes at once.")
	f.StringVar(&op.ProfilerAddress, "profiler-address", "", "Address that shows profiles to everybody who reaches it, such as 127.0.0.1:6060.")
	f.StringSliceVar(&op.Plugins.Enable, "enable-admission-plugins", nil, "Admission plugins that must be on. All that are served always are.")
	f.StringSliceVar(&op.Plugins.Disable, "disable-admission-plugins", nil, "Admission plugins that must be off.")
	f.StringVar(&o.host, "external-hostname", "", "Host name that clients reach the server at, with the port it listens at. It is short for --shard-external-url.")
	for name, usage := range map[string]string{
		"cert-dir":                       "Directory of the certificate that the server makes when it is given none. (default <root-directory>)",
		"tls-cert-file":                  "PEM file with the serving certificate, and behind it those between it and its authority. It is read again when it changes.",
		"max-requests-inflight":          "How many requests that change nothing are answered at once, of all clusters together; 0 for any number.",
		"max-mutating-requests-inflight": "How many requests that change something are answered at once, of all clusters together; 0 for any number.",
		"profiling":                      "Show profiles at /debug/pprof, to system:masters.",
		"audit-policy-file":              "File with the audit Policy: which requests are recorded.",
		"tracing-config-file":            "File with a TracingConfiguration: where traces of requests go.",
	} {
		f.Lookup(name).Usage = usage
	}
}

// externalHost works out the URL of --external-hostname.
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

// operationRefusals are flags of a kube-apiserver about how it is run that are not
// served.
func operationRefusals() []refusal {
	return []refusal{
		{[]string{"admission-control-config-file"}, "no admission rule has a configuration"},
		{[]string{"admission-control"}, "all admission rules are on; --disable-admission-plugins names those that must be off"},
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
