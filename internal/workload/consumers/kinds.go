package consumers

import (
	"context"
	"maps"
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
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/profile"
)

// mostProfiles is the maximum of ResourceProfiles of a compute workspace. Each has a watch.
const mostProfiles = 50

// A Kind is a kind of objects of consumers, with the cache of them. Kinds of Kubernetes are there from the
// start, others come and go with their ResourceProfiles. The caches of dependencies are filled once something
// refers to one.
type Kind struct {
	profile.Profile
	Objects *kcp.Kind[*unstructured.Unstructured]
	Leaving atomic.Bool // its ResourceProfile is being deleted: no further object is placed

	begin  func() // begins to fill the cache, if nothing does
	end    context.CancelFunc
	ended  <-chan struct{} // closed by end
	failed chan struct{}   // closed when a list fails
	fail   func()          // closes it
}

// newKind returns a kind with an empty cache.
func (c *Cache) newKind(p profile.Profile) (*Kind, error) {
	k := &Kind{Profile: p, failed: make(chan struct{})}
	k.fail = sync.OnceFunc(func() { close(k.failed) })
	k.Objects = kcp.NewKind(p.Resource, c.lister(k), transform(p))
	err := k.Objects.Index(byRef, func(o *unstructured.Unstructured) (keys []string) {
		for _, id := range k.RefersTo(o) {
			keys = append(keys, refKey(id))
		}
		return keys
	})
	if err != nil {
		return nil, err
	}
	if p.Class == workload.Follows {
		err = k.Objects.Index(byNamespace, func(o *unstructured.Unstructured) []string { return []string{namespaceKey(kcp.KeyOf(o))} })
	}
	ctx := context.Background()
	ctx, k.end = context.WithCancel(ctx)
	k.ended = ctx.Done()
	k.begin = sync.OnceFunc(func() { c.run(ctx, k) })
	return k, err
}

// run fills the cache of a kind until ctx or the caches of all kinds end.
func (c *Cache) run(ctx context.Context, k *Kind) {
	both, end := context.WithCancel(c.ctx)
	context.AfterFunc(ctx, end)
	changed := c.changed
	if k.Class == profile.Dependency {
		changed = c.dependencyChanged
	}
	k.Objects.Wakes(func(o *unstructured.Unstructured) []kcp.Key { changed(k, o); return nil }).Subscribe(func(kcp.Key) {})
	c.work.Go(func() { k.Objects.Run(both); end() })
}

func (c *Cache) lister(k *Kind) cache.ListerWatcher {
	p := k.Profile
	of, selector := c.objectsIn.Resource(p.GroupVersionResource), ""
	if p.Class == profile.Dependency {
		// The cache leaves out the objects that engines never copy.
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
func transform(p profile.Profile) func(*unstructured.Unstructured) *unstructured.Unstructured {
	return func(o *unstructured.Unstructured) *unstructured.Unstructured {
		if p.Class != profile.Dependency {
			if p.IsRevision(o) {
				return slimRevision(o)
			}
			o = o.DeepCopy()
			o.SetManagedFields(nil)
			return o
		}
		slim := &unstructured.Unstructured{Object: map[string]any{}}
		slim.SetName(o.GetName())
		slim.SetNamespace(o.GetNamespace())
		slim.SetUID(o.GetUID())
		slim.SetResourceVersion(o.GetResourceVersion())
		slim.SetAnnotations(map[string]string{core.ClusterAnnotation: o.GetAnnotations()[core.ClusterAnnotation]})
		if secrets, ok := o.Object["imagePullSecrets"]; ok {
			slim.Object["imagePullSecrets"] = runtime.DeepCopyJSONValue(secrets)
		}
		return slim
	}
}

// slimRevision returns a revision of a Deployment without the template of its pods.
func slimRevision(o *unstructured.Unstructured) *unstructured.Unstructured {
	slim := &unstructured.Unstructured{Object: maps.Clone(o.Object)}
	replicas, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "replicas")
	slim.Object["spec"] = map[string]any{"replicas": replicas}
	slim = slim.DeepCopy()
	slim.SetManagedFields(nil)
	return slim
}

// startKinds fills the caches once they are needed, except those of dependencies: a compute workspace that
// has no consumers yet has none of them. Decisions wait until all kinds are known: what a workload of an unknown
// kind needs would look unused.
func (c *Cache) startKinds(settled func()) {
	ctx := c.ctx
	c.Placements.Wakes(func(*scheduling.Placement) []kcp.Key { c.need(); return nil }).Subscribe(func(kcp.Key) {})
	c.Assignments.Wakes(func(*workload.Assignment) []kcp.Key { c.need(); return nil }).Subscribe(func(kcp.Key) {})
	c.work.Go(func() {
		wait := []<-chan struct{}{c.needed, c.Assignments.Ready(), c.Reports.Ready(), c.Placements.Ready()}
		if !objects.Await(ctx, wait...) {
			return
		}
		c.work.Go(func() { c.Profiles.Run(ctx) })
		wait = []<-chan struct{}{c.Profiles.Ready()}
		for _, k := range c.Kinds() {
			if k.Class != profile.Dependency && profile.IsShipped(k.GroupResource()) {
				k.begin()
				wait = append(wait, k.Objects.Ready())
			}
		}
		if objects.Await(ctx, wait...) && c.awaitDescribed(ctx) {
			close(c.settled)
			settled()
		}
	})
}

// awaitDescribed adds the kinds that ResourceProfiles describe, and waits until their caches are complete. A kind
// that cannot be listed is known, and no reason to wait: the owner of the compute workspace may have made a mistake.
func (c *Cache) awaitDescribed(ctx context.Context) bool {
	for _, r := range c.Profiles.List(c.options.Compute) {
		if err := c.Describe(kcp.KeyOf(r)); err != nil {
			klog.FromContext(ctx).Error(err, "cannot follow the kind of a ResourceProfile", "cluster", c.options.Compute, "resource", r.Name)
		}
	}
	for _, k := range c.Kinds() {
		if k.Class == profile.Dependency || profile.IsShipped(k.GroupResource()) {
			continue
		}
		select {
		case <-k.Objects.Ready():
		case <-k.failed:
		case <-k.ended: // its profile changed
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// DescribeAll adds the kinds that ResourceProfiles describe now, with empty caches.
func (c *Cache) DescribeAll(ctx context.Context) error {
	all, err := c.profilesIn.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items[:min(len(all.Items), mostProfiles)] {
		next := profile.Of(&all.Items[i])
		if c.Kind(next.GroupResource()) != nil {
			continue // of Kubernetes
		}
		k, err := c.newKind(next)
		if err != nil {
			return err
		}
		c.kindsMu.Lock()
		c.kinds = append(slices.Clone(c.kinds), k)
		c.kindsMu.Unlock()
	}
	return nil
}

// Describe adds or removes the kind that a ResourceProfile describes. One that is being deleted stays in effect.
func (c *Cache) Describe(key kcp.Key) error {
	of := schema.ParseGroupResource(key.Name)
	if profile.IsShipped(of) {
		return nil
	}
	c.describing.Lock()
	defer c.describing.Unlock()
	var next *Kind
	if r, have := c.Profiles.Get(key), c.Kind(of); r != nil && (have != nil || len(c.Kinds()) < mostProfiles+len(profile.Shipped())) {
		if have != nil && sameProfile(have.Profile, profile.Of(r)) {
			return nil
		}
		var err error
		if next, err = c.newKind(profile.Of(r)); err != nil {
			return err
		}
	}
	c.kindsMu.Lock()
	kinds := slices.DeleteFunc(slices.Clone(c.kinds), func(k *Kind) bool {
		if k.GroupResource() != of {
			return false
		}
		k.end()
		return true
	})
	if next != nil {
		kinds = append(kinds, next)
	}
	c.kinds = kinds
	c.kindsMu.Unlock()
	if next != nil {
		next.begin()
	}
	c.tellAgents("", engine.ID{GroupResource: resourceProfiles().GroupResource(), Key: key})
	return nil
}

// Kinds returns all kinds.
func (c *Cache) Kinds() []*Kind {
	c.kindsMu.RLock()
	defer c.kindsMu.RUnlock()
	return c.kinds
}

// Kind returns the kind of a resource, nil if there is none.
func (c *Cache) Kind(of schema.GroupResource) *Kind {
	for _, k := range c.Kinds() {
		if k.Resource == of.Resource && k.Group == of.Group {
			return k
		}
	}
	return nil
}

// In returns the keys of the objects in the namespace of a key. Only kinds of the class Follows have an index of
// namespaces.
func (k *Kind) In(namespace kcp.Key) []kcp.Key {
	return k.Objects.By(byNamespace, namespaceKey(namespace))
}

// Each calls wake with the tasks of all objects of a logical cluster that may have Assignments.
func (c *Cache) Each(cluster kcp.ClusterName, wake func(kcp.Key)) {
	for _, k := range c.Kinds() {
		if k.Class == profile.Dependency {
			continue
		}
		for _, o := range k.Objects.List(cluster) {
			wake(engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(o)}.Task())
		}
	}
}

func sameProfile(a, b profile.Profile) bool {
	return a.GroupVersionResource == b.GroupVersionResource && a.Class == b.Class && a.Conditions == b.Conditions &&
		slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.Template, b.Template) && slices.Equal(a.Counters, b.Counters)
}
