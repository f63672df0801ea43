package limits

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/etcd/space"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

const (
	// WholeClusterAnnotation makes a ResourceQuota in [WholeClusterNamespace] count the objects
	// of all namespaces, and those without a namespace.
	WholeClusterAnnotation = "experimental.quota.kcp.io/cluster-scoped"
	// WholeClusterNamespace is the namespace of such ResourceQuotas.
	WholeClusterNamespace = "admin"

	// maxQuotas is how many ResourceQuotas apply to one creation. Each costs time in every
	// creation, so the admission refuses more in one namespace.
	maxQuotas = 128

	// leastMargin and marginPart say how near a limit of objects is when one process has to
	// hold it: with a tenth of the limit left, or with this number of objects.
	leastMargin = 500
	marginPart  = 10
)

// ResourceQuotas is the resource of ResourceQuotas.
func ResourceQuotas() keys.Resource {
	return keys.Resource{Root: keys.Native, Resource: "resourcequotas"}
}

// A Quota is the part of a ResourceQuota that decides.
type Quota struct {
	Namespace, Name string
	// Whole is set if the quota counts the objects of the whole cluster.
	Whole bool
	Hard  []Hard
}

// A Hard is one limit of a quota.
type Hard struct {
	Name corev1.ResourceName
	quota.Demand
	// Counts is unset if nothing counts for the limit: it is about pods or volumes, or the
	// quota has a scope, which only pods and volumes have.
	Counts bool
	// limit is the quantity as it was written.
	limit string
}

// quotaOf returns the decisive part of a ResourceQuota.
func quotaOf(o runtime.Object) (Quota, error) {
	q, ok := o.(*core.ResourceQuota)
	if !ok {
		return Quota{}, fmt.Errorf("a ResourceQuota is a %T", o)
	}
	known := Quota{Namespace: q.Namespace, Name: q.Name, Whole: isWhole(q.Namespace, q.Annotations)}
	scoped := len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil
	for name, most := range q.Spec.Hard {
		gr, counts := counted(corev1.ResourceName(name))
		s := quota.Subject{GroupResource: gr, Namespace: q.Namespace}
		if known.Whole {
			s.Namespace = ""
		}
		known.Hard = append(known.Hard, Hard{Name: corev1.ResourceName(name), Demand: quota.Demand{Subject: s, Most: most.Value()}, Counts: counts && !scoped, limit: most.String()})
	}
	return known, nil
}

func isWhole(namespace string, annotations map[string]string) bool {
	return namespace == WholeClusterNamespace && annotations[WholeClusterAnnotation] == "true"
}

// counted returns the resource whose objects count for a limit. The short names are those of
// Kubernetes.
func counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	if of, ok := strings.CutPrefix(string(name), "count/"); ok {
		gr := schema.ParseGroupResource(of)
		return gr, gr.Resource != "" && !Uncounted(gr)
	}
	switch name {
	case corev1.ResourceConfigMaps, corev1.ResourceSecrets, corev1.ResourceServices, corev1.ResourceQuotas, corev1.ResourceReplicationControllers,
		corev1.ResourcePersistentVolumeClaims, corev1.ResourcePods:
		return schema.GroupResource{Resource: string(name)}, true
	default:
		return schema.GroupResource{}, false
	}
}

// Idle returns the limits of a ResourceQuota that have no effect, because they are not about numbers of objects, in order.
func Idle(q *core.ResourceQuota) (names []string) {
	for name := range q.Spec.Hard {
		if _, counts := counted(corev1.ResourceName(name)); !counts && !strings.HasPrefix(string(name), "count/") {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// Uncounted reports whether quotas ignore a resource, as they do in Kubernetes.
func Uncounted(gr schema.GroupResource) bool {
	return gr.Resource == "events" && (gr.Group == "" || gr.Group == "events.k8s.io")
}

// Quotas enforces ResourceQuotas in memory. A creation is admitted if the stored objects and the
// creations in flight are below the limit.
//
// Several processes on one etcd stay exact as follows. Near a limit, one process holds the quotas
// of the cluster: it has written the cluster's holder key, and its creations compare the revision
// of that key. To take over, another process writes the key, applies all changes up to that write,
// and counts again. Far from a limit, a creation compares the revision of the key that the feed had
// before the decision. If another process has taken over since, the write fails and is decided
// again. A single process reads and writes nothing for quotas.
type Quotas struct {
	store    *store.Store
	table    *feed.Table[Quota]
	counters *quota.Counters
	tenants  *quota.Tenants
	holders  holders
	// bounds returns the limits for writes in a cluster; nil until SetBounds.
	bounds func(cluster.Name) []quota.Bound
	above  func(cluster.Name) ([]cluster.Name, bool)

	// unseen is the revision of the last write of a quota or a LogicalCluster by a request to
	// this process, by cluster, until the feed has applied it.
	mu     sync.Mutex
	unseen map[cluster.Name]int64
	some   atomic.Bool // whether unseen has entries
}

// New enforces ResourceQuotas in a store from now on. It must be called before the feed starts.
func New(s *store.Store) *Quotas {
	q := &Quotas{store: s, counters: s.Tenants().Counters, tenants: s.Tenants(), unseen: map[cluster.Name]int64{}}
	q.holders.of = q
	s.Feed().Follow(&q.holders)
	q.table = feed.NewTable(s.Feed(), ResourceQuotas(), quotaOf).IndexBy(func(q Quota) []string {
		if q.Whole {
			return []string{""}
		}
		return []string{q.Namespace}
	})
	s.SetLimits(q)
	return q
}

// Table returns the quotas of all clusters.
func (q *Quotas) Table() *feed.Table[Quota] { return q.table }

// Wrote implements [store.Limits]. A quota that this process wrote, or a LogicalCluster with its
// limits, holds from now on.
func (q *Quotas) Wrote(k keys.Key, rev int64) {
	if k.Resource != ResourceQuotas() && (k.Root != keys.Custom || k.GroupResource() != logicalClusters) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unseen[k.Cluster] = rev
	q.some.Store(true)
}

// Current waits until the quotas that this process wrote are in the table.
func (q *Quotas) Current(ctx context.Context, c cluster.Name) error {
	if !q.some.Load() {
		return nil
	}
	in := []cluster.Name{c}
	if q.above != nil {
		above, _ := q.above(c)
		in = append(in, above...)
	}
	return q.store.Feed().WaitFor(ctx, q.newest(in))
}

// newest returns the newest revision that the table does not have yet of some clusters, 0 if
// it has all.
func (q *Quotas) newest(of []cluster.Name) int64 {
	applied := q.store.Feed().Revision()
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.unseen, func(_ cluster.Name, rev int64) bool { return rev <= applied })
	q.some.Store(len(q.unseen) > 0)
	var rev int64
	for _, c := range of {
		rev = max(rev, q.unseen[c])
	}
	return rev
}

// Counting returns the quotas of the namespace and of the whole cluster of an object.
func (q *Quotas) Counting(k keys.Key) []Quota {
	in := q.table.By("", k.Cluster)
	if k.Namespace != "" {
		in = append(in, q.table.By(k.Namespace, k.Cluster)...)
	}
	return in
}

// A limit is a demand with the error if it is refused.
type limit struct {
	quota.Demand
	exceeded func(used int64) error
}

// limits returns the limits for one more object.
func (q *Quotas) limits(k keys.Key) []limit {
	var all []limit
	for _, one := range q.Counting(k) {
		for _, h := range one.Hard {
			if !h.Counts || h.GroupResource != k.GroupResource() {
				continue
			}
			d := h.Demand
			d.Cluster, d.Margin = k.Cluster, max(leastMargin, h.Most/marginPart)
			all = append(all, limit{d, func(used int64) error { // the text of Kubernetes
				return fmt.Errorf("exceeded quota: %s, requested: %s=1, used: %s=%d, limited: %s=%s", one.Name, h.Name, h.Name, used, h.Name, h.limit)
			}})
		}
	}
	return all
}

// Counts reports whether the quota counts the objects of a resource.
func (q Quota) Counts(gr schema.GroupResource) bool {
	return slices.ContainsFunc(q.Hard, func(h Hard) bool { return h.Counts && h.GroupResource == gr })
}

// A charge is a write that quotas or limits count. It is nil without any.
type charge struct {
	*quota.Charge
	limits []limit
	key    keys.Key
}

// Charge implements [store.Limits].
func (q *Quotas) Charge(ctx context.Context, w store.SizedWrite) (context.Context, store.Charge, error) {
	ctx, c, err := q.charge(ctx, w)
	if c == nil { // it must not become an interface that is not nil
		return ctx, nil, err
	}
	return ctx, c, err
}

// charge admits a write, or returns a 403 Status. The returned context is that of the write. The charge is
// nil if no limit counts it.
func (q *Quotas) charge(ctx context.Context, w store.SizedWrite) (context.Context, *charge, error) {
	if w.Root == keys.System || w.Cluster.System() {
		return ctx, nil, nil
	}
	if err := q.Current(ctx, w.Cluster); err != nil {
		return ctx, nil, err
	}
	limits := q.all(w)
	if len(limits) == 0 {
		return ctx, nil, nil
	}
	seen := q.holders.seen(limits) // before the decision
	c, err := q.decide(ctx, w, !w.Creates)
	if err != nil || c == nil || !w.Creates || !q.store.Shared() {
		return ctx, reserved(c, w), err
	}
	on, err := q.holders.conditions(ctx, c, seen)
	if err != nil {
		c.Failed()
		return ctx, nil, err
	}
	return store.WithCondition(ctx, on...), c, nil
}

// reserved returns the charge of a creation. What an update adds is not reserved.
func reserved(c *charge, w store.SizedWrite) *charge {
	if !w.Creates {
		return nil
	}
	return c
}

// all returns the limits of quotas and of clusters for a write.
func (q *Quotas) all(w store.SizedWrite) []limit {
	all := q.bounded(w)
	if w.Creates {
		all = append(all, q.limits(w.Key)...)
	}
	return all
}

// decide admits a write. It refuses it only on fresh data: objects or quotas may have been
// deleted.
func (q *Quotas) decide(ctx context.Context, w store.SizedWrite, dry bool) (*charge, error) {
	c, err := q.reserve(ctx, w, dry)
	if apierrors.IsForbidden(err) && q.store.Feed().Fresh(ctx) {
		c, err = q.reserve(ctx, w, dry)
	}
	return c, err
}

// reserve admits a write. The charge is nil if nothing limits it.
func (q *Quotas) reserve(ctx context.Context, w store.SizedWrite, dry bool) (*charge, error) {
	for {
		c := &charge{key: w.Key, limits: q.all(w)}
		if len(c.limits) == 0 {
			return nil, nil
		}
		if len(c.limits) > maxQuotas {
			return nil, apierrors.NewForbidden(w.GroupResource(), w.Name, fmt.Errorf("more than %d quotas count it; delete some ResourceQuotas", maxQuotas))
		}
		demands := make([]quota.Demand, len(c.limits))
		for i, h := range c.limits {
			demands[i] = h.Demand
		}
		admitted, refused, unread := q.counters.Reserve(w.Path(), demands, dry)
		if c.Charge = admitted; refused != nil {
			return nil, c.exceeded(refused)
		}
		for _, d := range unread {
			if err := q.count(ctx, d.Cluster, d.Subject); err != nil {
				return nil, err
			}
		}
		if admitted != nil {
			return c, nil
		}
	}
}

// Check returns the error of the creation of an object now, without creating it.
func (q *Quotas) Check(ctx context.Context, k keys.Key) error {
	if err := q.Current(ctx, k.Cluster); err != nil {
		return err
	}
	_, err := q.decide(ctx, store.SizedWrite{Key: k, Creates: true, Exempt: space.ClearsUp(ctx)}, true)
	return err
}

// exceeded returns the error of a refused write.
func (c *charge) exceeded(r *quota.Refusal) error {
	return apierrors.NewForbidden(c.key.GroupResource(), c.key.Name, c.limits[r.Demand].exceeded(r.Used))
}

// Settle implements [store.Charge]. After an error of etcd the object may have been created: then
// the charge ends by itself.
func (c *charge) Settle(rev int64, err error) {
	var definite *apierrors.StatusError
	switch {
	case err == nil && rev > 0:
		c.Created(rev)
	case err == nil:
		c.Failed()
	case apierrors.IsTimeout(err): // etcd did not answer: it may have made the write
	case errors.As(err, &definite):
		c.Failed()
	}
}

// Used returns the number of stored objects of a subject. It does not read etcd for a resource of
// which the cluster has no objects.
func (q *Quotas) Used(ctx context.Context, c cluster.Name, s quota.Subject) (int64, error) {
	if q.store.Feed().Ledger().Named(c, s.GroupResource).Objects == 0 {
		return 0, nil
	}
	for {
		if n, ok := q.counters.Count(c, s); ok {
			return n, nil
		}
		if err := q.count(ctx, c, s); err != nil {
			return 0, err
		}
	}
}

// count reads the number of objects of a subject from etcd.
func (q *Quotas) count(ctx context.Context, c cluster.Name, s quota.Subject) error {
	counted := q.counters.Read(c, s)
	for {
		ranges := q.ranges(c, s)
		n, rev, err := q.store.CountBelow(ctx, ranges)
		if err != nil {
			return err
		}
		if err := q.store.Feed().Await(ctx, rev); err != nil {
			return err
		}
		if len(q.ranges(c, s)) != len(ranges) {
			continue // the first object of another identity was created meanwhile
		}
		counted(n, rev)
		return nil
	}
}

// ranges returns the prefixes of the keys of a subject, as [store.Store.CountBelow] takes them.
func (q *Quotas) ranges(c cluster.Name, s quota.Subject) []string {
	tail := "/" + string(c) + "/"
	if s.Namespace != "" {
		tail += s.Namespace + "/"
	}
	native := keys.NativeResource(s.GroupResource)
	all := []string{native.Prefix() + tail}
	for r := range q.store.Feed().Ledger().Of(c) {
		if r.Root != keys.System && r != native && r.GroupResource() == s.GroupResource {
			all = append(all, r.Prefix()+tail)
		}
	}
	return all
}

// Counted reports whether anything is counted for quotas of a cluster.
func (q *Quotas) Counted(c cluster.Name) bool { return q.counters.Tracked(c) }

// Forget frees the counters of a cluster that has no quota.
func (q *Quotas) Forget(c cluster.Name) {
	if len(q.table.List(c, "")) == 0 {
		q.counters.Drop(c)
		q.holders.drop(c)
	}
}
