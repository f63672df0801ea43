package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// scheduleLoop decides for each object which targets have it.
func (f *fleet) scheduleLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-schedule", Workers: 8, Do: f.decide, On: []kcp.Source{
		{Ready: f.kinds.settled, Subscribe: func(wake func(kcp.Key)) func() {
			f.mu.Lock()
			f.schedule = wake
			f.mu.Unlock()
			f.kinds.each("*", wake)
			return nil
		}},
		f.assignments.Wakes(f.concerned),
		f.reports.Wakes(func(s *workload.TargetStatus) []kcp.Key { return []kcp.Key{engine.IDFor(s, s.Spec.Workload).Task()} }),
		f.placements.Wakes(func(p *scheduling.Placement) (keys []kcp.Key) {
			f.kinds.each(kcp.KeyOf(p).Cluster, func(task kcp.Key) { keys = append(keys, task) })
			return keys
		}),
		f.targets.Read(), f.manager.locations.Read(),
	}}
}

// concerned returns the tasks of objects whose place depends on that of a workload: itself, the
// volumes that it uses, and the users of a volume.
func (f *fleet) concerned(a *workload.Assignment) []kcp.Key {
	id := engine.IDFor(a, a.Spec.Workload)
	keys := []kcp.Key{id.Task()}
	k := f.kinds.get(id.GroupResource)
	if k == nil {
		return keys
	}
	if k.Class == profile.Volume {
		for _, user := range f.usersOf(id) {
			keys = append(keys, user.Task())
		}
		return keys
	}
	if w := k.objects.Get(id.Key); w != nil {
		for _, ref := range refsOf(k, w) {
			if ref.GroupResource == profile.Volumes().GroupResource() {
				keys = append(keys, ref.Task())
			}
		}
	}
	return keys
}

func (f *fleet) decide(ctx context.Context, task kcp.Key) error {
	id := engine.IDOf(task)
	k, a := f.kinds.get(id.GroupResource), f.assignmentOf(id)
	switch ending, lost := f.dissolving(); {
	case lost:
		return nil
	case ending:
		return f.release(ctx, k, id, f.workload(id), a)
	case k == nil:
		return nil
	}
	w := k.objects.Get(id.Key)
	switch {
	case w == nil:
		return f.clear(ctx, k, id, a)
	case w.GetDeletionTimestamp() != nil:
		return f.bury(ctx, id, w, a)
	}
	if a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
		return f.undecide(ctx, a) // of a workload of that name which was deleted
	}
	if a == nil {
		a = f.recalled(k, id, w)
	}
	if a == nil && k.leaving.Load() {
		return nil
	}
	switch {
	case k.Class == profile.Unplaced, k.Class == profile.Dependency, id.Key.Namespace == "":
		return nil
	case k.Class == workload.Follows:
		return f.decideFollower(ctx, id, w, a)
	case k.Class == profile.Volume:
		return f.decideVolume(ctx, id, w, a)
	}
	if after, ended, ok := k.Expires(w); ok {
		return f.expire(ctx, id, w, time.Until(ended.Add(after)))
	}
	return f.decideWorkload(ctx, k, id, w, a)
}

// expire deletes a Job that ended, when its time has come. Its copies stay until then.
func (f *fleet) expire(ctx context.Context, id engine.ID, w *unstructured.Unstructured, left time.Duration) error {
	if left > 0 {
		return kcp.After(left)
	}
	k, in, err := f.writer(id)
	if err != nil {
		return err
	}
	uid := w.GetUID()
	err = in.Resource(k.GroupVersionResource).Namespace(id.Key.Namespace).Delete(ctx, id.Key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationBackground)})
	return ignoreGone(err)
}

func (f *fleet) decideWorkload(ctx context.Context, k *kind, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment) error {
	p := f.placementOf(id.Key)
	if p == nil && a == nil {
		return nil
	}
	next := workload.AssignmentSpec{Workload: engine.Reference(id.GroupResource, w), Replicas: k.Wants(w)}
	var again time.Duration
	switch {
	case p == nil || p.Spec.Suspend:
		// The parts stay as they are.
		if a == nil {
			return nil
		}
		next = *a.Spec.DeepCopy()
		if next.Reason, next.Message = place.NoPlacement, "no Placement of the workspace selects the namespace of the workload"; p != nil {
			next.Reason, next.Message = place.Suspended, fmt.Sprintf("Placement %q is suspended", p.Name)
		}
	case k.Misfit(w) != "":
		if a != nil {
			next.Targets = a.Spec.DeepCopy().Targets // nothing moves because of it
		}
		next.Placement, next.Reason, next.Message = p.Name, place.Misfit, k.Misfit(w)
		f.policies(id, &next)
	default:
		d, err := f.decided(ctx, subject{k, id, w, a}, p)
		if err != nil {
			return err
		}
		next.Placement, next.Targets, next.Reason, again = p.Name, d.Targets, d.Reason, d.Again
		next.Message = explain(d)
		f.policies(id, &next)
		if p.Spec.Failover.LeaseFencing && k.Quiesce != nil {
			next.Fencing = workload.LeaseFencing
		}
		if err := f.policiesFirst(ctx, subject{k, id, w, a}, next); err != nil {
			return err
		}
	}
	if err := f.settle(ctx, id, w, a, next); err != nil {
		return err
	}
	if again > 0 {
		return kcp.After(again + soon)
	}
	return nil
}

// policies adds what the Placement says about existing objects and deletion.
func (f *fleet) policies(id engine.ID, next *workload.AssignmentSpec) {
	if p := f.placementOf(id.Key); p != nil {
		next.Conflict, next.Deletion = string(p.Spec.Conflict), string(p.Spec.Deletion)
	}
}

// settle writes a decision.
func (f *fleet) settle(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, next workload.AssignmentSpec) error {
	if err := f.assign(ctx, id, w, a, next); err != nil {
		return err
	}
	return f.forget(ctx, id, a, next)
}

// forget deletes the reports of targets that were deleted before they could.
func (f *fleet) forget(ctx context.Context, id engine.ID, a *workload.Assignment, next workload.AssignmentSpec) error {
	if a == nil {
		return nil
	}
	for _, old := range a.Spec.Targets {
		if f.reportOf(id, old.Key) == nil || slices.ContainsFunc(next.Targets, func(t workload.AssignedTarget) bool { return t.Key == old.Key }) {
			continue
		}
		if err := f.report(ctx, id, old.Key, nil); err != nil {
			return err
		}
	}
	return nil
}

// A subject is what a decision is about.
type subject struct {
	*kind
	id engine.ID
	w  *unstructured.Unstructured
	a  *workload.Assignment // the last decision; nil if there is none
}

func (f *fleet) decided(ctx context.Context, of subject, p *scheduling.Placement) (place.Decision, error) {
	s, err := f.snapshot(ctx, of, p)
	if err != nil {
		return place.Decision{}, err
	}
	return f.paced(of.id.Task(), s), nil
}

// snapshot returns what a decision depends on.
func (f *fleet) snapshot(ctx context.Context, of subject, p *scheduling.Placement) (place.Snapshot, error) {
	k, id, w, a := of.kind, of.id, of.w, of.a
	s := place.Snapshot{ID: id.Key.String(), Replicas: k.Wants(w), Policy: policyOf(p), Now: time.Now()}
	s.Policy.Exclusive, s.Policy.Everywhere = k.Class == workload.Singleton, k.Class == workload.Everywhere
	s.Policy.Finished = k.Finished(w)
	s.Policy.StopsWithin = f.stopsWithin(w, a)
	if at, has := f.volumeAt(id, k, w, a); has && !s.Policy.Everywhere {
		s.Policy.Only = at
		s.Policy.Strategy = scheduling.Single
	}
	s.Targets, s.Hold = f.inventory.For(p)
	if a == nil {
		return s, nil
	}
	orphans := f.orphaning()
	for _, t := range a.Spec.Targets {
		part, err := f.partOf(id, w, t, s.Targets)
		if err != nil {
			return s, err
		}
		part.Orphaned = orphans[t.Key]
		if s.Policy.Exclusive && t.Phase != workload.Removing {
			s.Policy.Needed = f.needed(k, w, part.Available)
		}
		if part.Gone && s.Policy.Exclusive && t.Phase == workload.Removing {
			if part.Gone, err = f.silent(ctx, id, t.Key); err != nil {
				return s, err
			}
		}
		s.Parts = append(s.Parts, part)
	}
	return s, f.checkLeases(ctx, &s)
}

// stopsWithin returns how long after the end of its lease an agent has stopped a workload, zero if one does not stop
// it. Only the reports of the agents count, because an agent that is cut off does not know of later changes.
func (f *fleet) stopsWithin(w *unstructured.Unstructured, a *workload.Assignment) (longest time.Duration) {
	if a == nil {
		return 0
	}
	id := engine.IDFor(w, a.Spec.Workload)
	for _, t := range a.Spec.Targets {
		r := f.reportOf(id, t.Key)
		switch {
		case r == nil || r.Spec.Workload.UID != string(w.GetUID()):
		case r.Spec.StopsWithinSeconds == nil:
			return 0
		default:
			longest = max(longest, time.Duration(*r.Spec.StopsWithinSeconds)*time.Second+f.options.Stop)
		}
	}
	return longest
}

// checkLeases reads the Leases of agents that shall have stopped their parts from the server, not from
// the cache, before the workload begins elsewhere.
func (f *fleet) checkLeases(ctx context.Context, s *place.Snapshot) error {
	if f.term == nil || s.Policy.StopsWithin == 0 {
		return nil // a review decides nothing
	}
	for i := range s.Targets {
		t := &s.Targets[i]
		leaves := slices.ContainsFunc(s.Parts, func(p place.Part) bool { return p.Key == t.Key && p.Phase == workload.Removing })
		if t.LeaseEnd.IsZero() || !leaves {
			continue
		}
		ok, err := f.lapsed(ctx, t.Key)
		if err != nil {
			return err
		}
		if !ok {
			t.LeaseEnd = time.Time{}
		}
	}
	return nil
}

// silent reports whether the server has no report of a target: an engine that begins says so first,
// and then looks whether it still may.
func (f *fleet) silent(ctx context.Context, id engine.ID, target string) (bool, error) {
	if _, exists := f.orphaning()[target]; !exists {
		return true, nil
	}
	in, err := f.reportsIn.In(string(id.Key.Cluster))
	if err != nil {
		return false, err
	}
	_, err = in.Namespace(id.Key.Namespace).Get(ctx, engine.StatusName(id.GroupResource, id.Key.Name, target), metav1.GetOptions{})
	if missing(err, targetStatuses().Resource) {
		return true, nil
	}
	return false, err
}

// partOf returns what is known about the part of a target.
func (f *fleet) partOf(id engine.ID, w *unstructured.Unstructured, t workload.AssignedTarget, targets []place.Target) (place.Part, error) {
	p := place.Part{AssignedTarget: t}
	exists := slices.ContainsFunc(targets, func(of place.Target) bool { return of.Key == t.Key })
	r := f.reportOf(id, t.Key)
	if r == nil || r.Spec.Workload.UID != string(w.GetUID()) {
		p.Gone = true
		return p, nil
	}
	p.Gone = !exists // nobody can confirm it any more
	p.Applied = r.Spec.Reason == "" && r.Spec.Observed && r.Spec.Generation == w.GetGeneration() && equal(r.Spec.Replicas, t.Replicas)
	var s struct {
		AvailableReplicas int32 `json:"availableReplicas"`
		ReadyReplicas     int32 `json:"readyReplicas"`
	}
	if r.Spec.Reported != nil && json.Unmarshal(r.Spec.Reported.Raw, &s) == nil {
		if p.Available = s.AvailableReplicas; id.Group != profile.Deployments().Group {
			p.Available = max(s.AvailableReplicas, s.ReadyReplicas) // custom resources
		}
	}
	return p, nil
}

func equal(a, b *int32) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// explain says in words why a workload is not scheduled. It names no target.
func explain(d place.Decision) string {
	if d.Reason == "" {
		return ""
	}
	switch d.Reason {
	case place.Moving:
		return "it leaves a target before it begins elsewhere"
	case place.NotFenced:
		return "its target does not answer, so it may still run there; it begins elsewhere when the target answers and has stopped it, or when the owner of the physical clusters fences or removes the target"
	case place.TooMany:
		return fmt.Sprintf("a workload uses %d targets at most", place.MaxTargets)
	case place.Pinned:
		return "it stays where its data are"
	case place.Limited:
		return "its target does not answer; it leaves when it is its turn, because only so many workloads leave at a time"
	case place.Budget:
		return "a PodDisruptionBudget of the namespace does not let all its pods stop, which they do before they begin elsewhere"
	}
	var why []string
	for _, r := range slices.Sorted(maps.Keys(d.Refused)) {
		why = append(why, fmt.Sprintf("%d %s", d.Refused[r], r))
	}
	if len(why) == 0 {
		return "no target is registered in a Location that the Placement selects, or all have their maximum"
	}
	return "targets that take no more replicas: " + strings.Join(why, ", ")
}

// assign writes the decision.
func (f *fleet) assign(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, next workload.AssignmentSpec) error {
	if stored(a) && sameSpec(a.Spec, next) && len(a.OwnerReferences) == 0 {
		return nil
	}
	if err := f.finalize(ctx, id, w, true); err != nil {
		return err
	}
	in, err := f.assignmentsIn.In(string(id.Key.Cluster))
	if err != nil {
		return err
	}
	all := in.Namespace(id.Key.Namespace)
	if stored(a) {
		made := a.DeepCopy() // of a revision that may be old: then the update conflicts, and the next decision sees the new one
		made.Spec, made.OwnerReferences = next, nil
		_, err = all.Update(ctx, made, metav1.UpdateOptions{})
		return err
	}
	made := &workload.Assignment{Spec: next}
	made.Name, made.Namespace = engine.AssignmentName(id.GroupResource, id.Key.Name), id.Key.Namespace
	_, err = all.Create(ctx, made, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return kcp.After(soon) // the cache has it soon
	}
	return err
}

func sameSpec(a, b workload.AssignmentSpec) bool {
	text, err := json.Marshal(a)
	other, otherErr := json.Marshal(b)
	return err == nil && otherErr == nil && string(text) == string(other)
}

// finalize adds or removes the finalizer of a workload.
func (f *fleet) finalize(ctx context.Context, id engine.ID, w *unstructured.Unstructured, placed bool) error {
	has := slices.Contains(w.GetFinalizers(), workload.PlacedFinalizer)
	if has == placed {
		return nil
	}
	next := append(slices.Clone(w.GetFinalizers()), workload.PlacedFinalizer)
	if !placed {
		next = slices.DeleteFunc(slices.Clone(w.GetFinalizers()), func(of string) bool { return of == workload.PlacedFinalizer })
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": w.GetResourceVersion(), "finalizers": next}})
	if err != nil {
		return err
	}
	k, in, err := f.writer(id)
	if err != nil {
		return err
	}
	_, err = in.Resource(k.GroupVersionResource).Namespace(w.GetNamespace()).Patch(ctx, w.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return ignoreGone(err)
}

// writer returns a client for an object, and its kind.
func (f *fleet) writer(id engine.ID) (*kind, dynamic.Interface, error) {
	k := f.kinds.get(id.GroupResource)
	if k == nil {
		return nil, nil, fmt.Errorf("%s have no profile any more", id.GroupResource)
	}
	in, err := f.in(id.Key.Cluster)
	return k, in, err
}
