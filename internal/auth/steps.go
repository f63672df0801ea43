package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"
)

// Names of what can be asked whether a request is allowed.
const (
	// AlwaysAllowGroups allows everything to system:masters. It comes first wherever
	// it stands.
	AlwaysAllowGroups = "AlwaysAllowGroups"

	// AlwaysAllowPaths allows everybody the paths that are open.
	AlwaysAllowPaths = "AlwaysAllowPaths"

	// RBACAuthorizer decides by roles and bindings.
	RBACAuthorizer = "RBAC"

	// WebhookAuthorizer asks the webhook.
	WebhookAuthorizer = "Webhook"
)

// AuthorizationOptions say who is asked whether a request is allowed. With the zero
// value those are the always allowed groups and paths, and then RBAC.
type AuthorizationOptions struct {
	// Order has the names of who is asked, one after the other until one allows or
	// denies: "AlwaysAllowGroups", "AlwaysAllowPaths", "RBAC" and "Webhook", which is
	// the default. Who is not in it is not asked.
	Order []string

	// AlwaysAllowPaths are open to everybody. A path may end in "*". The default
	// is /healthz, /readyz and /livez.
	AlwaysAllowPaths []string

	// WebhookConfigFile is the kubeconfig of a webhook. It is told the logical cluster
	// of a request in the extra key [WebhookClusterKey], and never asked about
	// system:masters. If it cannot be asked, the request is refused.
	WebhookConfigFile string

	// WebhookVersion of SubjectAccessReview is what the webhook is sent: "v1", which
	// is the default, or "v1beta1".
	WebhookVersion string

	// WebhookAuthorizedTTL and WebhookUnauthorizedTTL are how long the webhook's answers
	// are remembered, for one logical cluster each; 0 is not at all.
	WebhookAuthorizedTTL, WebhookUnauthorizedTTL time.Duration

	// ConfigFile has an AuthorizationConfiguration, as kube-apiserver reads it, with
	// authorizers of the types RBAC and Webhook. It takes the place of Order and of the
	// webhook above, and is read again when it changes. The always allowed groups
	// and paths come before.
	ConfigFile string
}

// steps is who is asked, in order.
type steps struct {
	ask     []func(context.Context, authorizer.Attributes) verdict
	foreign bool // somebody else than the stored rules is asked
	of      []configured
}

// A configured step is one of the names above, with a webhook if that is one.
type configured struct {
	name    string
	webhook *webhookAuthorizer
}

// Validate reports what keeps o from being used, all files that it names included.
func (o AuthorizationOptions) Validate() error {
	if _, err := o.openPaths(); err != nil {
		return err
	}
	_, _, err := o.read()
	return err
}

func (o AuthorizationOptions) openPaths() (authorizer.Authorizer, error) {
	paths := o.AlwaysAllowPaths
	if len(paths) == 0 {
		paths = []string{"/healthz", "/readyz", "/livez"}
	}
	open, err := path.NewAuthorizer(paths)
	if err != nil {
		return nil, fmt.Errorf("--authorization-always-allow-paths: %w", err)
	}
	return open, nil
}

// read returns the steps, and the content of the file that they are from, if any.
func (o AuthorizationOptions) read() ([]configured, []byte, error) {
	if o.ConfigFile != "" {
		if len(o.Order) > 0 || o.WebhookConfigFile != "" {
			return nil, nil, errors.New("--authorization-config says itself who is asked in which order: leave out --authorization-order and --authorization-webhook-*")
		}
		data, err := os.ReadFile(o.ConfigFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--authorization-config: %w", err)
		}
		all, err := parseSteps(data)
		if err != nil {
			return nil, nil, fmt.Errorf("--authorization-config %s: %w", o.ConfigFile, err)
		}
		return all, data, nil
	}
	order := o.Order
	if len(order) == 0 {
		order = []string{AlwaysAllowGroups, AlwaysAllowPaths, RBACAuthorizer, WebhookAuthorizer}
	}
	if err := o.checkOrder(order); err != nil {
		return nil, nil, err
	}
	var all []configured
	for _, name := range order {
		c := configured{name: name}
		if name == WebhookAuthorizer {
			if o.WebhookConfigFile == "" {
				continue
			}
			var err error
			if c.webhook, err = newWebhookAuthorizer("webhook", o.webhook(), authorizationcel.NewDefaultCompiler()); err != nil {
				return nil, nil, fmt.Errorf("--authorization-webhook-config-file: %w", err)
			}
		}
		all = append(all, c)
	}
	return all, nil, nil
}

func (o AuthorizationOptions) checkOrder(order []string) error {
	known := []string{AlwaysAllowGroups, AlwaysAllowPaths, RBACAuthorizer, WebhookAuthorizer}
	for n, name := range order {
		switch {
		case !slices.Contains(known, name):
			return fmt.Errorf("--authorization-order: there is no %q; use %s", name, strings.Join(known, ","))
		case slices.Contains(order[:n], name):
			return fmt.Errorf("--authorization-order has %q twice; name each once", name)
		}
	}
	hook := slices.Contains(order, WebhookAuthorizer)
	switch {
	case !slices.Contains(order, AlwaysAllowGroups):
		return errors.New("--authorization-order lacks AlwaysAllowGroups; the server itself acts as system:masters, so add it")
	case o.WebhookConfigFile != "" && !hook:
		return errors.New("--authorization-webhook-config-file has no effect without Webhook in --authorization-order; add it there")
	case !slices.Contains(order, RBACAuthorizer) && (!hook || o.WebhookConfigFile == ""):
		return errors.New("--authorization-order lets in nobody; add RBAC, or Webhook with --authorization-webhook-config-file")
	case o.WebhookAuthorizedTTL < 0 || o.WebhookUnauthorizedTTL < 0:
		return errors.New("--authorization-webhook-cache-authorized-ttl and --authorization-webhook-cache-unauthorized-ttl cannot be negative; use 0 to remember no answers")
	}
	return nil
}

// webhook is what the flags say of the webhook, in the form of the file.
func (o AuthorizationOptions) webhook() *apiserver.WebhookConfiguration {
	version := o.WebhookVersion
	if version == "" {
		version = "v1"
	}
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: o.WebhookAuthorizedTTL}, CacheAuthorizedRequests: true,
		UnauthorizedTTL: metav1.Duration{Duration: o.WebhookUnauthorizedTTL}, CacheUnauthorizedRequests: true,
		Timeout:                    metav1.Duration{Duration: webhookTimeout},
		SubjectAccessReviewVersion: version,
		FailurePolicy:              apiserver.FailurePolicyDeny,
		ConnectionInfo: apiserver.WebhookConnectionInfo{
			Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &o.WebhookConfigFile,
		},
	}
}

// parseSteps reads an AuthorizationConfiguration.
func parseSteps(data []byte) ([]configured, error) {
	if len(data) == 0 {
		return nil, errors.New("the file is empty")
	}
	config, err := load.LoadFromData(data)
	if err != nil {
		return nil, err
	}
	compiler := authorizationcel.NewDefaultCompiler()
	known, repeatable := sets.New(RBACAuthorizer, WebhookAuthorizer), sets.New(WebhookAuthorizer)
	if errs := apiservervalidation.ValidateAuthorizationConfiguration(compiler, nil, config, known, repeatable); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	all := []configured{{name: AlwaysAllowGroups}, {name: AlwaysAllowPaths}}
	for _, a := range config.Authorizers {
		c := configured{name: string(a.Type)}
		if a.Webhook != nil {
			if c.webhook, err = newWebhookAuthorizer(a.Name, a.Webhook, compiler); err != nil {
				return nil, fmt.Errorf("webhook %s: %w", a.Name, err)
			}
		}
		all = append(all, c)
	}
	return all, nil
}

func (z *Authorizer) build(all []configured) *steps {
	s := &steps{of: all}
	for _, c := range all {
		switch c.name {
		case AlwaysAllowPaths:
			s.ask = append(s.ask, z.openPaths)
		case RBACAuthorizer:
			s.ask = append(s.ask, z.stored)
		case WebhookAuthorizer:
			s.foreign = true
			s.ask = append(s.ask, func(ctx context.Context, a authorizer.Attributes) verdict { return z.asked(ctx, c.webhook, a) })
		}
	}
	return s
}

// Run takes over changes of the file of authorizers until the context ends.
func (z *Authorizer) Run(ctx context.Context) {
	file := z.options.ConfigFile
	if file == "" {
		return
	}
	log := klog.FromContext(ctx)
	metrics.RegisterMetrics()
	filesystem.WatchUntil(ctx, lookAgain, file, func() {
		switch changed, err := z.reload(); {
		case err != nil:
			metrics.RecordAuthorizationConfigAutomaticReloadFailure("")
			log.Error(err, "the changed authorizers cannot be used: going on with those before", "file", file)
		case changed:
			metrics.RecordAuthorizationConfigAutomaticReloadSuccess("", string(z.seen))
			log.Info("authorizers changed", "file", file)
		}
	}, func(err error) { log.Error(err, "cannot watch the file of authorizers", "file", file) })
}

// reload takes the file over if its content is new.
func (z *Authorizer) reload() (bool, error) {
	data, err := os.ReadFile(z.options.ConfigFile)
	if err != nil || bytes.Equal(data, z.seen) {
		return false, err
	}
	z.seen = data
	all, err := parseSteps(data)
	if err != nil {
		return false, err
	}
	z.steps.Store(z.build(all))
	return true, nil
}
