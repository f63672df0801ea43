package feed

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Usage is the amount of a resource in a cluster.
type Usage struct {
	Objects int64
	Bytes   int64 // of the stored values
}

// The Ledger has exact counts of the objects and bytes of every cluster, without fences.
// Methods may be called concurrently.
type Ledger struct {
	mu       sync.RWMutex
	now      *books
	building *books // during a rebuild, else nil
	tenants  *quota.Tenants
	awaiting map[*awaiting]struct{}
}

// An awaiting is a function to call once when objects of a resource exist.
type awaiting struct {
	schema.GroupResource
	f func()
}

// books are the entries of each cluster, which refer to resources by number. A resource
// without objects has no number: over time clusters use any number of names of resources.
type books struct {
	clusters shrink.Map[cluster.Name, []entry]
	numbers  shrink.Map[keys.Resource, int32]
	of       []tallied // by number
	free     []int32   // numbers without a resource
}

// A tallied resource has entries in a number of clusters, with some bytes in total.
type tallied struct {
	keys.Resource
	clusters int
	bytes    int64
}

// An entry is the usage of one resource. A cluster has few resources, so a slice is
// smaller than a map, and quick enough to search.
type entry struct {
	resource int32
	objects  int32
	bytes    int64
}

func newLedger(t *quota.Tenants) *Ledger {
	return &Ledger{now: &books{}, tenants: t, awaiting: map[*awaiting]struct{}{}}
}

// Await calls f once, as soon as any cluster has an object of a group and resource, of any identity.
// The ledger is locked during the call, so f must not block. After forget has returned, f is not
// called.
func (l *Ledger) Await(gr schema.GroupResource, f func()) (forget func()) {
	a := &awaiting{gr, f}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaiting[a] = struct{}{}
	l.announceAll()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.awaiting, a)
	}
}

// announce calls the functions that await a resource. The caller holds mu.
func (l *Ledger) announce(gr schema.GroupResource) {
	for a := range l.awaiting {
		if a.GroupResource == gr {
			delete(l.awaiting, a)
			a.f()
		}
	}
}

// announceAll calls the functions that await a resource that exists. The caller holds mu.
func (l *Ledger) announceAll() {
	if len(l.awaiting) == 0 {
		return
	}
	for r := range l.now.numbers.All() {
		l.announce(r.GroupResource())
	}
}

// Of returns the usage of a cluster, by resource.
func (l *Ledger) Of(c cluster.Name) map[keys.Resource]Usage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	entries, _ := l.now.clusters.Get(c)
	all := make(map[keys.Resource]Usage, len(entries))
	for _, e := range entries {
		all[l.now.of[e.resource].Resource] = Usage{Objects: int64(e.objects), Bytes: e.bytes}
	}
	return all
}

// Usage returns the usage of a resource in a cluster.
func (l *Ledger) Usage(c cluster.Name, r keys.Resource) Usage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if i, ok := l.now.numbers.Get(r); ok {
		entries, _ := l.now.clusters.Get(c)
		for _, e := range entries {
			if e.resource == i {
				return Usage{Objects: int64(e.objects), Bytes: e.bytes}
			}
		}
	}
	return Usage{}
}

// Named returns the usage of a group and resource in a cluster, with all identities.
func (l *Ledger) Named(c cluster.Name, gr schema.GroupResource) Usage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var u Usage
	entries, _ := l.now.clusters.Get(c)
	for _, e := range entries {
		if r := l.now.of[e.resource]; r.GroupResource() == gr {
			u.Objects, u.Bytes = u.Objects+int64(e.objects), u.Bytes+e.bytes
		}
	}
	return u
}

// Bytes returns the bytes of a resource in all clusters.
func (l *Ledger) Bytes(r keys.Resource) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i, ok := l.now.numbers.Get(r)
	if !ok {
		return 0
	}
	return l.now.of[i].bytes
}

// A Count is the usage of one resource in one cluster.
type Count struct {
	Cluster  cluster.Name
	Resource keys.Resource
	Usage
}

// Identified returns the counts of all resources that come from exports.
func (l *Ledger) Identified() []Count {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var all []Count
	for c, entries := range l.now.clusters.All() {
		for _, e := range entries {
			if r := l.now.of[e.resource].Resource; r.Identity != "" {
				all = append(all, Count{c, r, Usage{Objects: int64(e.objects), Bytes: e.bytes}})
			}
		}
	}
	return all
}

// Clusters returns the number of clusters that store anything.
func (l *Ledger) Clusters() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.now.clusters.Len()
}

func (l *Ledger) reset() {
	l.tenants.Reset()
	l.tenants.Counters.Reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.building = &books{}
}

func (l *Ledger) swap() {
	l.tenants.Swap()
	l.tenants.Counters.Reset() // an existing object looked like a new one meanwhile
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.building = l.building, nil
	l.announceAll()
}

func (l *Ledger) apply(e Event) {
	var objects int32
	switch {
	case e.Deleted():
		objects = -1
	case e.Previous == nil:
		objects = 1
	}
	charge := l.charge(e, countedObjects(e.Key, int64(objects)))
	// What is stored and what is only admitted change at once.
	l.tenants.Counters.Changed(quota.Change{
		Cluster: e.Key.Cluster, Resource: e.Key.GroupResource(), Namespace: e.Key.Namespace, Revision: e.Revision, Objects: int64(objects), Key: e.Key.Path,
	}, charge)
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.now
	if l.building != nil {
		to = l.building
	}
	to.add(e.Key.Cluster, e.Key.Resource, objects, int64(len(e.Value)-len(e.Previous)))
	if objects > 0 && l.building == nil {
		l.announce(e.Key.GroupResource())
	}
}

// charge returns a function that counts objects, and the bytes of an event, for tenants.
func (l *Ledger) charge(e Event, objects int64) func() {
	if e.Key.Cluster != cluster.BoundDefinitions {
		return func() { l.tenants.Changed(e.Key.Cluster, objects, int64(len(e.Value)-len(e.Previous))) }
	}
	now, before := payer(e, e.Value), payer(e, e.Previous)
	return func() {
		l.tenants.Changed(e.Key.Cluster, objects, 0)
		l.tenants.Changed(now, 0, int64(len(e.Value)))
		l.tenants.Changed(before, 0, -int64(len(e.Previous)))
	}
}

// payer returns the cluster for whose tenant a value of the definition of a schema counts. The
// definition is in a cluster of the server, and may live longer than the schema and its cluster.
func payer(e Event, value []byte) cluster.Name {
	var o struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if value == nil || e.kinds.Unmarshal(context.Background(), e.Key, value, &o) != nil {
		return e.Key.Cluster
	}
	c, err := cluster.ParseName(o.Metadata.Annotations[apisv1alpha2.SchemaTenantAnnotation])
	if err != nil {
		return e.Key.Cluster // an older server has made it
	}
	return c
}

// countedObjects returns the number of objects that limits count. Events expire by themselves.
func countedObjects(k keys.Key, n int64) int64 {
	if k.Root == keys.System || k.Root == keys.Native && k.Resource.Resource == "events" {
		return 0
	}
	return n
}

// add adds to the entry of a resource in a cluster. It drops an entry without objects.
func (b *books) add(c cluster.Name, r keys.Resource, objects int32, bytes int64) {
	i, ok := b.numbers.Get(r)
	if !ok {
		i = b.number(r)
	}
	entries, _ := b.clusters.Get(c)
	at := slices.IndexFunc(entries, func(e entry) bool { return e.resource == i })
	if at < 0 {
		at = len(entries)
		entries = append(entries, entry{resource: i})
		b.of[i].clusters++
	}
	e := &entries[at]
	e.objects += objects
	e.bytes += bytes
	b.of[i].bytes += bytes
	if e.objects == 0 {
		b.of[i].bytes -= e.bytes
		entries[at] = entries[len(entries)-1]
		entries = entries[:len(entries)-1]
		b.release(i)
	}
	if len(entries) == 0 {
		b.clusters.Drop(c)
		return
	}
	b.clusters.Put(c, entries)
}

// number assigns a number to a resource.
func (b *books) number(r keys.Resource) int32 {
	i := int32(len(b.of))
	if last := len(b.free) - 1; last >= 0 {
		i, b.free = b.free[last], b.free[:last]
		b.of[i] = tallied{Resource: r}
	} else {
		b.of = append(b.of, tallied{Resource: r})
	}
	b.numbers.Put(r, i)
	return i
}

// release removes an entry of a resource, and frees its number with the last entry.
func (b *books) release(i int32) {
	if b.of[i].clusters--; b.of[i].clusters > 0 {
		return
	}
	b.numbers.Drop(b.of[i].Resource)
	b.of[i] = tallied{}
	b.free = append(b.free, i)
}

// Objects returns the number of objects of a resource in a cluster.
func (l *Ledger) Objects(c cluster.Name, r keys.Resource) int64 { return l.Usage(c, r).Objects }

// Resources returns the stored resources, in the order of their keys, without those of the
// server itself.
func (l *Ledger) Resources() []keys.Resource {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var all []keys.Resource
	for r := range l.now.numbers.All() {
		if r.Root != keys.System {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b keys.Resource) int { return cmp.Compare(a.Prefix(), b.Prefix()) })
	return all
}
