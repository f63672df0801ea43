package garbage

import (
	"context"
	"errors"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// unservedRetry is the retry interval for kinds that a cluster does not serve. It is long
// because changes of the APIs of a cluster wake the waiting objects.
const unservedRetry = 5 * time.Minute

// unreadableRetry is the retry interval of deletions that wait until an object can be read.
const unreadableRetry = 5 * time.Second

// maxSearches limits the searches for one owner in all namespaces. A search results only in an
// event, and etcd reads all objects of a resource in the cluster for it. So there is no search in
// more than maxSearched bytes, or for dependents with many owners.
const (
	maxSearches = 8
	maxSearched = 4 << 20
)

var (
	// errUnserved means that the cluster does not serve the kind of an object or of one of
	// its owners, so it is unknown whether the owner exists.
	errUnserved = errors.New("kind is not served")
	// errNamespaced means that an object without a namespace references a namespaced
	// owner. Such objects are never collected.
	errNamespaced = errors.New("an object without a namespace has a namespaced owner")
)

// do checks one object, or the UID of an unknown owner.
func (g *Collector) do(ctx context.Context, id objectID) error {
	g.mu.Lock()
	l, ok := g.graph.look(id)
	if g.unserved[id.cluster] == nil {
		g.unserved[id.cluster] = map[objectID]struct{}{}
	}
	g.unserved[id.cluster][id] = struct{}{} // during the check, so that it misses no change of APIs
	g.mu.Unlock()
	err := g.lookAt(ctx, l, ok)
	if errors.Is(err, errUnserved) {
		return control.After(unservedRetry)
	}
	g.mu.Lock()
	if delete(g.unserved[id.cluster], id); len(g.unserved[id.cluster]) == 0 {
		delete(g.unserved, id.cluster)
	}
	g.mu.Unlock()
	return err
}

func (g *Collector) lookAt(ctx context.Context, l look, known bool) error {
	if !known {
		return nil
	}
	all, err := g.settle(ctx, l)
	if err == nil && l.at != (place{}) {
		err = g.collect(ctx, l)
	}
	if err == nil && !all {
		return errUnserved
	}
	return err
}

// settle checks the claims to an owner. It reports whether the cluster serves the kinds of
// all claims.
func (g *Collector) settle(ctx context.Context, l look) (all bool, err error) {
	all = true
	searches := maxSearches
	for _, c := range l.unsettled {
		found, at, err := g.examine(ctx, l, c, &searches)
		if err != nil {
			return false, err
		}
		all = all && found != unserved
		g.change(func() { g.graph.settle(l.id, l.seen, c, found, at) })
	}
	return all, nil
}

// examine checks one claim. It returns the place of the owner, also if the owner is in
// another namespace than claimed.
func (g *Collector) examine(ctx context.Context, l look, c claim, searches *int) (verdict, place, error) {
	kind, ok := g.kind(ctx, l.id.cluster, c.apiVersion, c.kind)
	if !ok {
		return unserved, place{}, nil
	}
	claimed := ownerKey(l.id.cluster, kind, c.namespace, c.name)
	if l.at != (place{}) {
		if l.at == placeOf(claimed) {
			return held, l.at, nil
		}
		return wrong, l.at, nil
	}
	m, rev, err := g.store.Metadata(ctx, claimed)
	if err != nil {
		return 0, place{}, err
	}
	if rev != 0 && m.UID == l.id.uid {
		return held, placeOf(claimed), nil
	}
	if *searches--; !kind.Namespaced || *searches < 0 || !l.sought || g.store.Feed().Ledger().Usage(l.id.cluster, kind.Stored).Bytes > maxSearched {
		return wrong, place{}, nil
	}
	// The owner may be in another namespace. An event about the dependent reports that.
	named, err := g.store.KeysNamed(ctx, kind.Stored, l.id.cluster, c.name)
	if err != nil {
		return 0, place{}, err
	}
	for _, k := range named {
		if m, rev, err = g.store.Metadata(ctx, k); err != nil {
			return 0, place{}, err
		}
		if rev != 0 && m.UID == l.id.uid {
			return wrong, placeOf(k), nil
		}
	}
	return wrong, place{}, nil
}

// kind returns how a cluster serves a kind. Before it returns false it waits for current
// definitions.
func (g *Collector) kind(ctx context.Context, c cluster.Name, apiVersion, kind string) (catalog.Kind, bool) {
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	k, ok := g.kinds.Find(c, gvk)
	if !ok && g.store.Feed().Fresh(ctx) {
		k, ok = g.kinds.Find(c, gvk)
	}
	return k, ok
}

func ownerKey(c cluster.Name, kind catalog.Kind, namespace, name string) keys.Key {
	if !kind.Namespaced {
		namespace = ""
	}
	return keys.Key{Resource: kind.Stored, Cluster: c, Namespace: namespace, Name: name}
}

// collect removes finalizers of an object whose dependents are done, and collects the object
// if it has owners.
func (g *Collector) collect(ctx context.Context, l look) error {
	key := l.at.key(l.id.cluster)
	kind, ok := g.kinds.StoredAs(key.Cluster, key.Resource)
	if !ok && g.store.Feed().Fresh(ctx) {
		kind, ok = g.kinds.StoredAs(key.Cluster, key.Resource)
	}
	if !ok {
		return errUnserved
	}
	o := object{key: key, uid: l.id.uid, kind: kind, of: g}
	unknown, blocked := g.unreadable(key.Cluster)
	if blocked && (l.orphaning && l.dependents == 0 || l.foreground && l.blocking == 0) {
		klog.FromContext(ctx).Info("Deletion waits: an unreadable object may be a dependent", "deleting", key.String(), "unreadable", unknown.String())
		return control.After(unreadableRetry)
	}
	if l.orphaning && l.dependents == 0 {
		if err := o.removeFinalizer(ctx, metav1.FinalizerOrphanDependents); err != nil {
			return err
		}
	}
	if l.foreground && l.blocking == 0 {
		if err := o.removeFinalizer(ctx, metav1.FinalizerDeleteDependents); err != nil {
			return err
		}
	}
	if !l.owned {
		return nil
	}
	return g.collectOwned(ctx, o, l)
}

// collectOwned deletes an object, or removes owner references from it, as its owners
// require. It reads the stored object and owners, as the graph may be stale.
func (g *Collector) collectOwned(ctx context.Context, o object, l look) error {
	live, version, err := o.read(ctx)
	if err != nil || version == 0 || len(live.Owners) == 0 {
		return err
	}
	reported := g.reportMisplaced(ctx, o) // an error does not stop the collection
	return errors.Join(g.collectLive(ctx, o, l, live, version), reported)
}

func (g *Collector) collectLive(ctx context.Context, o object, l look, live values.Metadata, version int64) error {
	if len(l.leaving) > 0 && live.Deleting {
		return o.release(ctx, l.leaving)
	}
	if live.Deleting {
		return nil // its dependents are checked when it is deleted
	}
	standings, err := g.standings(ctx, o.key, live.Owners, l.leaving)
	if err != nil {
		if len(l.leaving) > 0 {
			err = errors.Join(err, o.release(ctx, l.leaving))
		}
		if errors.Is(err, errNamespaced) {
			return nil
		}
		return err
	}
	return g.carryOut(ctx, o, decide(live, standings, l.dependents), live, version)
}

// A standing is the state of an owner for one of its dependents.
type standing uint8

const (
	solid    standing = iota // exists
	dangling                 // does not exist
	waiting                  // waits for the deletion of the dependent
	leaving                  // waits for the removal of the reference
)

// standings returns the state of each owner, by the stored objects.
func (g *Collector) standings(ctx context.Context, of keys.Key, owners []metav1.OwnerReference, left []types.UID) ([]standing, error) {
	all := make([]standing, len(owners))
	for i, ref := range owners {
		kind, ok := g.kind(ctx, of.Cluster, ref.APIVersion, ref.Kind)
		switch {
		case slices.Contains(left, ref.UID):
			all[i] = leaving
			continue
		case !ok:
			return nil, errUnserved
		case kind.Namespaced && of.Namespace == "":
			return nil, errNamespaced
		}
		m, version, err := g.store.Metadata(ctx, ownerKey(of.Cluster, kind, of.Namespace, ref.Name))
		switch {
		case err != nil:
			return nil, err
		case version == 0 || m.UID != ref.UID:
			all[i] = dangling
		case phaseOf(m).foreground:
			all[i] = waiting
		}
	}
	return all, nil
}

// A decision is the action for an object because of its owners. The zero value is no
// action.
type decision struct {
	// release are the owners whose references are removed.
	release []types.UID
	// remove is the propagation of the deletion, empty for no deletion.
	remove metav1.DeletionPropagation
	// mayBeCircular means that the owners wait for the object, which will wait for its
	// dependents. So they may wait for each other.
	mayBeCircular bool
}

// decide returns the decision for an object whose owners have these states.
func decide(o values.Metadata, standings []standing, dependents int) decision {
	var release []types.UID // otherwise a waiting owner would wait forever if another owner is solid
	for i, s := range standings {
		if s != solid {
			release = append(release, o.Owners[i].UID)
		}
	}
	switch {
	case slices.Contains(standings, solid) || slices.Contains(standings, leaving):
		return decision{release: release}
	case slices.Contains(standings, waiting) && dependents > 0:
		return decision{remove: metav1.DeletePropagationForeground, mayBeCircular: true}
	case slices.Contains(o.Finalizers, metav1.FinalizerOrphanDependents):
		return decision{remove: metav1.DeletePropagationOrphan}
	case slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents):
		return decision{remove: metav1.DeletePropagationForeground}
	default:
		return decision{remove: metav1.DeletePropagationBackground}
	}
}

func (g *Collector) carryOut(ctx context.Context, o object, d decision, live values.Metadata, version int64) error {
	if len(d.release) > 0 {
		return o.release(ctx, d.release)
	}
	if d.remove == "" {
		return nil
	}
	if d.mayBeCircular {
		g.mu.Lock()
		circular := g.graph.circular(objectID{o.key.Cluster, o.uid})
		g.mu.Unlock()
		if circular {
			if err := o.unblock(ctx); err != nil {
				return err
			}
			version = 0
		}
	}
	err := o.remove(ctx, d.remove, version)
	if apierrors.IsConflict(err) && version != 0 {
		// Changes of other fields than the owners must not prevent the deletion.
		now, rev, readErr := o.read(ctx)
		switch {
		case readErr != nil:
			return readErr
		case rev == 0:
			return nil
		case apiequality.Semantic.DeepEqual(now.Owners, live.Owners):
			err = o.remove(ctx, d.remove, 0)
		}
	}
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Object without owners deleted", "resource", o.kind.GroupVersionResource(), "name", o.key.Name, "namespace", o.key.Namespace, "propagation", d.remove)
	}
	return err
}
