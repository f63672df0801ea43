package authz

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

	"github.com/unforked/kcp/internal/auth"
)

// Names of authorizers, in Order.
const (
	// AlwaysAllowGroups allows everything to system:masters. It always runs first.
	AlwaysAllowGroups = "AlwaysAllowGroups"

	// AlwaysAllowPaths allows everyone the open paths.
	AlwaysAllowPaths = "AlwaysAllowPaths"

	// RBACAuthorizer decides by roles and bindings.
	RBACAuthorizer = "RBAC"

	// WebhookAuthorizer calls the webhook.
	WebhookAuthorizer = "Webhook"
)

// AuthorizationOptions configures the authorizers. With the zero value these are the always
// allowed groups and paths, and then RBAC.
type AuthorizationOptions struct {
	// Order lists the authorizers, which run until one allows or denies. The default is
	// "AlwaysAllowGroups", "AlwaysAllowPaths", "RBAC" and "Webhook". Others do not run.
	Order []string

	// AlwaysAllowPaths are open to everyone. A path may end in "*". The default is
	// /healthz, /readyz and /livez.
	AlwaysAllowPaths []string

	// WebhookConfigFile is the kubeconfig of a webhook. The user's extra keys
	// [WebhookClusterKey] and [WebhookKcpClusterKey] hold the logical cluster of the
	// request. Requests of system:masters never reach the webhook. If the call fails, the
	// request is refused.
	WebhookConfigFile string

	// WebhookVersion is the version of SubjectAccessReview sent to the webhook: "v1", the
	// default, or "v1beta1".
	WebhookVersion string

	// WebhookAuthorizedTTL and WebhookUnauthorizedTTL are how long the webhook's answers
	// are cached, per logical cluster; 0 caches none.
	WebhookAuthorizedTTL, WebhookUnauthorizedTTL time.Duration

	// ConfigFile is a file with an AuthorizationConfiguration, as kube-apiserver reads it,
	// with authorizers of the types RBAC and Webhook. It replaces Order and the webhook
	// fields, and is reloaded when it changes. The always allowed groups and paths run
	// before.
	ConfigFile string
}

// steps are the authorizers, in order.
type steps struct {
	ask     []func(context.Context, authorizer.Attributes) verdict
	foreign bool // a webhook may decide too, so the rules are incomplete
	of      []configured
}

// configured is a step: the name of its authorizer, and its webhook if it has one.
type configured struct {
	name    string
	webhook *webhookAuthorizer
}

// Validate returns an error if o, or a file that it names, cannot be used.
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

// read returns the steps, and the content of ConfigFile if it is set.
func (o AuthorizationOptions) read() ([]configured, []byte, error) {
	if o.ConfigFile != "" {
		if len(o.Order) > 0 || o.WebhookConfigFile != "" {
			return nil, nil, errors.New("--authorization-config sets the order of the authorizers itself: leave out --authorization-order and --authorization-webhook-*")
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
			return fmt.Errorf("--authorization-order: unknown authorizer %q; use %s", name, strings.Join(known, ","))
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
		return errors.New("--authorization-order has no authorizer for users; add RBAC, or Webhook with --authorization-webhook-config-file")
	case o.WebhookAuthorizedTTL < 0 || o.WebhookUnauthorizedTTL < 0:
		return errors.New("--authorization-webhook-cache-authorized-ttl and --authorization-webhook-cache-unauthorized-ttl cannot be negative; use 0 to cache no answers")
	}
	return nil
}

// webhook returns the webhook that the flags configure, in the form of the file.
func (o AuthorizationOptions) webhook() *apiserver.WebhookConfiguration {
	version := o.WebhookVersion
	if version == "" {
		version = "v1"
	}
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: o.WebhookAuthorizedTTL}, CacheAuthorizedRequests: true,
		UnauthorizedTTL: metav1.Duration{Duration: o.WebhookUnauthorizedTTL}, CacheUnauthorizedRequests: true,
		Timeout:                    metav1.Duration{Duration: auth.WebhookTimeout},
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
			s.ask = append(s.ask, func(ctx context.Context, a authorizer.Attributes) verdict { return z.byWebhook(ctx, c.webhook, a) })
		}
	}
	return s
}

// Run reloads the file of authorizers when it changes. It returns when ctx ends.
func (z *Authorizer) Run(ctx context.Context) {
	file := z.options.ConfigFile
	if file == "" {
		return
	}
	log := klog.FromContext(ctx)
	metrics.RegisterMetrics()
	filesystem.WatchUntil(ctx, auth.FilePoll, file, func() {
		switch changed, err := z.reload(); {
		case err != nil:
			metrics.RecordAuthorizationConfigAutomaticReloadFailure("")
			log.Error(err, "cannot use the changed authorizers; the previous ones stay in use", "file", file)
		case changed:
			metrics.RecordAuthorizationConfigAutomaticReloadSuccess("", string(z.seen))
			log.Info("authorizers changed", "file", file)
		}
	}, func(err error) { log.Error(err, "cannot watch the file of authorizers", "file", file) })
}

// reload loads the file if its content is new, and reports whether it did.
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
