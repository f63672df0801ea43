package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// parse parses flags of start.
func parse(args ...string) (*options, *pflag.FlagSet, error) {
	o := &options{gates: gates{}}
	f := pflag.NewFlagSet("start", pflag.ContinueOnError)
	f.Usage = func() {}
	o.flags(f)
	err := f.Parse(args)
	if err != nil {
		err = explain(f, err)
	}
	return o, f, err
}

func TestUnknownFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"--shard-name=a":                                 "--shard-name is not served: there is one shard, root",
		"--root-shard-kubeconfig-file=a":                 "there is one shard",
		"--cache-kubeconfig=a":                           "there is no cache server",
		"--run-controllers=false":                        "controllers always run",
		"--batteries-included=+user":                     "--batteries-included is not served",
		"--authorization-mode=RBAC":                      "--authorization-order",
		"--service-cluster-ip-range=10.0.0.0/8":          "no pods, nodes and services",
		"--autorization-order=RBAC":                      "did you mean --authorization-order?",
		"--oidc-issuer=x":                                "did you mean --oidc-issuer-url?",
		"--client-ca=x":                                  "did you mean --client-ca-file?",
		"--entirely-different":                           "unknown flag: --entirely-different; see which there are",
		"--service-account-lookup=perhaps":               "--service-account-lookup",
		"--authorization-webhook-cache-authorized-ttl=5": "--authorization-webhook-cache-authorized-ttl",
	} {
		_, _, err := parse(flag)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q", flag, err, want)
		}
	}
}

// Patterns of refused flags match no served flag.
func TestRefusalsAreOfUnknownFlags(t *testing.T) {
	_, f, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		for _, r := range refusals() {
			if r.about(flag.Name) {
				t.Errorf("--%s is served, but said not to be: %s", flag.Name, r.why)
			}
		}
	})
}

// All flags of kube-apiserver for authentication and authorization are served, and those of
// the existing kcp.
func TestAccessFlags(t *testing.T) {
	o, f, err := parse(
		"--client-ca-file=a", "--token-auth-file=b", "--anonymous-auth=false", "--api-audiences=c,d", "--authentication-config=e",
		"--requestheader-client-ca-file=f", "--requestheader-allowed-names=g,h", "--requestheader-username-headers=i",
		"--requestheader-uid-headers=j", "--requestheader-group-headers=k", "--requestheader-extra-headers-prefix=l",
		"--oidc-issuer-url=m", "--oidc-client-id=n", "--oidc-ca-file=o", "--oidc-username-claim=p", "--oidc-username-prefix=q",
		"--oidc-groups-claim=r", "--oidc-groups-prefix=s", "--oidc-signing-algs=ES256", "--oidc-required-claim=t=u", "--oidc-required-claim=v=w",
		"--authentication-token-webhook-config-file=x", "--authentication-token-webhook-version=v1", "--authentication-token-webhook-cache-ttl=3s",
		"--service-account-key-file=1", "--service-account-key-file=2", "--service-account-signing-key-file=3",
		"--service-account-issuer=4", "--service-account-issuer=5", "--service-account-lookup=false", "--service-account-jwks-uri=6",
		"--service-account-max-token-expiration=7h", "--service-account-extend-token-expiration=false", "--authentication-admin-token-path=8",
		"--authorization-order=RBAC,Webhook", "--authorization-always-allow-paths=/9", "--authorization-webhook-config-file=10",
		"--authorization-webhook-version=v1", "--authorization-webhook-cache-authorized-ttl=11s", "--authorization-webhook-cache-unauthorized-ttl=0",
		"--authorization-config=12",
	)
	if err != nil {
		t.Fatal(err)
	}
	s, a, z := o.server, o.server.Authentication, o.server.Authorization
	got := []any{
		a.ClientCert.ClientCA, a.TokenFile.TokenFile, a.Anonymous.Allow, a.APIAudiences, a.AuthenticationConfigFile,
		a.RequestHeader.ClientCAFile, a.RequestHeader.AllowedNames, a.RequestHeader.UsernameHeaders,
		a.RequestHeader.UIDHeaders, a.RequestHeader.GroupHeaders, a.RequestHeader.ExtraHeaderPrefixes,
		a.OIDC.IssuerURL, a.OIDC.ClientID, a.OIDC.CAFile, a.OIDC.UsernameClaim, a.OIDC.UsernamePrefix,
		a.OIDC.GroupsClaim, a.OIDC.GroupsPrefix, a.OIDC.SigningAlgs, a.OIDC.RequiredClaims,
		a.WebHook.ConfigFile, a.WebHook.Version, a.WebHook.CacheTTL,
		a.ServiceAccounts.KeyFiles, s.ServiceAccountKeyFile, a.ServiceAccounts.Issuers, a.ServiceAccounts.Lookup, a.ServiceAccounts.JWKSURI,
		a.ServiceAccounts.MaxExpiration, a.ServiceAccounts.ExtendExpiration, s.AdminTokenFile,
		z.Order, z.AlwaysAllowPaths, z.WebhookConfigFile, z.WebhookVersion, z.WebhookAuthorizedTTL, z.WebhookUnauthorizedTTL, z.ConfigFile,
	}
	want := []any{
		"a", "b", false, []string{"c", "d"}, "e",
		"f", []string{"g", "h"}, []string{"i"}, []string{"j"}, []string{"k"}, []string{"l"},
		"m", "n", "o", "p", "q", "r", "s", []string{"ES256"}, map[string]string{"t": "u", "v": "w"},
		"x", "v1", 3 * time.Second,
		[]string{"1", "2"}, "3", []string{"4", "5"}, false, "6",
		7 * time.Hour, false, "8",
		[]string{"RBAC", "Webhook"}, []string{"/9"}, "10", "v1", 11 * time.Second, time.Duration(0), "12",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Usage == "" {
			t.Errorf("--%s says nothing of itself", flag.Name)
		}
	})
}

// Missing files and conflicting flags are reported in one line, before anything is created.
func TestAccessIsCheckedFirst(t *testing.T) {
	for want, args := range map[string][]string{
		"--client-ca-file":                            {"--client-ca-file=/nope"},
		"--token-auth-file":                           {"--token-auth-file=/nope"},
		"--requestheader-username-headers":            {"--requestheader-client-ca-file=/nope"},
		"oidc-issuer-url and oidc-client-id":          {"--oidc-client-id=x"},
		"--authentication-config":                     {"--authentication-config=/nope"},
		"authentication-config file and oidc-* flags": {"--authentication-config=/nope", "--oidc-client-id=x"},
		"--authentication-token-webhook-config-file":  {"--authentication-token-webhook-config-file=/nope"},
		"--service-account-signing-key-file":          {"--service-account-signing-key-file=/nope"},
		"--service-account-key-file":                  {"--service-account-key-file=/nope"},
		"--service-account-max-token-expiration":      {"--service-account-max-token-expiration=1s"},
		"--authorization-order":                       {"--authorization-order=RBAC"},
		"--authorization-webhook-config-file":         {"--authorization-webhook-config-file=/nope"},
		"leave out --authorization-webhook-version":   {"--authorization-config=/nope", "--authorization-webhook-version=v1"},
		"leave out --authorization-order":             {"--authorization-config=/nope", "--authorization-order=AlwaysAllowGroups,RBAC"},
		"--authorization-always-allow-paths":          {"--authorization-always-allow-paths=/a*b"},
	} {
		dir := filepath.Join(t.TempDir(), "root")
		cmd := rootCommand()
		cmd.SilenceErrors = true
		cmd.SetArgs(append([]string{"start", "--secure-port=0", "--root-directory=" + dir}, args...))
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %q", args, err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%q: the root directory was made", args)
		}
	}
}
