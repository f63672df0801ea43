// Package engine is the agent that works on one physical cluster. It applies the parts of
// workloads that the target is assigned, and the objects that they refer to, reports about
// them, and removes them. It hides how objects of many workspaces share a physical cluster.
//
// It never changes an object that it did not create or adopt, and it removes one only after the
// server said that its workload is gone, or that the target has no part of it any more. It watches a
// kind in the physical cluster only while the target has an object of that kind.
package engine

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/profile"
)

const (
	// manager is the field manager of the agent in physical clusters.
	manager = "kcp-syncer"

	soon  = time.Second
	later = 30 * time.Second
)

func namespaces() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
}

// An Engine syncs workloads with one physical cluster.
type Engine struct {
	key     string // of the target
	desired Desired
	client  dynamic.Interface
	swept   chan struct{} // closed when it is known which kinds the physical cluster has

	mu     sync.Mutex
	made   map[string]bool // namespaces that are known to be the engine's; guarded by mu
	shelf  map[schema.GroupResource]*holding
	counts *tally
	wake   func(kcp.Key) // wakes the loop; guarded by mu
	ended  func()        // waits for the loop; nil before Start; guarded by mu
	lease  lease
	ctx    context.Context
	work   sync.WaitGroup // of holdings
}

// New returns an engine for the target with the given key. Config is for the physical cluster. Bound
// limits the objects of several targets together; nil means no further limit.
func New(key string, config *rest.Config, desired Desired, bound *Bound) (*Engine, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Engine{key: key, desired: desired, client: client, swept: make(chan struct{}),
		made: map[string]bool{}, shelf: map[schema.GroupResource]*holding{}, counts: &tally{most: mostObjects, bound: bound, of: map[kcp.ClusterName]int{}}}, nil
}

// Limit sets the maximum of objects in the physical cluster. Call it before Sweep.
func (e *Engine) Limit(most int) { e.counts.most = most }

// Sweep finds the objects in the physical cluster, and begins to watch their kinds. All work of
// the engine ends with ctx. If ctx ended before, the error says why it took so long.
func (e *Engine) Sweep(ctx context.Context) error {
	e.ctx = ctx
	return e.sweep(ctx)
}

// Start begins to sync, until the context of Sweep ends. The engine uses no goroutine while it has
// nothing to do and watches nothing.
func (e *Engine) Start() {
	ended := kcp.Start(e.ctx, kcp.Loop{
		Name: "workload-sync",
		On: []kcp.Source{
			e.source(),
			e.desired.Wakes(),
		},
		Do:      e.sync,
		Workers: 8,
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = ended
}

// Wait waits until all goroutines of the engine have ended. Start must not be called any more.
func (e *Engine) Wait() {
	e.mu.Lock()
	ended := e.ended
	e.mu.Unlock()
	if ended != nil {
		ended()
	}
	e.work.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.shelf {
		e.counts.drop(h)
	}
	clear(e.shelf)
}

// Run sweeps and syncs until ctx ends, and returns when all goroutines of the engine have ended.
func (e *Engine) Run(ctx context.Context) {
	e.ctx = ctx
	e.work.Go(func() { _ = e.sweep(ctx) }) // it ends with ctx
	e.Start()
	e.Wait()
}

// A job is the work on one object.
type job struct {
	*Engine
	*holding
	profile *profile.Profile // as it is now
	id      ID
	from    Locator
	want    *object                  // in the workspace; nil if there is none
	part    *workload.AssignedTarget // of this target; nil if it has none
	how     *workload.AssignmentSpec // nil if there is no Assignment of this object
	have    *object                  // in the physical cluster, without its content; nil if there is none
	report  *workload.TargetStatus   // the last one; nil if there is none
}

// reason is a word that says why something is not applied, with an explanation.
type reason struct{ word, text string }

func (e *Engine) sync(ctx context.Context, task kcp.Key) error {
	id := IDOf(task)
	p := e.desired.Profile(id.GroupResource)
	if p == nil {
		return nil
	}
	j := &job{Engine: e, profile: p, id: id, from: Locator{Cluster: string(id.Key.Cluster), Namespace: id.Key.Namespace, Target: e.key}}
	j.holding = e.hold(p)
	if j.holding == nil {
		return nil // the engine ends
	}
	defer e.release(j.holding)
	ctx, done := answers.Keep(ctx)
	defer done()
	if p.Class == profile.Dependency {
		return j.follow(ctx)
	}
	return j.place(ctx)
}

// place syncs an object that has an Assignment.
func (j *job) place(ctx context.Context) error {
	j.want, j.report = j.desired.Workload(j.id), j.desired.Status(j.id)
	j.assign(j.desired.Assignment(j.id))
	leaves := j.want == nil || j.part == nil || j.part.Phase == workload.Removing
	if why := j.await(ctx); why != nil {
		if leaves {
			return j.blindly(ctx, why)
		}
		return j.refuse(ctx, *why)
	}
	j.have = j.holding.get(j.from, j.id.Key.Name)
	if j.have != nil && !owned(j.have, j.from) {
		j.have = nil // one that was released; the physical cluster is asked before anything is written
	}
	if j.have != nil {
		j.keepNamespace()
	}
	if leaves {
		return j.remove(ctx)
	}
	return j.apply(ctx)
}

// assign takes the part of the target from an Assignment.
func (j *job) assign(a *workload.Assignment) {
	j.part, j.how = nil, nil
	// The Assignment of a deleted workload of the same name does not count.
	if a == nil || j.want != nil && a.Spec.Workload.UID != string(j.want.GetUID()) {
		return
	}
	j.how = &a.Spec
	for i := range a.Spec.Targets {
		if a.Spec.Targets[i].Key == j.Engine.key {
			j.part = &a.Spec.Targets[i]
		}
	}
}

func (j *job) objects() dynamic.ResourceInterface {
	return j.client.Resource(j.profile.GroupVersionResource).Namespace(j.from.namespace())
}

// read reads the object from the physical cluster, which may have one that the engine does not
// watch. It returns nil if there is none.
func (j *job) read(ctx context.Context) (*object, error) {
	o, err := j.objects().Get(ctx, j.id.Key.Name, metav1.GetOptions{})
	if gone(err) {
		return nil, nil
	}
	return o, err
}
