package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/profile"
)

// object is any API object.
type object = unstructured.Unstructured

// A holding has the objects of one kind in a physical cluster. It exists while the target has a
// part of an object of the kind, or a job works on one.
type holding struct {
	profile *profile.Profile
	kind    *kcp.Kind[*object]
	end     context.CancelFunc
	ended   <-chan struct{} // closed by end
	counts  *tally
	from    map[kcp.ClusterName]int // objects in the cache, about, by where they are from; nil at the end; guarded by counts.mu
	sizes   map[string]counted      // of the objects in the cache; nil at the end; guarded by counts.mu
	trouble atomic.Pointer[error]   // of the last list; nil if it succeeded
	failed  chan struct{}           // closed when a list fails with an error of this kind of objects
	fail    func()                  // closes it
	page    int64                   // objects of a page; used by the list that runs
	written sync.Map                // objects that were written, and that the cache may not have yet
	users   int                     // jobs; guarded by Engine.mu
}

const (
	pageSize = 500
	// sweeps is how many kinds are looked for at a time: a handshake with the physical cluster costs more
	// than a list.
	sweeps = 2
)

// byNamespace is the index of objects by the namespace of the physical cluster.
const byNamespace = "namespace"

// physical stands for the logical cluster of objects in the physical cluster.
const physical = "physical"

// stamp gives an object of the physical cluster the annotation by which a Kind keeps it.
func stamp(o *object) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[core.ClusterAnnotation] = physical
	o.SetAnnotations(annotations)
}

// hold returns the holding of a kind, and begins to watch the kind if there is none. Callers release
// it. It returns nil when the engine ends.
func (e *Engine) hold(p *profile.Profile) *holding {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return nil
	}
	h := e.shelf[p.GroupResource()]
	if h == nil || h.profile.GroupVersionResource != p.GroupVersionResource {
		if h != nil {
			h.end() // its profile names another version now
			h.counts.drop(h)
		}
		ctx, end := context.WithCancel(e.ctx)
		h = &holding{profile: p, end: end, ended: ctx.Done(), counts: e.counts, from: map[kcp.ClusterName]int{}, sizes: map[string]counted{}, failed: make(chan struct{}), page: pageSize}
		h.fail = sync.OnceFunc(func() { close(h.failed) })
		h.kind = kcp.NewKind[*object](p.Resource+" of a target", e.lister(h), nil)
		if err := h.kind.Index(byNamespace, func(o *object) []string { return []string{o.GetNamespace()} }); err != nil {
			end() // a bug: the index is new
			return nil
		}
		h.kind.Wakes(func(o *object) []kcp.Key { return e.tasksOf(h, o) }).Subscribe(e.wakeLoop)
		e.shelf[p.GroupResource()] = h
		e.work.Go(func() { h.kind.Run(ctx) })
	}
	h.users++
	return h
}

// tasksOf returns the task of an object of the physical cluster, by its marks.
func (e *Engine) tasksOf(h *holding, o *object) []kcp.Key {
	l, ok := locatorOf(o)
	if !ok || l.Target != e.key {
		return nil
	}
	key := kcp.Key{Cluster: kcp.ClusterName(l.Cluster), Namespace: l.Namespace, Name: o.GetName()}
	return []kcp.Key{ID{h.profile.GroupResource(), key}.Task()}
}

// source wakes the loop for what the physical cluster has.
func (e *Engine) source() kcp.Source {
	return kcp.Source{Ready: e.swept, Subscribe: func(wake func(kcp.Key)) func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.wake = wake
		for _, h := range e.shelf { // what was found before there was a loop
			for _, o := range h.kind.List("*") {
				for _, task := range e.tasksOf(h, o) {
					wake(task)
				}
			}
		}
		return nil
	}}
}

// wakeLoop wakes the loop of the engine.
func (e *Engine) wakeLoop(task kcp.Key) {
	e.mu.Lock()
	wake := e.wake
	e.mu.Unlock()
	if wake != nil {
		wake(task)
	}
}

// release ends the watch of a kind of which the target has nothing.
func (e *Engine) release(h *holding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h.users--
	if h.users > 0 || h.inUse() || e.desired.Has(h.profile.GroupResource()) {
		return
	}
	h.end()
	if e.shelf[h.profile.GroupResource()] == h {
		delete(e.shelf, h.profile.GroupResource())
	}
	h.counts.drop(h)
}

// inUse reports whether the physical cluster has an object of the kind.
func (h *holding) inUse() bool {
	used := len(h.kind.List("*")) > 0
	h.written.Range(func(any, any) bool { used = true; return false })
	return used
}

// get returns an object of the cache, nil if it has none.
func (h *holding) get(from Locator, name string) *object {
	o := h.kind.Get(kcp.Key{Cluster: physical, Namespace: from.namespace(), Name: name})
	if o == nil {
		return nil
	}
	return unpack(o)
}

// await waits a little for the list of the objects of the kind in the physical cluster. Without
// one, it returns why.
func (j *job) await(ctx context.Context) *reason {
	t := time.NewTimer(soon)
	defer t.Stop()
	select {
	case <-j.kind.Ready():
		return nil
	case <-ctx.Done():
	case <-t.C:
	}
	if err := j.trouble.Load(); err != nil {
		if why := known(j.profile, *err); why != nil {
			return why
		}
	}
	return &reason{"", ""}
}

// known returns the reason if an error of a list is about objects of one kind. Nil means that it may be about
// the physical cluster, or the way to it.
func known(p *profile.Profile, err error) *reason {
	switch {
	case apierrors.IsForbidden(err):
		return &reason{"Forbidden", fmt.Sprintf("the physical cluster does not allow the agent to list %s", p.GroupResource())}
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return &reason{workload.NotServed, fmt.Sprintf("the physical cluster does not serve %s in version %s", p.GroupResource(), p.Version)}
	case errors.Is(err, errTooMany):
		return &reason{"TooMany", err.Error()}
	case errors.Is(err, answers.ErrTooLarge):
		return &reason{"TooLarge", fmt.Sprintf("%s of the physical cluster cannot be listed: %v", p.GroupResource(), answers.ErrTooLarge)}
	}
	return nil
}

// lister lists and watches the objects of a kind that are the engine's.
func (e *Engine) lister(h *holding) cache.ListerWatcher {
	selector, all := workload.OwnerLabel+"="+e.key, e.client.Resource(h.profile.GroupVersionResource)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			list, err := h.list(ctx, all, metav1.ListOptions{LabelSelector: selector})
			if err != nil {
				h.trouble.Store(&err)
				if known(h.profile, err) != nil {
					h.fail()
				}
				return nil, err
			}
			h.trouble.Store(nil)
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			changes, err := all.Watch(ctx, o)
			if err != nil {
				return nil, err
			}
			return watch.Filter(changes, h.admit), nil
		},
	}
}

// list lists all objects of the kind, page by page: what is not kept of a page is garbage before the next one
// comes, and weighs nothing any more. Lists from the cache of the physical cluster would have no pages, so the options name no version.
// Pages that are too large get fewer objects.
func (h *holding) list(ctx context.Context, from dynamic.ResourceInterface, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	h.counts.forget(h)
	h.written.Clear()
	all := &unstructured.UnstructuredList{}
	ctx, done := answers.Keep(ctx)
	defer done()
	for {
		o.Limit = h.page
		page, err := from.List(ctx, o)
		if errors.Is(err, answers.ErrTooLarge) && h.page > 1 {
			h.page /= 2
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			kept := pack(&page.Items[i])
			if _, err := h.counts.set(h, kept); err != nil {
				return nil, err
			}
			stamp(kept)
			all.Items = append(all.Items, *kept)
		}
		if all.Object == nil {
			all.Object = page.Object
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			all.SetContinue("")
			all.SetRemainingItemCount(nil)
			return all, nil
		}
	}
}

// admit packs and stamps the object of an event, and drops events of too many objects.
func (h *holding) admit(change watch.Event) (watch.Event, bool) {
	o, ok := change.Object.(*object)
	if !ok || change.Type == watch.Error || change.Type == watch.Bookmark {
		return change, true
	}
	o = pack(o)
	stamp(o)
	change.Object = o
	h.written.Delete(o.GetUID())
	if change.Type == watch.Deleted {
		h.counts.remove(h, o)
		return change, true
	}
	known, err := h.counts.set(h, o)
	if err == nil {
		return change, true
	}
	if !known {
		h.counts.remove(h, o)
		return change, false
	}
	delete(o.Object, "status") // the object stays in the cache, without what is too much
	_, _ = h.counts.set(h, o)  // that is less than before
	return change, true
}

// sweep finds the kinds of which the physical cluster has objects of the target, and begins to
// watch them: some objects may no longer be assigned. If ctx ends before, the error is one of
// those that the lists had.
func (e *Engine) sweep(ctx context.Context) error {
	var found sync.WaitGroup
	turns := make(chan struct{}, sweeps)
	all := e.desired.Profiles()
	last := make([]error, len(all)) // of each kind
	for i := range all {
		p := &all[i]
		if !p.Placed() {
			continue
		}
		found.Go(func() {
			for ctx.Err() == nil {
				turns <- struct{}{}
				has, err := e.has(ctx, p)
				<-turns
				if err == nil && has {
					e.desired.Found()
					err = e.adopt(p)
				}
				if !errors.Is(err, context.Canceled) {
					last[i] = err
				}
				if err == nil {
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(soon):
				}
			}
		})
	}
	found.Wait()
	if ctx.Err() == nil {
		close(e.swept)
		return nil
	}
	if i := slices.IndexFunc(last, kcp.IsBusy); i >= 0 {
		return last[i]
	}
	return cmp.Or(append(last, ctx.Err())...)
}

// adopt begins to watch a kind of which the physical cluster has objects, and waits until they are known. It
// does not wait longer if they cannot be listed for a reason of their own: the objects of that kind have
// trouble then, and those of others have none.
func (e *Engine) adopt(p *profile.Profile) error {
	h := e.hold(p)
	if h == nil {
		return nil
	}
	e.work.Go(func() { // it is watched until it is known what there is
		defer e.release(h)
		select {
		case <-h.kind.Ready():
		case <-h.ended:
		}
	})
	select {
	case <-h.kind.Ready():
	case <-h.failed:
	case <-h.ended:
	}
	if err := h.trouble.Load(); err != nil && e.ctx.Err() != nil {
		return *err
	}
	return nil
}

// has reports whether the physical cluster has an object of a kind. Kinds that it does not serve or
// allow have none. A list from the cache of the physical cluster would have no limit.
func (e *Engine) has(ctx context.Context, p *profile.Profile) (bool, error) {
	ctx, done := answers.Keep(ctx)
	defer done()
	list, err := e.client.Resource(p.GroupVersionResource).List(ctx, metav1.ListOptions{LabelSelector: workload.OwnerLabel + "=" + e.key, Limit: 1})
	if errors.Is(err, answers.ErrTooLarge) {
		return true, nil // the object, or all of them if the physical cluster knows no limit
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return len(list.Items) > 0, nil
}

// gone reports whether an error says that an object does not exist.
func gone(err error) bool { return apierrors.IsNotFound(err) }
