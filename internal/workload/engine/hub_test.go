package engine

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A hub plays the side of the workspaces, with one Deployment that refers to one ConfigMap. Its caches
// change only when a test says so.
type hub struct {
	wake chan func(kcp.Key)

	mu       sync.Mutex
	cached   *workload.Assignment // guarded by mu, as all below
	report   *workload.TargetStatus
	settings *unstructured.Unstructured
	lost     bool // the workload is not in the cache
	stops    bool // agents stop Deployments when their lease has run out
	policy   *workload.Assignment
	guard    *workload.TargetStatus // about the policy
	guarded  int                    // how often it was asked for
	reads    int
	live     func() (*unstructured.Unstructured, *workload.Assignment, error)
	unused   func() (bool, error)
	said     []*workload.TargetStatus // nil for a deletion
}

// locked calls f with the lock held.
func locked[T any](h *hub, f func() T) T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f()
}

func (h *hub) Wakes() kcp.Source {
	return kcp.Source{Subscribe: func(wake func(kcp.Key)) func() { h.wake <- wake; return nil }}
}

func (h *hub) Found() {}

func (h *hub) Profiles() []profile.Profile {
	return []profile.Profile{*h.Profile(deployments()), *h.Profile(configMaps())}
}

func (h *hub) Profile(of schema.GroupResource) *profile.Profile {
	for _, p := range append(profile.Shipped(), profile.Dependencies()...) {
		if p.GroupResource() == of {
			if of == deployments() && locked(h, func() bool { return h.stops }) {
				p.Quiesce = map[string]any{"spec": map[string]any{"replicas": 0}}
			}
			return &p
		}
	}
	return nil
}

func (h *hub) Workload(id ID) *unstructured.Unstructured {
	if id == web() && !locked(h, func() bool { return h.lost }) {
		return webDeployment()
	}
	return nil
}

func (h *hub) Assignment(id ID) *workload.Assignment {
	return locked(h, func() *workload.Assignment {
		if id != web() {
			return nil
		}
		return h.cached
	})
}

func (h *hub) Status(id ID) *workload.TargetStatus {
	return locked(h, func() *workload.TargetStatus {
		if id.Resource == profile.Policies().Resource {
			h.guarded++
			return h.guard
		}
		return h.report
	})
}

func (h *hub) Placed(kcp.ClusterName, string) []*workload.Assignment {
	return locked(h, func() []*workload.Assignment {
		if h.policy == nil {
			return []*workload.Assignment{h.cached}
		}
		return []*workload.Assignment{h.cached, h.policy}
	})
}

func (h *hub) Has(of schema.GroupResource) bool {
	if of == profile.Policies().GroupResource() {
		return locked(h, func() bool { return h.policy != nil })
	}
	return of == deployments() && partOf(h.Assignment(web()), "here") != nil
}

func (h *hub) Tenant(of kcp.ClusterName) kcp.ClusterName { return of }

func (h *hub) Users(id ID) []ID {
	if id == settings() && h.Has(deployments()) {
		return []ID{web()}
	}
	return nil
}

func (h *hub) Read(context.Context, ID) (*unstructured.Unstructured, *workload.Assignment, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	return h.live()
}

func (h *hub) Dependency(context.Context, ID) (*unstructured.Unstructured, string, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.settings == nil {
		return nil, "does not exist", true, nil
	}
	return h.settings, "", false, nil
}

func (h *hub) Unused(context.Context, ID) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unused()
}

func (h *hub) Report(_ context.Context, _ ID, report *workload.TargetStatus) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report, h.said = report, append(h.said, report)
	return nil
}

// answer sets what the server says about web, and returns how often it was asked before.
func (h *hub) answer(w *unstructured.Unstructured, a *workload.Assignment, err error) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live = func() (*unstructured.Unstructured, *workload.Assignment, error) { return w, a, err }
	return h.reads
}

func (h *hub) asked() int { return locked(h, func() int { return h.reads }) }
