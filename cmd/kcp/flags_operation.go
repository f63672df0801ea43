package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
)

// operationFlags adds the flags of a kube-apiserver that say how the server is run.
// Kubernetes' own options define them.
func operationFlags(f *pflag.FlagSet, o *kcp.Operation) {
	*o = kcp.DefaultOperation()
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Serving.AddFlags(all)
	o.Requests.AddUniversalFlags(all)
	o.Profiling.AddFlags(all)
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
			panic(fmt.Sprintf("the libraries that this is built with have no flag --%s", name))
		}
		f.AddFlag(flag)
	}
	f.Lookup("cert-dir").Usage = "Directory of the certificate that the server makes when it is given none. (default <root-directory>)"
	o.Audit.AddFlags(f)
	o.Tracing.AddFlags(f)
	f.StringVar(&o.Encryption.ConfigFile, "encryption-provider-config", "", "File that says how objects are encrypted in etcd.")
	f.BoolVar(&o.Encryption.Reload, "encryption-provider-config-automatic-reload", false, "Read the file of --encryption-provider-config again when it changes.")
	f.DurationVar(&o.EventTTL, "event-ttl", o.EventTTL, "How long events are kept.")
}
