package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
)

// access adds the flags of authentication and authorization, those of kube-apiserver
// under their names.
func (o *options) access(f *pflag.FlagSet) {
	s := &o.server
	s.Authentication = kcp.NewAuthentication()
	s.Authentication.AddFlags(f)
	for name, usage := range map[string]string{
		"authentication-config":                   "File with an AuthenticationConfiguration: identity providers (JWT issuers), and who may be anonymous. It is read again when it changes. It excludes --oidc-* and, if it says who may be anonymous, --anonymous-auth.",
		"client-ca-file":                          "PEM file with the certificate authorities of client certificates: common name and organizations are user and groups.",
		"token-auth-file":                         "CSV file with static tokens: token, user, uid and groups.",
		"service-account-key-file":                "PEM file with public or private keys that verify tokens of service accounts, besides the key that signs them. Can be given several times.",
		"service-account-lookup":                  "Whether the tokens in secrets end with their secret and service account. Other tokens always do.",
		"service-account-issuer":                  "Issuer of the tokens of service accounts, usually an https URL. Given several times, new tokens are of the first and those of all are accepted. (default https://kcp.default.svc)",
		"service-account-jwks-uri":                "URL at which others get the keys that verify the tokens of service accounts, if not /openid/v1/jwks of this server.",
		"oidc-groups-prefix":                      "Prefix of the groups that the identity provider names. Without one, groups that begin with \"system:\" are dropped.",
		"requestheader-username-headers":          "Headers in which proxies with a certificate of --requestheader-client-ca-file name the user, usually X-Remote-User.",
		"service-account-max-token-expiration":    "How long tokens of service accounts are valid at most, whatever is asked for: an hour or more. (default one year)",
		"service-account-extend-token-expiration": "Whether tokens that kubelet asks for are valid for a year. It concerns tokens bound to pods, of which a logical cluster has none.",
		"authentication-token-webhook-cache-ttl":  "How long the webhook's answers about tokens are remembered.",
	} {
		f.Lookup(name).Usage = usage
	}
	f.StringVar(&s.ServiceAccountKeyFile, "service-account-signing-key-file", "", "PEM file with the private key that signs the tokens of service accounts. (default <root-directory>/sa.key, which is made)")
	f.StringVar(&s.AdminTokenFile, "authentication-admin-token-path", ".admin-token-store", "File for the hash of the token of shard-admin; a relative path is one below --root-directory.")
	z := &s.Authorization
	f.StringSliceVar(&z.Order, "authorization-order", nil, "Who is asked whether a request is allowed, in this order: AlwaysAllowGroups, AlwaysAllowPaths, RBAC and Webhook. (default all of them, so)")
	f.StringSliceVar(&z.AlwaysAllowPaths, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "Paths that are open to everybody; one may end in *.")
	f.StringVar(&z.WebhookConfigFile, "authorization-webhook-config-file", "", "Kubeconfig of a webhook that is asked whether a request is allowed. The extra key authorization.kubernetes.io/cluster-name tells it in which logical cluster.")
	f.StringVar(&z.WebhookVersion, "authorization-webhook-version", "v1beta1", "Version of the SubjectAccessReview for the webhook: v1 or v1beta1.")
	f.DurationVar(&z.WebhookAuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "How long the webhook's answer that a request is allowed is remembered.")
	f.DurationVar(&z.WebhookUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "How long the webhook's answer that a request is not allowed is remembered.")
	f.StringVar(&z.ConfigFile, "authorization-config", "", "File with an AuthorizationConfiguration: authorizers of the types RBAC and Webhook, in order. It is read again when it changes. It excludes --authorization-order and --authorization-webhook-*.")
}

// checkAccess finds flags that have no effect beside others.
func (o *options) checkAccess(f *pflag.FlagSet) error {
	if o.server.Authorization.ConfigFile == "" {
		return nil
	}
	for _, name := range []string{"order", "webhook-config-file", "webhook-version", "webhook-cache-authorized-ttl", "webhook-cache-unauthorized-ttl"} {
		if f.Changed("authorization-" + name) {
			return fmt.Errorf("--authorization-config says itself who is asked in which order: leave out --authorization-%s", name)
		}
	}
	return nil
}
