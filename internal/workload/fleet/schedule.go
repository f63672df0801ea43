package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
)

// scheduleLoop decides for each workload which targets run it.
func (f *fleet) scheduleLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-schedule", Workers: 8, Do: f.decide, On: []kcp.Source{
		f.workloads.Changed(),
		f.assignments.Wakes(func(a *workload.Assignment) []kcp.Key { return []kcp.Key{workloadOf(a, a.Spec.Workload)} }),
		f.reports.Wakes(func(s *workload.TargetStatus) []kcp.Key { return []kcp.Key{workloadOf(s, s.Spec.Workload)} }),
		f.placements.Wakes(func(p *scheduling.Placement) (keys []kcp.Key) {
			for _, w := range f.workloads.List(kcp.KeyOf(p).Cluster) {
				keys = append(keys, kcp.KeyOf(w))
			}
			return keys
		}),
		f.targets.Read(), f.manager.locations.Read(),
		{Subscribe: func(wake func(kcp.Key)) func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.schedule = wake
			return nil
		}},
	}}
}

func (f *fleet) decide(ctx context.Context, key kcp.Key) error {
	w, a := f.workloads.Get(key), f.assignmentOf(key)
	switch {
	case w == nil:
		return nil // the garbage collector deletes what belonged to it, the engines remove their parts
	case w.GetDeletionTimestamp() != nil:
		return f.bury(ctx, w, a)
	}
	if a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
		return kcp.After(soon) // the garbage collector deletes that of a namesake
	}
	p := f.placementOf(key)
	if p == nil && a == nil {
		return nil
	}
	next := workload.AssignmentSpec{Workload: engine.Reference(w), Replicas: replicasOf(w)}
	var again time.Duration
	switch {
	case p == nil || p.Spec.Suspend:
		// What runs stays as it is.
		next = *a.Spec.DeepCopy()
		if next.Reason, next.Message = place.NoPlacement, "no Placement of the workspace selects the namespace of the workload"; p != nil {
			next.Reason, next.Message = place.Suspended, fmt.Sprintf("Placement %q is suspended", p.Name)
		}
	default:
		d := f.decided(key, w, a, p)
		next.Placement, next.Targets, next.Reason, again = p.Name, d.Targets, d.Reason, d.Again
		next.Message = explain(d)
	}
	if err := f.assign(ctx, w, a, next); err != nil {
		return err
	}
	if err := f.forget(ctx, key, a, next); err != nil {
		return err
	}
	if again > 0 {
		return kcp.After(again + soon)
	}
	return nil
}

// forget deletes the reports of targets that were deleted before they could.
func (f *fleet) forget(ctx context.Context, key kcp.Key, a *workload.Assignment, next workload.AssignmentSpec) error {
	if a == nil {
		return nil
	}
	for _, old := range a.Spec.Targets {
		r := f.reportOf(key, old.Key)
		if r == nil || slices.ContainsFunc(next.Targets, func(t workload.AssignedTarget) bool { return t.Key == old.Key }) {
			continue
		}
		if err := f.report(ctx, key, r.Name, nil); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) decided(key kcp.Key, w *unstructured.Unstructured, a *workload.Assignment, p *scheduling.Placement) place.Decision {
	return place.Decide(f.snapshot(key, w, a, p))
}

// snapshot returns what a decision depends on.
func (f *fleet) snapshot(key kcp.Key, w *unstructured.Unstructured, a *workload.Assignment, p *scheduling.Placement) place.Snapshot {
	s := place.Snapshot{ID: key.String(), Replicas: replicasOf(w), Policy: policyOf(p), Now: time.Now()}
	s.Targets, s.Hold = f.targetsFor(p)
	if a != nil {
		for _, t := range a.Spec.Targets {
			s.Parts = append(s.Parts, f.partOf(key, w, t, s.Targets))
		}
	}
	return s
}

// partOf returns what is known about the part of a target.
func (f *fleet) partOf(key kcp.Key, w *unstructured.Unstructured, t workload.AssignedTarget, targets []place.Target) place.Part {
	p := place.Part{AssignedTarget: t}
	exists := slices.ContainsFunc(targets, func(of place.Target) bool { return of.Key == t.Key })
	r := f.reportOf(key, t.Key)
	if r == nil || r.Spec.Workload.UID != string(w.GetUID()) {
		p.Gone = true
		return p
	}
	p.Gone = !exists // nobody can confirm it any more
	s, err := deploymentStatus(r.Spec.Reported)
	if err != nil {
		return p
	}
	p.Applied = r.Spec.Reason == "" && r.Spec.Observed && r.Spec.Generation == w.GetGeneration() && equal(r.Spec.Replicas, t.Replicas)
	p.Available = s.AvailableReplicas
	return p
}

func equal(a, b *int32) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// replicasOf returns the replicas that a Deployment wants; the default is one.
func replicasOf(w *unstructured.Unstructured) *int32 {
	n, ok, err := unstructured.NestedInt64(w.Object, "spec", "replicas")
	if err != nil || !ok {
		n = 1
	}
	return new(int32(max(0, min(n, 1<<31-1))))
}

func policyOf(p *scheduling.Placement) place.Policy {
	s := p.Spec.Strategy
	of := place.Policy{Strategy: s.Type, Tolerations: p.Spec.Tolerations}
	if s.Divide != nil {
		of.Min, of.Max = value(s.Divide.MinPerTarget), value(s.Divide.MaxPerTarget)
	}
	if s.Targets != nil {
		of.Targets = int(value(s.Targets.Max))
	}
	return of
}

func value(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

// placementOf returns the Placement of a workload, the oldest one that selects it.
func (f *fleet) placementOf(key kcp.Key) *scheduling.Placement {
	var found *scheduling.Placement
	for _, p := range f.placements.List(key.Cluster) {
		if p.DeletionTimestamp != nil || !takes(p, key.Namespace) {
			continue
		}
		if found == nil || cmp.Or(p.CreationTimestamp.Compare(found.CreationTimestamp.Time), compareNames(p.Name, found.Name)) < 0 {
			found = p
		}
	}
	return found
}

// takes reports whether a Placement selects a namespace.
func takes(p *scheduling.Placement, namespace string) bool {
	return p.Spec.NamespaceSelector == nil || selects(p.Spec.NamespaceSelector, map[string]string{corev1.LabelMetadataName: namespace})
}

// explain says in words why a workload is not scheduled. It names no target.
func explain(d place.Decision) string {
	if d.Reason == "" {
		return ""
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
func (f *fleet) assign(ctx context.Context, w *unstructured.Unstructured, a *workload.Assignment, next workload.AssignmentSpec) error {
	if a != nil && sameSpec(a.Spec, next) {
		return nil
	}
	key := kcp.KeyOf(w)
	if err := f.finalize(ctx, w, true); err != nil {
		return err
	}
	in, err := f.assignmentsIn.In(string(key.Cluster))
	if err != nil {
		return err
	}
	all := in.Namespace(key.Namespace)
	if a != nil {
		made := a.DeepCopy() // of a revision that may be old: then the update conflicts, and the next decision sees the new one
		made.Spec = next
		_, err = all.Update(ctx, made, metav1.UpdateOptions{})
		return err
	}
	made := &workload.Assignment{Spec: next}
	made.Name, made.Namespace = engine.AssignmentName(engine.Deployments().GroupResource(), key.Name), key.Namespace
	made.OwnerReferences = []metav1.OwnerReference{engine.Owner(w)}
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
func (f *fleet) finalize(ctx context.Context, w *unstructured.Unstructured, placed bool) error {
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
	in, err := dynamic.NewForConfig(client.Cluster(f.view, string(kcp.KeyOf(w).Cluster)))
	if err != nil {
		return err
	}
	_, err = in.Resource(engine.Deployments()).Namespace(w.GetNamespace()).Patch(ctx, w.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return ignoreGone(err)
}

// bury removes a workload from all targets, and then lets the server delete it.
func (f *fleet) bury(ctx context.Context, w *unstructured.Unstructured, a *workload.Assignment) error {
	if !slices.Contains(w.GetFinalizers(), workload.PlacedFinalizer) {
		return nil
	}
	if others := slices.DeleteFunc(slices.Clone(w.GetFinalizers()), func(of string) bool { return of == workload.PlacedFinalizer }); slices.Contains(others, metav1.FinalizerOrphanDependents) {
		return nil // the garbage collector is first
	}
	if a != nil {
		next := *a.Spec.DeepCopy()
		next.Targets, next.Reason, next.Message = nil, "", ""
		key, targets := kcp.KeyOf(w), f.keys()
		for _, t := range a.Spec.Targets {
			if t.Phase == workload.Removing && (f.reportOf(key, t.Key) == nil || !targets[t.Key]) {
				continue
			}
			next.Targets = append(next.Targets, workload.AssignedTarget{Key: t.Key, Location: t.Location, Phase: workload.Removing, Reason: "Deleted"})
		}
		if len(next.Targets) > 0 {
			return f.assign(ctx, w, a, next)
		}
	}
	return f.finalize(ctx, w, false)
}

// keys returns the keys of all targets.
func (f *fleet) keys() map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]bool{}
	for _, w := range f.world {
		all[w.Key] = true
	}
	return all
}
