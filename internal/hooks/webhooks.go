package hooks

import (
	"context"
	"slices"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
)

// maxPlugins is the maximum number of plugins of one kind. A plugin takes about 20 KB. One that
// is needed again is built in less than a millisecond.
const maxPlugins = 2048

type configuration = *row[runtime.Object]

func mutatingTable(s *store.Store) *feed.Table[configuration] {
	return newTable(s, "mutatingwebhookconfigurations", func() runtime.Object { return &admissionregistrationv1.MutatingWebhookConfiguration{} })
}

func validatingTable(s *store.Store) *feed.Table[configuration] {
	return newTable(s, "validatingwebhookconfigurations", func() runtime.Object { return &admissionregistrationv1.ValidatingWebhookConfiguration{} })
}

// webhooks are the webhooks of one kind, mutating or validating, of all clusters.
type webhooks struct {
	hooks *Hooks
	table *feed.Table[configuration]
	build func(*Hooks, place, []configuration) (*plugin, error)

	mu      sync.Mutex
	plugins map[cluster.Name]map[cluster.Name]*plugin // by place
	n       int
}

// A place is where a plugin works: the webhooks of a cluster, for the requests in a cluster. It
// is another one if the resource is bound, and the namespaces are those of that one.
type place struct{ from, in cluster.Name }

// A plugin is an admission plugin of Kubernetes. It has the configurations with which it was
// built.
type plugin struct {
	configurations []configuration
	run            func(context.Context, admission.Attributes, admission.ObjectInterfaces) error
}

func newWebhooks(h *Hooks, t *feed.Table[configuration], build func(*Hooks, place, []configuration) (*plugin, error)) *webhooks {
	w := &webhooks{hooks: h, table: t, build: build, plugins: map[cluster.Name]map[cluster.Name]*plugin{}}
	t.Subscribe(func(k keys.Key) { w.drop(k.Cluster) })
	return w
}

// drop forgets the plugins with the webhooks of a cluster. If it has webhooks left, they are
// built again.
func (w *webhooks) drop(from cluster.Name) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n -= len(w.plugins[from])
	delete(w.plugins, from)
}

// dispatch calls the webhooks of a cluster that match a request.
func (w *webhooks) dispatch(ctx context.Context, from source, r admit.Request, o admission.ObjectInterfaces) (bool, error) {
	if from.above {
		return false, nil
	}
	now := w.table.List(from.cluster, "")
	if len(now) == 0 || rules.IsExemptAdmissionConfigurationResource(r.Attributes) {
		return false, nil
	}
	if err := readable(now); err != nil {
		return true, err
	}
	p, err := w.plugin(place{from.cluster, r.Cluster}, now)
	if err != nil {
		return true, apierrors.NewInternalError(err)
	}
	return true, p.run(ctx, r.Attributes, o)
}

// plugin returns the plugin for the present configurations.
func (w *webhooks) plugin(at place, now []configuration) (*plugin, error) {
	w.mu.Lock()
	p := w.plugins[at.from][at.in]
	w.mu.Unlock()
	if p != nil && slices.Equal(p.configurations, now) {
		return p, nil
	}
	p, err := w.build(w.hooks, at, now)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n >= maxPlugins {
		w.evict()
	}
	if w.plugins[at.from] == nil {
		w.plugins[at.from] = map[cluster.Name]*plugin{}
	}
	if w.plugins[at.from][at.in] == nil {
		w.n++
	}
	w.plugins[at.from][at.in] = p
	return p, nil
}

// evict forgets a plugin at random, as the order of a map is. The caller holds mu.
func (w *webhooks) evict() {
	for from, all := range w.plugins {
		for in := range all {
			delete(all, in)
			w.n--
			if len(all) == 0 {
				delete(w.plugins, from)
			}
			return
		}
	}
}

func newMutating(h *Hooks, at place, all []configuration) (*plugin, error) {
	p, err := mutating.NewMutatingWebhook(nil)
	if err != nil {
		return nil, err
	}
	return &plugin{all, p.Admit}, h.prepare(p.Webhook, at, all)
}

func newValidating(h *Hooks, at place, all []configuration) (*plugin, error) {
	p, err := validating.NewValidatingAdmissionWebhook(nil)
	if err != nil {
		return nil, err
	}
	return &plugin{all, p.Validate}, h.prepare(p.Webhook, at, all)
}

// prepare gives a plugin its view of the cluster.
func (h *Hooks) prepare(p *generic.Webhook, at place, all []configuration) error {
	v := view{Hooks: h, place: at, configurations: all}
	p.SetExternalKubeInformerFactory(factory{view: v})
	p.SetExternalKubeClientSet(client{view: v})
	p.SetAuthorizer(v.authorizer())
	p.SetAuthenticationInfoResolverWrapper(v.calls())
	return p.ValidateInitialization()
}
