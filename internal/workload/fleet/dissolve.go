package fleet

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
)

// Without a SyncTarget there is no fleet, also after a restart. So the last SyncTarget of a compute workspace takes
// the Assignments and finalizers of the consumers with it: nobody else would remove them.

// last reports whether a SyncTarget that no workload uses goes as the last one of its workspace. Of several that go
// at once, that is the first by name.
func (m *manager) last(f *fleet, t *workload.SyncTarget) bool {
	return !slices.ContainsFunc(m.targets.List(f.compute), func(of *workload.SyncTarget) bool {
		switch {
		case of.Name == t.Name:
			return false
		case of.DeletionTimestamp == nil:
			return true
		case !slices.Contains(of.Finalizers, workload.DisconnectFinalizer):
			return false // it is gone
		}
		return of.Name < t.Name || f.uses(engine.TargetKey(string(f.compute), of.Name, string(of.UID)), unanswered(of))
	})
}

// dissolved reports whether nothing of the fleet is left in its consumers, and makes the scheduler remove what is.
func (f *fleet) dissolved(ctx context.Context) (bool, error) {
	if f.dissolve() {
		return true, nil
	}
	// Without the export, the server reaches no consumer through the view. See free.
	exported, err := f.exported(ctx, f.compute)
	return !exported && err == nil, err
}

// dissolve makes the scheduler remove all Assignments and finalizers, and place nothing any more. It reports whether
// none is left.
func (f *fleet) dissolve() bool {
	f.mu.Lock()
	wake := f.schedule
	f.ending = true
	f.mu.Unlock()
	tasks, sure := f.placed()
	if wake != nil {
		for _, task := range tasks {
			wake(task)
		}
	}
	return sure && len(tasks) == 0
}

// resume ends what dissolve began: there is a SyncTarget again.
func (f *fleet) resume() {
	f.mu.Lock()
	was, wake := f.ending, f.schedule
	f.ending, f.lost = false, false
	f.mu.Unlock()
	if was && wake != nil {
		f.kinds.each("*", wake)
		f.reviewProfiles()
	}
}

// dissolving reports whether nothing is placed any more. A fleet that is lost cannot remove anything either.
func (f *fleet) dissolving() (ending, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ending, f.lost
}

// placed returns the tasks of objects that have an Assignment or the finalizer. It is not sure before the caches are
// complete.
func (f *fleet) placed() (tasks []kcp.Key, sure bool) {
	for _, ready := range []<-chan struct{}{f.assignments.Ready(), f.placements.Ready()} {
		select {
		case <-ready:
		default:
			return nil, false
		}
	}
	for _, a := range f.assignments.List("*") {
		tasks = append(tasks, engine.IDFor(a, a.Spec.Workload).Task())
	}
	select {
	case <-f.kinds.settled:
	default: // without consumers, the caches of their objects stay empty
		return tasks, len(tasks)+len(f.placements.List("*")) == 0
	}
	for _, k := range f.kinds.list() {
		for _, o := range k.objects.List("*") {
			if slices.Contains(o.GetFinalizers(), workload.PlacedFinalizer) {
				tasks = append(tasks, engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(o)}.Task())
			}
		}
	}
	return tasks, true
}

// release removes the reports, the Assignment and the finalizer of an object. K is nil if its kind has no profile any
// more, and w is nil if it does not exist.
func (f *fleet) release(ctx context.Context, k *kind, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment) error {
	for _, r := range f.reportsOf(id) {
		if err := f.report(ctx, id, r.Spec.Key, nil); err != nil {
			return err
		}
	}
	if err := f.undecide(ctx, a); err != nil || k == nil || w == nil {
		return err
	}
	return f.finalize(ctx, id, w, false)
}
