package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unforked/kcp"
)

// The operation flags of kube-apiserver set the options of the server.
func TestOperationFlags(t *testing.T) {
	o, _, err := parse(
		"--tls-cert-file=a", "--tls-private-key-file=b", "--tls-sni-cert-key=c,d:e", "--cert-dir=f", "--tls-cipher-suites=g,h", "--tls-min-version=VersionTLS13",
		"--tls-curve-preferences=29,23", "--http2-max-streams-per-connection=7", "--disable-http2-serving", "--permit-port-sharing", "--permit-address-sharing",
		"--audit-policy-file=i", "--audit-log-path=j", "--audit-log-maxage=1", "--audit-log-maxbackup=2", "--audit-log-maxsize=3", "--audit-log-format=legacy",
		"--audit-log-compress", "--audit-log-mode=batch", "--audit-log-batch-buffer-size=4", "--audit-log-truncate-enabled", "--audit-log-version=audit.k8s.io/v1",
		"--audit-webhook-config-file=k", "--audit-webhook-initial-backoff=5s", "--audit-webhook-mode=blocking", "--audit-webhook-batch-max-size=6",
		"--audit-webhook-truncate-max-event-size=7", "--tracing-config-file=l",
		"--encryption-provider-config=m", "--encryption-provider-config-automatic-reload",
		"--max-requests-inflight=8", "--max-mutating-requests-inflight=9", "--request-timeout=10s", "--min-request-timeout=11", "--livez-grace-period=12s",
		"--shutdown-delay-duration=13s", "--shutdown-send-retry-after", "--shutdown-watch-termination-grace-period=14s", "--goaway-chance=0.01",
		"--strict-transport-security-directives=max-age=15", "--cors-allowed-origins=//a$", "--event-ttl=16m", "--delete-collection-workers=17",
		"--profiling=false", "--contention-profiling", "--profiler-address=n", "--enable-admission-plugins=o,p", "--disable-admission-plugins=q",
	)
	if err != nil {
		t.Fatal(err)
	}
	op := o.server.Operation
	s, a, r := op.Serving, op.Audit, op.Requests
	got := []any{
		s.ServerCert.CertKey.CertFile, s.ServerCert.CertKey.KeyFile, s.SNICertKeys[0].String(), s.ServerCert.CertDirectory, s.CipherSuites, s.MinTLSVersion,
		s.CurvePreferences, s.HTTP2MaxStreamsPerConnection, s.DisableHTTP2Serving, s.PermitPortSharing, s.PermitAddressSharing,
		a.PolicyFile, a.LogOptions.Path, a.LogOptions.MaxAge, a.LogOptions.MaxBackups, a.LogOptions.MaxSize, a.LogOptions.Format,
		a.LogOptions.Compress, a.LogOptions.BatchOptions.Mode, a.LogOptions.BatchOptions.BatchConfig.BufferSize, a.LogOptions.TruncateOptions.Enabled,
		a.WebhookOptions.ConfigFile, a.WebhookOptions.InitialBackoff, a.WebhookOptions.BatchOptions.Mode, a.WebhookOptions.BatchOptions.BatchConfig.MaxBatchSize,
		a.WebhookOptions.TruncateOptions.TruncateConfig.MaxEventSize, op.Tracing.ConfigFile, op.Encryption,
		r.MaxRequestsInFlight, r.MaxMutatingRequestsInFlight, r.RequestTimeout, r.MinRequestTimeout, r.LivezGracePeriod,
		r.ShutdownDelayDuration, r.ShutdownSendRetryAfter, r.ShutdownWatchTerminationGracePeriod, r.GoawayChance,
		r.HSTSDirectives, r.CorsAllowedOriginList, op.EventTTL, op.DeleteCollectionWorkers,
		op.Profiling.EnableProfiling, op.Profiling.EnableContentionProfiling, op.ProfilerAddress, op.Plugins.Enable, op.Plugins.Disable,
	}
	want := []any{
		"a", "b", "c,d:e", "f", []string{"g", "h"}, "VersionTLS13",
		[]int32{29, 23}, 7, true, true, true,
		"i", "j", 1, 2, 3, "legacy",
		true, "batch", 4, true,
		"k", 5 * time.Second, "blocking", 6,
		int64(7), "l", kcp.Encryption{ConfigFile: "m", Reload: true},
		8, 9, 10 * time.Second, 11, 12 * time.Second,
		13 * time.Second, true, 14 * time.Second, 0.01,
		[]string{"max-age=15"}, []string{"//a$"}, 16 * time.Minute, 17,
		false, true, "n", []string{"o", "p"}, []string{"q"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOperationFlagsRefused(t *testing.T) {
	for flag, want := range map[string]string{
		"--emulated-version=1.35":                  "its own version of Kubernetes",
		"--runtime-config=api/all=true":            "API versions",
		"--enable-priority-and-fairness=false":     "its share",
		"--watch-cache=false":                      "watch caches",
		"--default-watch-cache-size=1":             "watch caches",
		"--storage-media-type=application/json":    "protobuf",
		"--admission-control-config-file=x":        "no admission rule has a configuration",
		"--advertise-address=10.0.0.1":             "--shard-external-url",
		"--log-file=x":                             "Kubernetes dropped it",
		"--audit-log-batch-max-wait=soon":          "--audit-log-batch-max-wait",
		"--tls-sni-cert-key=x":                     "--tls-sni-cert-key",
		"--max-requests-inflight=many":             "--max-requests-inflight",
		"--tls-cert=x":                             "did you mean --tls-cert-file?",
		"--encryption-provider-config-reload=true": "--encryption-provider-config",
	} {
		_, _, err := parse(flag)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q", flag, err, want)
		}
	}
}

func TestExternalHostname(t *testing.T) {
	for args, want := range map[string]string{
		"--external-hostname=a.example.com --secure-port=443":                          "https://a.example.com:443",
		"--external-hostname=a.example.com --shard-external-url=https://a.example.com": "https://a.example.com",
		"--external-hostname=a.example.com --shard-external-url=https://b.example.com": "give only the URL",
		"--external-hostname=a.example.com --secure-port=0":                            "--secure-port",
		"--external-hostname=::1": "https://[::1]:6443",
		"--external-hostname=a.example.com --secure-port=0 --shard-external-url=https://a.example.com": "https://a.example.com",
	} {
		o, _, err := parse(strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := o.externalHost(); err != nil {
			got = err.Error()
		} else {
			got = o.server.ExternalURL
		}
		if !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s; want %s", args, got, want)
		}
	}
}

func TestPeerAddress(t *testing.T) {
	for args, want := range map[string]string{
		"":                             "",
		"--peer-advertise-ip=10.0.0.1": "10.0.0.1:6443",
		"--peer-advertise-ip=fd00::1 --peer-advertise-port=7443": "[fd00::1]:7443",
		"--peer-advertise-ip=a.example.com":                      "is not an IP address",
		"--peer-advertise-port=7443":                             "--peer-advertise-ip",
		"--peer-advertise-ip=10.0.0.1 --peer-advertise-port=x":   "is not a port",
		"--peer-advertise-ip=10.0.0.1 --secure-port=0":           "--peer-advertise-port",
	} {
		o, _, err := parse(strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := o.peerAddress(); err != nil {
			got = err.Error()
		} else {
			got = o.server.PeerAddress
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", args, got, want)
		}
	}
}
