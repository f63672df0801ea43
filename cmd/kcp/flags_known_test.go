package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
)

// known are common flags of the existing kcp.
const known = `root-directory bind-address secure-port kubeconfig-path authentication-admin-token-path batteries-included feature-gates
token-auth-file client-ca-file requestheader-client-ca-file requestheader-allowed-names requestheader-username-headers requestheader-group-headers
requestheader-extra-headers-prefix requestheader-uid-headers oidc-issuer-url oidc-client-id oidc-ca-file oidc-username-claim oidc-username-prefix
oidc-groups-claim oidc-groups-prefix oidc-signing-algs oidc-required-claim authentication-config api-audiences anonymous-auth
authentication-token-webhook-config-file authentication-token-webhook-version authentication-token-webhook-cache-ttl
audit-policy-file audit-log-path audit-log-maxage audit-log-maxbackup audit-log-maxsize audit-log-format audit-log-mode audit-log-compress
audit-log-batch-buffer-size audit-log-batch-max-size audit-log-batch-max-wait audit-log-batch-throttle-enable audit-log-batch-throttle-qps
audit-log-batch-throttle-burst audit-log-truncate-enabled audit-log-truncate-max-batch-size audit-log-truncate-max-event-size audit-log-version
audit-webhook-config-file audit-webhook-initial-backoff audit-webhook-mode audit-webhook-batch-buffer-size audit-webhook-batch-max-size
audit-webhook-batch-max-wait audit-webhook-batch-throttle-enable audit-webhook-batch-throttle-qps audit-webhook-batch-throttle-burst
audit-webhook-truncate-enabled audit-webhook-truncate-max-batch-size audit-webhook-truncate-max-event-size audit-webhook-version
etcd-servers etcd-prefix etcd-cafile etcd-certfile etcd-keyfile etcd-compaction-interval etcd-count-metric-poll-period etcd-db-metric-poll-interval
etcd-healthcheck-timeout etcd-readycheck-timeout etcd-servers-overrides
embedded-etcd-directory embedded-etcd-client-port embedded-etcd-peer-port embedded-etcd-wal-size-bytes embedded-etcd-listen-metrics-urls
embedded-etcd-quota-backend-bytes embedded-etcd-force-new-cluster
shard-name shard-base-url shard-external-url shard-virtual-workspace-url shard-virtual-workspace-ca-file shard-client-cert-file shard-client-key-file
shard-kubeconfig-file root-shard-kubeconfig-file cache-kubeconfig run-controllers run-virtual-workspaces
enable-leader-election leader-election-name leader-election-namespace enable-home-workspaces home-workspaces-home-creator-groups
authorization-order authorization-always-allow-paths authorization-webhook-config-file authorization-webhook-version
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl
logical-cluster-total-object-limit logical-cluster-object-count-scan-interval conversion-cel-transformation-timeout root-identities-file
mount-proxy-client-cert-file mount-proxy-client-key-file miniproxy-mapping-file profiler-address
service-account-issuer service-account-key-file service-account-lookup service-account-signing-key-file service-account-jwks-uri
service-account-max-token-expiration service-account-extend-token-expiration
cert-dir tls-cert-file tls-private-key-file tls-sni-cert-key tls-cipher-suites tls-min-version http2-max-streams-per-connection
permit-address-sharing permit-port-sharing external-hostname cors-allowed-origins strict-transport-security-directives goaway-chance
livez-grace-period max-requests-inflight max-mutating-requests-inflight request-timeout min-request-timeout shutdown-delay-duration
shutdown-send-retry-after shutdown-watch-termination-grace-period profiling contention-profiling debug-socket-path delete-collection-workers
enable-garbage-collector encryption-provider-config encryption-provider-config-automatic-reload storage-backend storage-media-type
lease-reuse-duration-seconds watch-cache watch-cache-sizes default-watch-cache-size event-ttl enable-priority-and-fairness
enable-admission-plugins disable-admission-plugins admission-control-config-file runtime-config emulated-version tracing-config-file
logging-format log-flush-frequency log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream v vmodule
proxy-client-cert-file proxy-client-key-file egress-selector-config-file advertise-address`

// The help has each flag once.
func TestEveryFlagIsExplained(t *testing.T) {
	_, f, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, s := range inSections(f) {
		if !s.HasFlags() && s.Name() != "Help" {
			t.Errorf("there is nothing in %q", s.Name())
		}
		s.VisitAll(func(flag *pflag.Flag) {
			if shown[flag.Name] || flag.Usage == "" {
				t.Errorf("--%s is shown twice, or without a word", flag.Name)
			}
			shown[flag.Name] = true
		})
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if !shown[flag.Name] {
			t.Errorf("--%s is in no section", flag.Name)
		}
	})
}

// Each known flag is served, or refused with a reason.
func TestEveryKnownFlagIsServedOrRefused(t *testing.T) {
	_, f, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(known) {
		if f.Lookup(name) != nil {
			continue
		}
		if _, _, err := parse("--" + name + "=x"); err == nil || !strings.Contains(err.Error(), "is not served: ") {
			t.Errorf("--%s: %v", name, err)
		}
	}
}

// The password of etcd is in a file or in the environment, but never in the arguments.
func TestEtcdPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("of the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := []string{"--etcd-servers=https://127.0.0.1:2379", "--etcd-username=kcp"}
	for _, c := range []struct {
		environment string
		args        []string
		want        string // or the text of the error
	}{
		{"", append(outside, "--etcd-password-file="+file), "of the file"},
		{"of the environment", outside, "of the environment"},
		{"of the environment", append(outside, "--etcd-password-file="+file), "of the file"},
		{"", outside, passwordVariable},
		{"", append(outside, "--etcd-password-file=/nope"), "--etcd-password-file"},
		{"of the environment", outside[:1], "--etcd-username"},
	} {
		t.Setenv(passwordVariable, c.environment)
		o, _, err := parse(c.args...)
		if err != nil {
			t.Fatal(err)
		}
		var to kcp.Etcd
		to.Username = o.server.Etcd.Username
		got := ""
		if err := o.etcd.apply(&to); err != nil {
			got = err.Error()
		} else {
			got = to.Password
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q: %q; want %q", c.args, got, c.want)
		}
	}
}
