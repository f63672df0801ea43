package export

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/objects"
)

// The export of a compute workspace with SyncTargets has a finalizer, because the server reaches consumers only through the
// export. If a user deletes the export, the physical clusters first remove all copies.

// Hold puts the finalizer on an export.
func (e *Exports) Hold(ctx context.Context, of *apis.APIExport) error {
	if held(of) {
		return nil
	}
	return e.finalize(ctx, of, append(slices.Clone(of.Finalizers), workload.InUseFinalizer))
}

// Release removes the finalizer from the export of a compute workspace, if there is one.
func (e *Exports) Release(ctx context.Context, compute kcp.ClusterName) error {
	in, err := e.in(compute)
	if err != nil {
		return err
	}
	of, err := in.Get(ctx, workload.KubernetesExport, metav1.GetOptions{})
	if err != nil {
		return objects.IgnoreGone(err)
	}
	return e.release(ctx, of)
}

// release removes the finalizer from an export.
func (e *Exports) release(ctx context.Context, of *apis.APIExport) error {
	if !held(of) {
		return nil
	}
	return e.finalize(ctx, of, slices.DeleteFunc(slices.Clone(of.Finalizers), func(f string) bool { return f == workload.InUseFinalizer }))
}

func (e *Exports) finalize(ctx context.Context, of *apis.APIExport, finalizers []string) error {
	patch, err := objects.FinalizersPatch(of, finalizers)
	if err != nil {
		return err
	}
	in, err := e.in(kcp.KeyOf(of).Cluster)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, of.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return objects.IgnoreGone(err)
}

// Say sets a condition of an export, which is as the server has it.
func (e *Exports) Say(ctx context.Context, of *apis.APIExport, c conditions.Condition) error {
	next := slices.Clone(of.Status.Conditions)
	if !next.Set(c) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": of.ResourceVersion}, "status": map[string]any{"conditions": next}})
	if err != nil {
		return err
	}
	in, err := e.in(kcp.KeyOf(of).Cluster)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, of.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return objects.IgnoreGone(err)
}

// ReleaseUnused removes the finalizer from exports whose logical clusters have no SyncTargets: users may remove these
// while no server leads. used returns the logical clusters that have some.
func (e *Exports) ReleaseUnused(ctx context.Context, used func(context.Context) (map[kcp.ClusterName]bool, error)) error {
	all, err := e.in("*")
	if err != nil {
		return err
	}
	list, err := all.List(ctx, metav1.ListOptions{FieldSelector: named()})
	if err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items, func(of apis.APIExport) bool { return !held(&of) })
	if len(list.Items) == 0 {
		return nil
	}
	in, err := used(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for i := range list.Items {
		if of := &list.Items[i]; !in[kcp.KeyOf(of).Cluster] {
			failed = append(failed, e.release(ctx, of))
		}
	}
	return errors.Join(failed...)
}
