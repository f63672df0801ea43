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
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/profile"
)

type profileClient = client.Client[*workload.ResourceProfile, *workload.ResourceProfileList]

// profileLoop adds and removes the kinds that ResourceProfiles of the compute workspace describe.
func (f *fleet) profileLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-profiles", Workers: 1, Do: f.profile, On: []kcp.Source{f.consumers.Profiles.Changed(), {Subscribe: func(wake func(kcp.Key)) func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.profiles = wake
		return nil
	}}}}
}

func (f *fleet) profile(ctx context.Context, key kcp.Key) error {
	if err := f.consumers.Describe(key); err != nil {
		return err
	}
	return f.keep(ctx, key)
}

// keep holds a ResourceProfile by a finalizer until no object of its kind is placed any more. Without the profile,
// the server could not remove the copies. Only the server that leads does this.
func (f *fleet) keep(ctx context.Context, key kcp.Key) error {
	of := schema.ParseGroupResource(key.Name)
	r, k := f.consumers.Profiles.Get(key), f.consumers.Kind(of)
	if !f.leads || r == nil || profile.IsShipped(of) {
		return nil
	}
	ending, lost := f.scheduler.Dissolving()
	has := slices.Contains(r.Finalizers, workload.InUseFinalizer)
	switch {
	case r.DeletionTimestamp == nil && !has && k != nil && !ending:
		return finalizeProfile(ctx, f.profilesIn, r, true)
	case r.DeletionTimestamp == nil, !has:
		return nil
	case lost:
		return finalizeProfile(ctx, f.profilesIn, r, false)
	case k != nil && !k.Leaving.Swap(true):
		return kcp.After(soon) // decisions that are being made end first
	}
	users, example, sure := f.consumers.PlacedOf(of)
	if sure && users == 0 {
		return finalizeProfile(ctx, f.profilesIn, r, false)
	}
	if sure {
		if err := f.saysInUse(ctx, r, fmt.Sprintf("objects that are still placed: %d, such as %s in the logical cluster %s; the profile is in effect until they are deleted", users, example.Name, example.Cluster)); err != nil {
			return err
		}
	}
	return kcp.After(soon)
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
	_, err = f.profilesIn.Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return objects.IgnoreGone(err)
}

// finalizeProfile adds or removes the finalizer of a ResourceProfile.
func finalizeProfile(ctx context.Context, in *profileClient, r *workload.ResourceProfile, inUse bool) error {
	next := slices.DeleteFunc(slices.Clone(r.Finalizers), func(of string) bool { return of == workload.InUseFinalizer })
	if inUse {
		next = append(next, workload.InUseFinalizer)
	}
	patch, err := objects.FinalizersPatch(r, next)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return objects.IgnoreGone(err)
}

// profilesOf returns a client for the ResourceProfiles of a compute workspace.
func (m *manager) profilesOf(compute kcp.ClusterName) (*profileClient, error) {
	home, err := m.server.Own(string(compute))
	if err != nil {
		return nil, err
	}
	return client.New[*workload.ResourceProfile, *workload.ResourceProfileList](home, string(compute), workload.GroupVersion.WithResource("resourceprofiles"))
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
	for _, r := range f.consumers.Profiles.List(f.compute) {
		wake(kcp.KeyOf(r))
	}
}
