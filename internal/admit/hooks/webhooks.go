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
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
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
	build func(*Hooks, place, []configuration) (plugin, error)

	mu    sync.Mutex
	slots map[cluster.Name]map[cluster.Name]*slot // by place
	n     int
}

// A place is where a plugin works: the webhooks of a cluster, for the requests in a cluster. It
// is another one if the resource is bound, and the namespaces are those of that one.
type place struct{ from, in cluster.Name }

// A plugin is an admission plugin of Kubernetes for the configurations of a place.
type plugin func(context.Context, admission.Attributes, admission.ObjectInterfaces) error

// A slot has the plugin for some configurations. The plugin keeps the match conditions that it has
// compiled, so the slot loses it like a compiled policy.
type slot struct {
	configurations []configuration
	cell           cell
}

func newWebhooks(h *Hooks, t *feed.Table[configuration], build func(*Hooks, place, []configuration) (plugin, error)) *webhooks {
	w := &webhooks{hooks: h, table: t, build: build, slots: map[cluster.Name]map[cluster.Name]*slot{}}
	t.Subscribe(func(k keys.Key) { w.drop(k.Cluster) })
	return w
}

// drop forgets the plugins with the webhooks of a cluster. If it has webhooks left, they are
// built again.
func (w *webhooks) drop(from cluster.Name) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n -= len(w.slots[from])
	delete(w.slots, from)
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
	run, err := w.plugin(place{from.cluster, r.Cluster}, now)
	if err != nil {
		return true, apierrors.NewInternalError(err)
	}
	return true, run(ctx, r.Attributes, o)
}

// plugin returns the plugin for the present configurations.
func (w *webhooks) plugin(at place, now []configuration) (plugin, error) {
	return keep(w.hooks.compiled, at.from, &w.slot(at, now).cell, func() (plugin, int, error) {
		weight := pluginWeight
		for _, r := range now {
			weight += conditions(r)
		}
		run, err := w.build(w.hooks, at, now)
		return run, weight, err
	})
}

// slot returns the slot for the present configurations.
func (w *webhooks) slot(at place, now []configuration) *slot {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slots[at.from][at.in]
	if s != nil && slices.Equal(s.configurations, now) {
		return s
	}
	if w.n >= maxPlugins {
		w.evict()
	}
	if w.slots[at.from] == nil {
		w.slots[at.from] = map[cluster.Name]*slot{}
	}
	if w.slots[at.from][at.in] == nil {
		w.n++
	}
	s = &slot{configurations: now}
	w.slots[at.from][at.in] = s
	return s
}

// evict forgets a slot at random, as the order of a map is. The caller holds mu.
func (w *webhooks) evict() {
	for from, all := range w.slots {
		for in := range all {
			delete(all, in)
			w.n--
			if len(all) == 0 {
				delete(w.slots, from)
			}
			return
		}
	}
}

func newMutating(h *Hooks, at place, all []configuration) (plugin, error) {
	p, err := mutating.NewMutatingWebhook(nil)
	if err != nil {
		return nil, err
	}
	return p.Admit, h.prepare(p.Webhook, at, all)
}

func newValidating(h *Hooks, at place, all []configuration) (plugin, error) {
	p, err := validating.NewValidatingAdmissionWebhook(nil)
	if err != nil {
		return nil, err
	}
	return p.Validate, h.prepare(p.Webhook, at, all)
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
