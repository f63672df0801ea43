package export

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/objects"
)

// The view of a fleet ends with its export, which a user may delete, alone or with the compute workspace. The
// consumers keep their bindings and objects. So the server then removes the finalizers, Assignments and TargetStatuses
// in the workspaces of the consumers themselves. Otherwise, they would block the deletion of these objects for ever.

// bindings calls each with the APIBindings of consumers.
func (e *Exports) bindings(ctx context.Context, selector labels.Selector, each func(*apis.APIBinding)) error {
	cfg, err := e.server.Own("*")
	if err != nil {
		return err
	}
	all, err := client.New[*apis.APIBinding, *apis.APIBindingList](cfg, "*", apiBindings())
	if err != nil {
		return err
	}
	o := metav1.ListOptions{LabelSelector: selector.String(), Limit: 500}
	for {
		page, err := all.List(ctx, o)
		if err != nil {
			return err
		}
		for i := range page.Items {
			b := &page.Items[i]
			if b.Spec.Reference.Export != nil && b.Spec.Reference.Export.Name == workload.KubernetesExport && slices.ContainsFunc(b.Status.BoundResources, func(r apis.BoundResource) bool { return resourceOf(r) == consumers.Assignments().GroupResource() }) {
				each(b)
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return nil
		}
	}
}

func resourceOf(r apis.BoundResource) schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// Sweep frees the consumers whose export is gone.
func (e *Exports) Sweep(ctx context.Context) error {
	computes := map[kcp.ClusterName]bool{}
	err := e.bindings(ctx, labels.Everything(), func(b *apis.APIBinding) { computes[kcp.ClusterName(b.Status.APIExportClusterName)] = true })
	var failed []error
	for compute := range computes {
		failed = append(failed, e.Free(ctx, compute))
	}
	return errors.Join(append(failed, err)...)
}

// Free removes what a fleet left in its consumers, if its export is gone or is being deleted.
func (e *Exports) Free(ctx context.Context, compute kcp.ClusterName) error {
	if compute == "" {
		return nil
	}
	if exported, err := e.Exists(ctx, compute); exported || err != nil {
		return err
	}
	var bound []*apis.APIBinding
	value := apis.ExportLabelValue(string(compute), workload.KubernetesExport)
	if err := e.bindings(ctx, labels.SelectorFromSet(labels.Set{apis.ExportLabel: value}), func(b *apis.APIBinding) { bound = append(bound, b) }); err != nil {
		return err
	}
	var failed []error
	freed := false
	for _, b := range bound { // no consumer waits for another one
		some, err := e.freeConsumer(ctx, b)
		freed = freed || some
		if err != nil {
			failed = append(failed, fmt.Errorf("free %s of the compute workspace %s: %w", kcp.KeyOf(b).Cluster, compute, err))
		}
	}
	if len(failed) == 0 && freed {
		return kcp.After(time.Second) // a write of the scheduler may have come after the list
	}
	return errors.Join(failed...)
}

// freeConsumer removes the finalizers, then the TargetStatuses, then the Assignments from a consumer. An attempt
// that is interrupted leaves Assignments, which start a sweep. It reports whether there were any.
func (e *Exports) freeConsumer(ctx context.Context, b *apis.APIBinding) (some bool, err error) {
	at := string(kcp.KeyOf(b).Cluster)
	cfg, err := e.server.Own(at)
	if err != nil {
		return false, err
	}
	in, err := metadata.NewForConfig(client.Cluster(cfg, at))
	if err != nil {
		return false, err
	}
	own := []schema.GroupVersionResource{consumers.TargetStatuses(), consumers.Assignments()}
	for _, r := range b.Status.BoundResources {
		if slices.ContainsFunc(own, func(of schema.GroupVersionResource) bool { return of.GroupResource() == resourceOf(r) }) {
			continue
		}
		for _, version := range r.StorageVersions {
			of := resourceOf(r).WithVersion(version)
			err := eachOf(ctx, in, of, func(o *metav1.PartialObjectMetadata) error {
				if !slices.Contains(o.Finalizers, workload.PlacedFinalizer) {
					return nil
				}
				some = true
				return unfinalize(ctx, in.Resource(of).Namespace(o.Namespace), o)
			})
			if err != nil {
				return some, err
			}
		}
	}
	for _, of := range own {
		err := eachOf(ctx, in, of, func(o *metav1.PartialObjectMetadata) error {
			some = true
			return objects.IgnoreGone(in.Resource(of).Namespace(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(o.UID))}))
		})
		if err != nil {
			return some, err
		}
	}
	return some, nil
}

// eachOf calls do with all objects of a resource in a consumer. It continues after errors, which it returns.
func eachOf(ctx context.Context, in metadata.Interface, of schema.GroupVersionResource, do func(*metav1.PartialObjectMetadata) error) error {
	o := metav1.ListOptions{Limit: 500}
	var failed error
	for {
		page, err := in.Resource(of).List(ctx, o)
		if err != nil {
			return errors.Join(failed, objects.IgnoreGone(err)) // the consumer does not serve this version
		}
		for i := range page.Items {
			if err := do(&page.Items[i]); err != nil {
				failed = err // one is enough: there may be many
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return failed
		}
	}
}

func unfinalize(ctx context.Context, in metadata.ResourceInterface, o *metav1.PartialObjectMetadata) error {
	left := slices.DeleteFunc(slices.Clone(o.Finalizers), func(of string) bool { return of == workload.PlacedFinalizer })
	patch, err := objects.FinalizersPatch(o, left)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return objects.IgnoreGone(err)
}
