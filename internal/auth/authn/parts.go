package authn

import (
	"errors"
	"fmt"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/issuers"
)

// parts are the components of Authenticators.
type parts struct {
	audiences authenticator.Audiences
	clientCA  dynamiccertificates.CAContentProvider
	proxies   *authenticatorfactory.RequestHeaderConfig
	tokenFile authenticator.Token
	webhook   authenticator.Token
	own       []string // issuers of the server's own tokens
	providers *issuers.Providers
}

// Validate returns an error if o, or a file that it names, cannot be used.
func (o Authentication) Validate() error {
	_, err := o.read()
	return err
}

// read checks o, and reads all files that it names.
func (o Authentication) read() (*parts, error) {
	opts := o.Options
	if opts == nil {
		opts = DefaultOptions()
	}
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	p := &parts{audiences: opts.APIAudiences}
	if o.ServiceAccounts != nil {
		p.own = o.ServiceAccounts.options.Issuers
		p.audiences = o.ServiceAccounts.Audiences()
	}
	var err error
	if opts.RequestHeader != nil {
		if p.proxies, err = opts.RequestHeader.ToAuthenticationRequestHeaderConfig(); err != nil {
			return nil, fmt.Errorf("--requestheader-client-ca-file: read the CAs of proxies: %w", err)
		}
	}
	if opts.ClientCert != nil {
		if p.clientCA, err = opts.ClientCert.GetClientCAContentProvider(); err != nil {
			return nil, fmt.Errorf("--client-ca-file: read the CAs of client certificates: %w", err)
		}
	}
	if opts.TokenFile != nil && opts.TokenFile.TokenFile != "" {
		if p.tokenFile, err = tokenfile.NewCSV(opts.TokenFile.TokenFile); err != nil {
			return nil, fmt.Errorf("--token-auth-file: read tokens from %s: %w; a line is token,name,uid and, in quotes, groups", opts.TokenFile.TokenFile, err)
		}
	}
	if opts.WebHook != nil && opts.WebHook.ConfigFile != "" {
		if p.webhook, err = tokenWebhook(opts.WebHook, p.audiences, auth.WebhookTimeout); err != nil {
			return nil, err
		}
	}
	p.providers, err = issuers.NewProviders(opts, p.own)
	return p, err
}

// checkOptions returns an error if options conflict.
func checkOptions(o *kubeoptions.BuiltInAuthenticationOptions) error {
	checked := *o
	checked.ServiceAccounts = nil // WithFlags checks these
	errs := checked.Validate()
	if h := o.RequestHeader; h != nil {
		names := len(h.UsernameHeaders) + len(h.UIDHeaders) + len(h.GroupHeaders) + len(h.ExtraHeaderPrefixes) + len(h.AllowedNames)
		switch {
		case h.ClientCAFile == "" && names > 0:
			errs = append(errs, errors.New("--requestheader-* has no effect without --requestheader-client-ca-file: add the file with the CAs of the proxies' certificates"))
		case h.ClientCAFile != "" && len(h.UsernameHeaders) == 0:
			errs = append(errs, errors.New("--requestheader-client-ca-file has no effect without --requestheader-username-headers: add the header in which proxies name the user, usually X-Remote-User"))
		}
	}
	if w := o.WebHook; w != nil && w.CacheTTL < 0 {
		errs = append(errs, fmt.Errorf("--authentication-token-webhook-cache-ttl %s is negative; use 0 to cache no answers", w.CacheTTL))
	}
	return utilerrors.NewAggregate(errs)
}

// tokenWebhook returns an authenticator that calls a webhook. Its answers are the same in
// all clusters, so they can be cached by token. [vettedToken] then adapts service accounts
// to the cluster.
func tokenWebhook(o *kubeoptions.WebHookAuthenticationOptions, audiences authenticator.Audiences, timeout time.Duration) (authenticator.Token, error) {
	client, err := webhookutil.LoadKubeconfig(o.ConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("--authentication-token-webhook-config-file: read the kubeconfig of the webhook: %w", err)
	}
	client.Timeout = timeout
	retry := o.RetryBackoff
	if retry == nil {
		retry = genericoptions.DefaultAuthWebhookRetryBackoff()
	}
	hook, err := webhook.New(client, o.Version, audiences, *retry)
	if err != nil {
		return nil, fmt.Errorf("--authentication-token-webhook-config-file, --authentication-token-webhook-version: %w", err)
	}
	return tokencache.New(hook, false, o.CacheTTL, o.CacheTTL), nil
}
