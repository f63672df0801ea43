package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
)

// access adds the flags of authentication and authorization. Flags of kube-apiserver keep
// their names.
func (o *options) access(f *pflag.FlagSet) {
	s := &o.server
	s.Authentication = kcp.NewAuthentication()
	s.Authentication.AddFlags(f)
	for name, usage := range map[string]string{
		"authentication-config":                   "File with an AuthenticationConfiguration: identity providers (JWT issuers) and anonymous access. The server reloads it when it changes. It excludes --oidc-*, and --anonymous-auth if it configures anonymous access.",
		"client-ca-file":                          "PEM file with the certificate authorities of client certificates. The common name is the user, the organizations are the groups.",
		"token-auth-file":                         "CSV file with static tokens: token, user, uid and groups.",
		"service-account-key-file":                "PEM file with keys that verify tokens of service accounts, in addition to the signing key. Can be given several times.",
		"service-account-lookup":                  "Reject a token from a secret once the secret or the service account is deleted. For other tokens this is always so.",
		"service-account-issuer":                  "Issuer of the tokens of service accounts, usually an https URL. Can be given several times: new tokens have the first one, all are accepted. (default https://kcp.default.svc)",
		"service-account-jwks-uri":                "URL of the keys that verify tokens of service accounts. (default /openid/v1/jwks of this server)",
		"oidc-groups-prefix":                      "Prefix for groups from the identity provider. Without a prefix, groups that begin with \"system:\" are ignored.",
		"requestheader-username-headers":          "Headers for the user name, usually X-Remote-User, in requests of proxies with a certificate of --requestheader-client-ca-file.",
		"service-account-max-token-expiration":    "Maximum lifetime of tokens of service accounts, at least one hour. (default one year)",
		"service-account-extend-token-expiration": "Extend the lifetime of tokens that are bound to pods to one year. Logical clusters have no pods, so this has no effect.",
		"authentication-token-webhook-cache-ttl":  "How long the server caches the webhook's answers.",
	} {
		f.Lookup(name).Usage = usage
	}
	f.StringVar(&s.ServiceAccountKeyFile, "service-account-signing-key-file", "", "PEM file with the private key that signs tokens of service accounts. (default <root-directory>/sa.key, which the server creates)")
	f.StringVar(&s.AdminTokenFile, "authentication-admin-token-path", ".admin-token-store", "File for the hashes of the tokens of kcp-admin and shard-admin; a relative path is one below --root-directory.")
	z := &s.Authorization
	f.StringSliceVar(&z.Order, "authorization-order", nil, "Authorizers, in their order: AlwaysAllowGroups, AlwaysAllowPaths, RBAC and Webhook. (default all, in this order)")
	f.StringSliceVar(&z.AlwaysAllowPaths, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "Paths that need no authorization. A path may end in *.")
	f.StringVar(&z.WebhookConfigFile, "authorization-webhook-config-file", "", "Kubeconfig of a webhook that is asked whether a request is allowed. The extra keys authorization.kubernetes.io/cluster-name and authorization.kcp.io/cluster-name tell it in which logical cluster.")
	f.StringVar(&z.WebhookVersion, "authorization-webhook-version", "v1beta1", "Version of the SubjectAccessReview for the webhook: v1 or v1beta1.")
	f.DurationVar(&z.WebhookAuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "How long the server caches the webhook's answer that a request is allowed.")
	f.DurationVar(&z.WebhookUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "How long the server caches the webhook's answer that a request is not allowed.")
	f.StringVar(&z.ConfigFile, "authorization-config", "", "File with an AuthorizationConfiguration: authorizers of the types RBAC and Webhook, in their order. The server reloads it when it changes. It excludes --authorization-order and --authorization-webhook-*.")
}

// checkAccess reports flags that exclude each other.
func (o *options) checkAccess(f *pflag.FlagSet) error {
	if o.server.Authorization.ConfigFile == "" {
		return nil
	}
	for _, name := range []string{"order", "webhook-config-file", "webhook-version", "webhook-cache-authorized-ttl", "webhook-cache-unauthorized-ttl"} {
		if f.Changed("authorization-" + name) {
			return fmt.Errorf("--authorization-config excludes --authorization-%[1]s: leave out --authorization-%[1]s", name)
		}
	}
	return nil
}
