package fleet

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

type profileClient = client.Client[*workload.ResourceProfile, *workload.ResourceProfileList]

// profileLoop adds and removes the kinds that ResourceProfiles of the compute workspace describe.
func (f *fleet) profileLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-profiles", Workers: 1, Do: f.profile, On: []kcp.Source{f.kinds.own.Changed(), {Subscribe: func(wake func(kcp.Key)) func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.profiles = wake
		return nil
	}}}}
}

// mostProfiles is the maximum of ResourceProfiles of a compute workspace. Each has a watch.
const mostProfiles = 50

func (f *fleet) profile(ctx context.Context, key kcp.Key) error {
	if err := f.describe(key); err != nil {
		return err
	}
	return f.keep(ctx, key)
}

// describe adds or removes the kind that a ResourceProfile describes. One that is being deleted stays in effect.
func (f *fleet) describe(key kcp.Key) error {
	t := &f.kinds
	of := schema.ParseGroupResource(key.Name)
	if isShipped(of) {
		return nil
	}
	t.profiling.Lock()
	defer t.profiling.Unlock()
	var next *kind
	if r, have := t.own.Get(key), t.get(of); r != nil && (have != nil || len(t.list()) < mostProfiles+len(profile.Shipped())) {
		if have != nil && sameProfile(have.Profile, profile.Of(r)) {
			return nil
		}
		var err error
		if next, err = t.newKind(profile.Of(r)); err != nil {
			return err
		}
	}
	t.mu.Lock()
	kinds := slices.Clone(t.kinds)
	kinds = slices.DeleteFunc(kinds, func(k *kind) bool {
		if k.GroupResource() != of {
			return false
		}
		k.end()
		return true
	})
	if next != nil {
		kinds = append(kinds, next)
	}
	t.kinds = kinds
	t.mu.Unlock()
	if next != nil {
		next.begin()
	}
	f.tell("", engine.ID{GroupResource: resourceProfiles().GroupResource(), Key: key})
	return nil
}

// keep holds a ResourceProfile by a finalizer until no object of its kind is placed any more. Without the profile,
// the server could not remove the copies. Only the server that leads does this.
func (f *fleet) keep(ctx context.Context, key kcp.Key) error {
	t, of := &f.kinds, schema.ParseGroupResource(key.Name)
	r, k := t.own.Get(key), t.get(of)
	if !f.leads || r == nil || isShipped(of) {
		return nil
	}
	ending, lost := f.dissolving()
	has := slices.Contains(r.Finalizers, workload.InUseFinalizer)
	switch {
	case r.DeletionTimestamp == nil && !has && k != nil && !ending:
		return finalizeProfile(ctx, t.described, r, true)
	case r.DeletionTimestamp == nil, !has:
		return nil
	case lost:
		return finalizeProfile(ctx, t.described, r, false)
	case k != nil && !k.leaving.Swap(true):
		return kcp.After(soon) // decisions that are being made end first
	}
	users, example, sure := f.placedOf(of, k)
	if sure && users == 0 {
		return finalizeProfile(ctx, t.described, r, false)
	}
	if sure {
		if err := f.saysInUse(ctx, r, fmt.Sprintf("objects that are still placed: %d, such as %s in the logical cluster %s; the profile is in effect until they are deleted", users, example.Name, example.Cluster)); err != nil {
			return err
		}
	}
	return kcp.After(soon)
}

// placedOf counts the objects of a resource that are placed, and returns one. It is not sure before the caches are complete.
func (f *fleet) placedOf(of schema.GroupResource, k *kind) (users int, example kcp.Key, sure bool) {
	select {
	case <-f.kinds.settled:
	default:
		return 0, example, false
	}
	all := map[kcp.Key]bool{}
	for _, a := range f.assignments.List("*") {
		if id := engine.IDFor(a, a.Spec.Workload); id.GroupResource == of {
			all[id.Key] = true
		}
	}
	for _, r := range f.reports.List("*") {
		if id := engine.IDFor(r, r.Spec.Workload); id.GroupResource == of {
			all[id.Key] = true
		}
	}
	if k != nil {
		for _, o := range k.objects.List("*") {
			if slices.Contains(o.GetFinalizers(), workload.PlacedFinalizer) {
				all[kcp.KeyOf(o)] = true
			}
		}
	}
	for key := range all {
		if example.Name == "" || key.String() < example.String() { // the message does not change without need
			example = key
		}
	}
	return len(all), example, true
}

// saysInUse sets the condition InUse of a ResourceProfile that is being deleted.
func (f *fleet) saysInUse(ctx context.Context, r *workload.ResourceProfile, message string) error {
	next := r.Status.DeepCopy()
	if !next.Conditions.Set(conditions.Condition{Type: workload.InUse, Status: metav1.ConditionTrue, Reason: workload.StillPlaced, Message: message}) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": r.ResourceVersion}, "status": next})
	if err != nil {
		return err
	}
	_, err = f.kinds.described.Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return ignoreGone(err)
}

// finalizeProfile adds or removes the finalizer of a ResourceProfile.
func finalizeProfile(ctx context.Context, in *profileClient, r *workload.ResourceProfile, inUse bool) error {
	next := slices.DeleteFunc(slices.Clone(r.Finalizers), func(of string) bool { return of == workload.InUseFinalizer })
	if inUse {
		next = append(next, workload.InUseFinalizer)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": r.ResourceVersion, "finalizers": next}})
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return ignoreGone(err)
}

// profilesOf returns a client for the ResourceProfiles of a compute workspace.
func (m *manager) profilesOf(compute kcp.ClusterName) (*profileClient, error) {
	home, err := m.server.Own(string(compute))
	if err != nil {
		return nil, err
	}
	return client.New[*workload.ResourceProfile, *workload.ResourceProfileList](home, string(compute), resourceProfiles())
}

// freeProfiles removes the finalizers of all ResourceProfiles of a compute workspace that places nothing any more.
func (m *manager) freeProfiles(ctx context.Context, compute kcp.ClusterName) error {
	in, err := m.profilesOf(compute)
	if err != nil {
		return err
	}
	all, err := in.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil // the workspace is gone, or has none
	}
	if err != nil {
		return err
	}
	for i := range all.Items {
		if r := &all.Items[i]; slices.Contains(r.Finalizers, workload.InUseFinalizer) {
			if err := finalizeProfile(ctx, in, r, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// reviewProfiles wakes the loop of ResourceProfiles.
func (f *fleet) reviewProfiles() {
	f.mu.Lock()
	wake := f.profiles
	f.mu.Unlock()
	if wake == nil {
		return
	}
	for _, r := range f.kinds.own.List(f.compute) {
		wake(kcp.KeyOf(r))
	}
}
