package fleet

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A kind is a kind of objects of consumers, with the cache of them.
type kind struct {
	profile.Profile
	objects *kcp.Kind[*unstructured.Unstructured]
	begin   func() // begins to fill the cache, if nothing does
	end     context.CancelFunc
	ended   <-chan struct{} // closed by end
	failed  chan struct{}   // closed when a list fails
	leaving atomic.Bool     // its ResourceProfile is being deleted: no further object is placed
	fail    func()          // closes it
}

// A kindTable has the kinds of a fleet. Those of Kubernetes are there from the start, others come and
// go with their ResourceProfiles. The caches of dependencies are filled once something refers to one.
type kindTable struct {
	fleet   *fleet
	all     dynamic.Interface // of the consumers
	needed  chan struct{}     // closed when there is a consumer, or a physical cluster has objects
	need    func()            // closes it
	settled chan struct{}     // closed when all caches that decisions need are complete
	own     *kcp.Kind[*workload.ResourceProfile]
	// described reads the same from the server.
	described *profileClient

	profiling sync.Mutex // held while a kind is added or removed

	mu    sync.RWMutex
	kinds []*kind // replaced, not changed; guarded by mu
}

// Indexes of objects of consumers.
const (
	byRef = "ref" // by what they refer to
	// byNamespace is also an index of objects that follow.
)

func refKey(id engine.ID) string {
	return namespaceKey(id.Key) + "/" + id.Resource + "/" + id.Key.Name
}

// init makes the kinds, with the objects of one consumer or of all ("*").
func (t *kindTable) init(f *fleet, consumers string) (err error) {
	t.fleet, t.settled, t.needed = f, make(chan struct{}), make(chan struct{})
	t.need = sync.OnceFunc(func() { close(t.needed) })
	if t.all, err = dynamic.NewForConfig(client.Cluster(f.view, consumers)); err != nil {
		return err
	}
	for _, p := range slices.Concat(profile.Shipped(), profile.Dependencies()) {
		k, err := t.newKind(p)
		if err != nil {
			return err
		}
		t.kinds = append(t.kinds, k)
	}
	if t.described, err = f.profilesOf(f.compute); err != nil {
		return err
	}
	t.own = kindOf("resourceprofiles", t.described)
	return nil
}

// describe adds the kinds that ResourceProfiles describe now, with empty caches.
func (t *kindTable) describe(ctx context.Context) error {
	all, err := t.described.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items[:min(len(all.Items), mostProfiles)] {
		next := profile.Of(&all.Items[i])
		if t.get(next.GroupResource()) != nil {
			continue // of Kubernetes
		}
		k, err := t.newKind(next)
		if err != nil {
			return err
		}
		t.kinds = append(t.kinds, k)
	}
	return nil
}

// newKind returns a kind with an empty cache.
func (t *kindTable) newKind(p profile.Profile) (*kind, error) {
	k := &kind{Profile: p, failed: make(chan struct{})}
	k.fail = sync.OnceFunc(func() { close(k.failed) })
	k.objects = kcp.NewKind(p.Resource, t.lister(k), t.transform(p))
	err := k.objects.Index(byRef, func(o *unstructured.Unstructured) (keys []string) {
		for _, id := range refsOf(k, o) {
			keys = append(keys, refKey(id))
		}
		return keys
	})
	if err != nil {
		return nil, err
	}
	if p.Class == workload.Follows {
		err = k.objects.Index(byNamespace, func(o *unstructured.Unstructured) []string { return []string{namespaceKey(kcp.KeyOf(o))} })
	}
	ctx := context.Background()
	ctx, k.end = context.WithCancel(ctx)
	k.ended = ctx.Done()
	k.begin = sync.OnceFunc(func() { t.run(ctx, k) })
	return k, err
}

// run fills the cache of a kind until ctx or the fleet ends.
func (t *kindTable) run(ctx context.Context, k *kind) {
	f := t.fleet
	both, end := context.WithCancel(f.ctx)
	context.AfterFunc(ctx, end)
	changed := f.changed
	if k.Class == profile.Dependency {
		changed = f.dependencyChanged
	}
	k.objects.Wakes(func(o *unstructured.Unstructured) []kcp.Key { changed(k, o); return nil }).Subscribe(func(kcp.Key) {})
	f.term.work.Go(func() { k.objects.Run(both); end() })
}

func (t *kindTable) lister(k *kind) cache.ListerWatcher {
	p := k.Profile
	of, selector := t.all.Resource(p.GroupVersionResource), ""
	if p.Class == profile.Dependency {
		// Those that are never copied are not kept either.
		selector = map[string]string{
			"configmaps":      fields.OneTermNotEqualSelector(metav1.ObjectNameField, "kube-root-ca.crt").String(),
			"secrets":         fields.OneTermNotEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String(),
			"serviceaccounts": fields.OneTermNotEqualSelector(metav1.ObjectNameField, "default").String(),
		}[p.Resource]
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			all, err := of.List(ctx, o)
			if err != nil {
				k.fail()
				return nil, err
			}
			return all, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return of.Watch(ctx, o)
		},
	}
}

// transform returns what a cache keeps of an object: of dependencies little more than their names.
func (t *kindTable) transform(p profile.Profile) func(*unstructured.Unstructured) *unstructured.Unstructured {
	return func(o *unstructured.Unstructured) *unstructured.Unstructured {
		if p.Class != profile.Dependency {
			o = o.DeepCopy()
			o.SetManagedFields(nil)
			return o
		}
		slim := &unstructured.Unstructured{Object: map[string]any{}}
		slim.SetName(o.GetName())
		slim.SetNamespace(o.GetNamespace())
		slim.SetUID(o.GetUID())
		slim.SetResourceVersion(o.GetResourceVersion())
		slim.SetAnnotations(map[string]string{clusterAnnotation: o.GetAnnotations()[clusterAnnotation]})
		if secrets, ok := o.Object["imagePullSecrets"]; ok {
			slim.Object["imagePullSecrets"] = runtime.DeepCopyJSONValue(secrets)
		}
		return slim
	}
}

// start fills the caches once they are needed, except those of dependencies: a compute workspace that
// has no consumers yet has none of them. Decisions wait until all kinds are known: what a workload of an unknown
// kind needs would look unused.
func (t *kindTable) start() {
	f, ctx := t.fleet, t.fleet.ctx
	f.placements.Wakes(func(*scheduling.Placement) []kcp.Key { t.need(); return nil }).Subscribe(func(kcp.Key) {})
	f.assignments.Wakes(func(*workload.Assignment) []kcp.Key { t.need(); return nil }).Subscribe(func(kcp.Key) {})
	f.term.work.Go(func() {
		wait := []<-chan struct{}{t.needed, f.assignments.Ready(), f.reports.Ready(), f.placements.Ready()}
		if !await(ctx, wait...) {
			return
		}
		f.term.work.Go(func() { t.own.Run(ctx) })
		wait = []<-chan struct{}{t.own.Ready()}
		for _, k := range t.list() {
			if k.Class != profile.Dependency && isShipped(k.GroupResource()) {
				k.begin()
				wait = append(wait, k.objects.Ready())
			}
		}
		if await(ctx, wait...) && t.awaitDescribed(ctx) {
			close(t.settled)
			f.probeAll() // engines that waited for it start
		}
	})
}

// awaitDescribed adds the kinds that ResourceProfiles describe, and waits until their caches are complete. A kind
// that cannot be listed is known, and no reason to wait: the owner of the compute workspace may have made a mistake.
func (t *kindTable) awaitDescribed(ctx context.Context) bool {
	for _, r := range t.own.List(t.fleet.compute) {
		if err := t.fleet.describe(kcp.KeyOf(r)); err != nil {
			klog.FromContext(ctx).Error(err, "cannot follow the kind of a ResourceProfile", "cluster", t.fleet.compute, "resource", r.Name)
		}
	}
	for _, k := range t.list() {
		if k.Class == profile.Dependency || isShipped(k.GroupResource()) {
			continue
		}
		select {
		case <-k.objects.Ready():
		case <-k.failed:
		case <-k.ended: // its profile changed
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// await waits until all channels are closed. It reports false if ctx ends before.
func await(ctx context.Context, all ...<-chan struct{}) bool {
	for _, c := range all {
		select {
		case <-c:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (t *kindTable) list() []*kind {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.kinds
}

// get returns the kind of a resource, nil if there is none.
func (t *kindTable) get(of schema.GroupResource) *kind {
	for _, k := range t.list() {
		if k.Resource == of.Resource && k.Group == of.Group {
			return k
		}
	}
	return nil
}

func (t *kindTable) profiles() (all []profile.Profile) {
	for _, k := range t.list() {
		all = append(all, k.Profile)
	}
	return all
}

// each calls wake with the tasks of all objects of a logical cluster that have Assignments.
func (t *kindTable) each(cluster kcp.ClusterName, wake func(kcp.Key)) {
	for _, k := range t.list() {
		if k.Class == profile.Dependency {
			continue
		}
		for _, o := range k.objects.List(cluster) {
			wake(engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(o)}.Task())
		}
	}
}

// isShipped reports whether a kind is one of Kubernetes.
func isShipped(of schema.GroupResource) bool {
	return slices.ContainsFunc(slices.Concat(profile.Shipped(), profile.Dependencies()), func(p profile.Profile) bool { return p.GroupResource() == of })
}

func sameProfile(a, b profile.Profile) bool {
	return a.GroupVersionResource == b.GroupVersionResource && a.Class == b.Class && a.Conditions == b.Conditions &&
		slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.Template, b.Template) && slices.Equal(a.Counters, b.Counters)
}
