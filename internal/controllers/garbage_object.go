package controllers

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
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
)

// unservedRetry is how often it is tried again whether a cluster serves a kind that
// it did not: seldom, since changes of what it serves wake what waits for them.
const unservedRetry = 5 * time.Minute

// maxSearches bounds how many names of one owner are looked for in all namespaces. Each
// search reads the keys of all objects that the cluster has of a resource, and what
// comes of it is an event.
const maxSearches = 8

var (
	// errUnserved tells that the cluster of an object does not serve its kind, or
	// that of one of its owners: nobody knows whether the owner exists.
	errUnserved = errors.New("kind is not served")
	// errNamespaced tells that an object without a namespace names an owner of a
	// kind that has one: it is never collected.
	errNamespaced = errors.New("owner of an object without a namespace has one")
)

// do looks at one object, or at the UID of one that others name as their owner.
func (g *garbage) do(ctx context.Context, id objectID) error {
	g.mu.Lock()
	l, ok := g.graph.look(id)
	g.unserved[id] = struct{}{} // until it is known to be otherwise, so that no change of APIs is missed
	g.mu.Unlock()
	err := g.lookAt(ctx, l, ok)
	if errors.Is(err, errUnserved) {
		return control.After(unservedRetry)
	}
	g.mu.Lock()
	delete(g.unserved, id)
	g.mu.Unlock()
	return err
}

func (g *garbage) lookAt(ctx context.Context, l look, known bool) error {
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

// settle finds out whether an owner is what its dependents claim. It reports
// whether it could for all of them.
func (g *garbage) settle(ctx context.Context, l look) (all bool, err error) {
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

// examine looks for the owner that a claim names, and returns where it is if that
// is not where the claim says either.
func (g *garbage) examine(ctx context.Context, l look, c claim, searches *int) (verdict, place, error) {
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
	m, rev, err := g.deps.Store.Metadata(ctx, claimed)
	if err != nil {
		return 0, place{}, err
	}
	if rev != 0 && m.UID == l.id.uid {
		return held, placeOf(claimed), nil
	}
	if *searches--; !kind.Namespaced || *searches < 0 {
		return wrong, place{}, nil
	}
	// It may be in another namespace, which the dependent is told then.
	namesakes, err := g.deps.Store.Namesakes(ctx, kind.Stored, l.id.cluster, c.name)
	if err != nil {
		return 0, place{}, err
	}
	for _, k := range namesakes {
		if m, rev, err = g.deps.Store.Metadata(ctx, k); err != nil {
			return 0, place{}, err
		}
		if rev != 0 && m.UID == l.id.uid {
			return wrong, placeOf(k), nil
		}
	}
	return wrong, place{}, nil
}

// kind returns how a cluster serves a kind. That it does not is only said by what
// knows of every API that there is.
func (g *garbage) kind(ctx context.Context, c cluster.Name, apiVersion, kind string) (serve.Kind, bool) {
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	k, ok := g.deps.Kinds.Find(c, gvk)
	if !ok && g.deps.Store.Spine().Fresh(ctx) {
		k, ok = g.deps.Kinds.Find(c, gvk)
	}
	return k, ok
}

func ownerKey(c cluster.Name, kind serve.Kind, namespace, name string) store.Key {
	if !kind.Namespaced {
		namespace = ""
	}
	return store.Key{Resource: kind.Stored, Cluster: c, Namespace: namespace, Name: name}
}

// collect does what is due for an object that exists.
func (g *garbage) collect(ctx context.Context, l look) error {
	key := l.at.key(l.id.cluster)
	kind, ok := g.deps.Kinds.StoredAs(key.Cluster, key.Resource)
	if !ok && g.deps.Store.Spine().Fresh(ctx) {
		kind, ok = g.deps.Kinds.StoredAs(key.Cluster, key.Resource)
	}
	if !ok {
		return errUnserved
	}
	o := object{key: key, uid: l.id.uid, kind: kind, deps: g.deps}
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

// collectOwned deletes an object, or takes references to owners off it, if its
// owners want it to. It goes by the object and its owners as they are now: the graph
// only said when to look.
func (g *garbage) collectOwned(ctx context.Context, o object, l look) error {
	live, version, err := o.read(ctx)
	if err != nil || version == 0 || len(live.Owners) == 0 {
		return err
	}
	told := g.reportMisplaced(ctx, o) // which keeps nothing from being done
	return errors.Join(g.collectLive(ctx, o, l, live, version), told)
}

func (g *garbage) collectLive(ctx context.Context, o object, l look, live store.Metadata, version int64) error {
	if len(l.leaving) > 0 && live.Deleting {
		return o.release(ctx, l.leaving)
	}
	if live.Deleting {
		return nil // on its way; its dependents are looked at when it is gone
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

// A standing is how the owner that a reference names stands.
type standing uint8

const (
	solid    standing = iota // it exists
	dangling                 // it does not
	waiting                  // it exists until this dependent is gone
	leaving                  // it exists until this dependent has let go of it
)

// standings finds out how each owner stands, by what is stored now.
func (g *garbage) standings(ctx context.Context, of store.Key, owners []metav1.OwnerReference, left []types.UID) ([]standing, error) {
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
		m, version, err := g.deps.Store.Metadata(ctx, ownerKey(of.Cluster, kind, of.Namespace, ref.Name))
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

// A decision is what to do about an object because of its owners. The zero value
// leaves it alone.
type decision struct {
	// release are the owners to take off it.
	release []types.UID
	// remove is how to delete it, if that is not empty.
	remove metav1.DeletionPropagation
	// mayBeCircular tells that the object's owners wait for it, and it is to wait for its
	// dependents: they may wait for each other.
	mayBeCircular bool
}

// decide returns what to do about an object whose owners stand like that.
func decide(o store.Metadata, standings []standing, dependents int) decision {
	var release []types.UID // an owner that waits would do so for ever if another keeps the object
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

func (g *garbage) carryOut(ctx context.Context, o object, d decision, live store.Metadata, version int64) error {
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
		// Changes of anything but its owners must not keep it.
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
		klog.FromContext(ctx).V(2).Info("deleted for want of owners", "resource", o.kind.GroupVersionResource(), "name", o.key.Name, "namespace", o.key.Namespace, "propagation", d.remove)
	}
	return err
}
