// Package hooks runs the webhooks and policies that tenants configure for the writes of their
// logical clusters, with the dispatchers of Kubernetes. It hides that these were made for one
// cluster: a plugin exists only for a cluster that has configurations, has no goroutine, and
// sees the objects of its cluster in tables that all clusters share.
package hooks

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/store"
)

// Config has what hooks need of the server. All fields are set.
type Config struct {
	Store *store.Store
	// Rules are the server's own rules, which run before the hooks, and again after hooks
	// that may have changed the object.
	Rules admit.Rules
	// Authorizer answers the expressions of policies that check rights.
	Authorizer authorizer.Authorizer
	// Dialer returns the dialer for calls of webhooks.
	Dialer func() *dial.Dialer
	// Provider returns the cluster of the export of a resource that a cluster has bound.
	Provider func(cluster.Name, schema.GroupResource) (cluster.Name, bool)
	// Above returns a cluster and all clusters above it, and false if one is not known.
	Above func(cluster.Name) ([]cluster.Name, bool)
	// Tenant returns the tenant of a cluster, with which it shares limits.
	Tenant func(cluster.Name) cluster.Name
	// PathOf returns the path of a cluster.
	PathOf func(cluster.Name) cluster.Path
	// Kind returns a kind that a cluster serves.
	Kind func(cluster.Name, schema.GroupVersionKind) (catalog.Kind, bool)
	// Client returns a configuration of clients that read in a cluster.
	Client func(cluster.Name) *rest.Config
	// Models returns the OpenAPI models of the built-in kinds.
	Models func() []map[string]*spec.Schema
}

// Hooks are the webhooks and policies of all clusters, and the server's own rules. Methods may
// be called concurrently.
type Hooks struct {
	config     Config
	mutating   *webhooks
	validating *webhooks
	// mutators and validators are the policies.
	mutators   *policies[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]
	validators *policies[*validating.Policy, *validating.PolicyBinding, validating.Validator]
	types      *types
	slow       *slow
	compiled   *compilations
}

var (
	_ admission.MutationInterface   = (*Hooks)(nil)
	_ admission.ValidationInterface = (*Hooks)(nil)
)

// New returns the hooks that are stored. The change feed of the store must not have started.
func New(c Config) *Hooks {
	h := &Hooks{config: c, compiled: newCompilations(c.Tenant)}
	h.mutating = newWebhooks(h, mutatingTable(c.Store), newMutating)
	h.validating = newWebhooks(h, validatingTable(c.Store), newValidating)
	h.mutators, h.validators = newMutators(h), newValidators(h)
	h.types, h.slow = newTypes(c.Models, c.Client), newSlow(c.Tenant)
	return h
}

// Handles implements [admission.Interface].
func (*Hooks) Handles(admission.Operation) bool { return true }

// A dispatch passes a request to the hooks of one kind that a cluster has. It reports whether
// there are any.
type dispatch func(ctx context.Context, from source, r admit.Request, o admission.ObjectInterfaces) (bool, error)

// A source is a cluster whose hooks apply to a request.
type source struct {
	cluster cluster.Name
	// above is true for a cluster above that of the request. Only its policies apply, by bindings
	// with [core.PolicyDescendantsLabel].
	above bool
}

// Admit implements [admission.MutationInterface].
func (h *Hooks) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := h.config.Rules.Admit(ctx, a, o); err != nil {
		return err
	}
	r, err := request(ctx, a)
	if err != nil || inprocess.IsLoop(ctx) || protected(r) {
		return err
	}
	found, err := h.each(ctx, r, o, h.mutators.dispatch, h.mutating.dispatch)
	if err != nil || !found {
		return err
	}
	// The server sets its own fields last.
	if err := h.config.Rules.Admit(ctx, a, o); err != nil {
		return err
	}
	// Upstream calls its whole chain at most once more, too.
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	if _, err := h.each(ctx, r, o, h.mutators.dispatch, h.mutating.dispatch); err != nil {
		return err
	}
	return h.config.Rules.Admit(ctx, a, o)
}

// Validate implements [admission.ValidationInterface].
func (h *Hooks) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := h.config.Rules.Validate(ctx, a, o); err != nil {
		return err
	}
	r, err := request(ctx, a)
	if err != nil {
		return err
	}
	if inprocess.IsLoop(ctx) {
		return h.byLoop(ctx, r, o)
	}
	_, err = h.each(ctx, r, o, h.validators.dispatch, h.validating.dispatch)
	return err
}

func request(ctx context.Context, a admission.Attributes) (admit.Request, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return admit.Request{}, apierrors.NewBadRequest(err.Error())
	}
	return admit.Request{Attributes: a, Cluster: c}, nil
}

// each runs the given hooks of every cluster whose hooks apply to a request. It reports whether
// there are any.
func (h *Hooks) each(ctx context.Context, r admit.Request, o admission.ObjectInterfaces, all ...dispatch) (found bool, err error) {
	if _, err := h.config.Store.Feed().Current(ctx); err != nil {
		return false, err
	}
	from, err := h.sources(ctx, r.Cluster, r.GetResource().GroupResource())
	if err != nil {
		return false, err
	}
	ctx = context.WithValue(ctx, waitsKey{}, &fair.Waits{})
	for _, run := range all {
		for _, c := range from {
			has, err := run(ctx, c, r, o)
			if found = found || has; err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// sources returns the clusters whose hooks apply to requests for a resource of a cluster: that
// cluster, for a bound resource that of the export, and those above the cluster.
func (h *Hooks) sources(ctx context.Context, c cluster.Name, gr schema.GroupResource) ([]source, error) {
	from := make([]source, 1, 8)
	from[0].cluster = c
	if provider, ok := h.config.Provider(c, gr); ok && provider != c {
		from = append(from, source{cluster: provider})
	}
	above, complete := h.config.Above(c)
	if !complete && !c.System() { // it may be new
		if err := h.config.Store.Feed().CatchUp(ctx); err != nil {
			return nil, err
		}
		above, _ = h.config.Above(c)
	}
	for _, at := range above {
		if at != c && (h.mutators.descend(at) || h.validators.descend(at)) {
			from = append(from, source{at, true})
		}
	}
	return from, nil
}
