package consumers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/objects"
)

// in returns a client for the objects of a logical cluster.
func (c *Cache) in(cluster kcp.ClusterName) (dynamic.Interface, error) {
	return dynamic.NewForConfig(client.Cluster(c.options.View, string(cluster)))
}

// writer returns a client for an object.
func (c *Cache) writer(id engine.ID) (dynamic.ResourceInterface, error) {
	k := c.Kind(id.GroupResource)
	if k == nil {
		return nil, fmt.Errorf("%s have no profile any more", id.GroupResource)
	}
	in, err := c.in(id.Key.Cluster)
	if err != nil {
		return nil, err
	}
	return in.Resource(k.GroupVersionResource).Namespace(id.Key.Namespace), nil
}

// missing reports whether the server says that the object does not exist. A view that is gone, or
// a resource that it does not serve, says nothing about objects.
func missing(err error, resource string) bool {
	if !apierrors.IsNotFound(err) {
		return false
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == resource && status.Status().Details.Name != ""
}

// Live reads an object from the server. It returns nil if there is none.
func (c *Cache) Live(ctx context.Context, k *Kind, id engine.ID) (*unstructured.Unstructured, error) {
	in, err := c.in(id.Key.Cluster)
	if err != nil {
		return nil, err
	}
	w, err := in.Resource(k.GroupVersionResource).Namespace(id.Key.Namespace).Get(ctx, id.Key.Name, metav1.GetOptions{})
	if missing(err, k.Resource) {
		return nil, nil
	}
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		// The workspace may be gone, or may not bind the export any more.
		gone, unsure := c.absent(ctx, k, id)
		if gone {
			return nil, nil
		}
		err = errors.Join(err, unsure)
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// absent reports whether a consistent list of the objects of all consumers lacks one.
func (c *Cache) absent(ctx context.Context, k *Kind, id engine.ID) (bool, error) {
	all, err := c.in("*")
	if err != nil {
		return false, err
	}
	list, err := all.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"metadata.name": id.Key.Name, "metadata.namespace": id.Key.Namespace}.String()})
	if err != nil || list.GetContinue() != "" {
		return false, err
	}
	for i := range list.Items {
		if kcp.KeyOf(&list.Items[i]) == id.Key {
			return false, nil
		}
	}
	return true, nil
}

// Silent reports whether the server has no report of a target about an object.
func (c *Cache) Silent(ctx context.Context, id engine.ID, target string) (bool, error) {
	in, err := c.reportsIn.In(string(id.Key.Cluster))
	if err != nil {
		return false, err
	}
	_, err = in.Namespace(id.Key.Namespace).Get(ctx, engine.StatusName(id.GroupResource, id.Key.Name, target), metav1.GetOptions{})
	if missing(err, TargetStatuses().Resource) {
		return true, nil
	}
	return false, err
}

// SaveReport writes the report of a target about an object, or deletes it if report is nil.
func (c *Cache) SaveReport(ctx context.Context, of engine.ID, target string, report *workload.TargetStatus) error {
	in, err := c.reportsIn.In(string(of.Key.Cluster))
	if err != nil {
		return err
	}
	all, name := in.Namespace(of.Key.Namespace), engine.StatusName(of.GroupResource, of.Key.Name, target)
	if report == nil {
		return objects.IgnoreGone(all.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	text, err := json.Marshal(report)
	if err == nil {
		err = c.spent.spend(c.options.Tenant(of.Key.Cluster), time.Now(), len(text))
	}
	if err != nil {
		return err
	}
	have, err := all.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = all.Create(ctx, report, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	next := have.DeepCopy()
	next.Spec, next.OwnerReferences = report.Spec, report.OwnerReferences
	_, err = all.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// CreateAssignment creates the Assignment of an object.
func (c *Cache) CreateAssignment(ctx context.Context, id engine.ID, spec workload.AssignmentSpec) error {
	in, err := c.assignmentsIn.In(string(id.Key.Cluster))
	if err != nil {
		return err
	}
	a := &workload.Assignment{Spec: spec}
	a.Name, a.Namespace = engine.AssignmentName(id.GroupResource, id.Key.Name), id.Key.Namespace
	_, err = in.Namespace(id.Key.Namespace).Create(ctx, a, metav1.CreateOptions{})
	return err
}

// UpdateAssignment gives an Assignment another spec, and removes its owner references. It fails with a conflict
// if a is not the current one.
func (c *Cache) UpdateAssignment(ctx context.Context, a *workload.Assignment, spec workload.AssignmentSpec) error {
	in, err := c.assignmentsIn.In(string(kcp.KeyOf(a).Cluster))
	if err != nil {
		return err
	}
	next := a.DeepCopy()
	next.Spec, next.OwnerReferences = spec, nil
	_, err = in.Namespace(a.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// DeleteAssignment deletes an Assignment, if there is one, and that is not another one by now.
func (c *Cache) DeleteAssignment(ctx context.Context, a *workload.Assignment) error {
	if a == nil {
		return nil
	}
	in, err := c.assignmentsIn.In(string(kcp.KeyOf(a).Cluster))
	if err != nil {
		return err
	}
	return objects.IgnoreGone(in.Namespace(a.Namespace).Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}}))
}

// Delete deletes an object in the background, unless w is another one than that of the server.
func (c *Cache) Delete(ctx context.Context, id engine.ID, w *unstructured.Unstructured) error {
	in, err := c.writer(id)
	if err != nil {
		return err
	}
	uid := w.GetUID()
	return objects.IgnoreGone(in.Delete(ctx, id.Key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationBackground)}))
}

// Finalize adds the finalizer of placed objects to an object, or removes it.
func (c *Cache) Finalize(ctx context.Context, id engine.ID, w *unstructured.Unstructured, placed bool) error {
	has := slices.Contains(w.GetFinalizers(), workload.PlacedFinalizer)
	if has == placed {
		return nil
	}
	next := append(slices.Clone(w.GetFinalizers()), workload.PlacedFinalizer)
	if !placed {
		next = slices.DeleteFunc(slices.Clone(w.GetFinalizers()), func(of string) bool { return of == workload.PlacedFinalizer })
	}
	patch, err := objects.FinalizersPatch(w, next)
	if err != nil {
		return err
	}
	in, err := c.writer(id)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, w.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return objects.IgnoreGone(err)
}

// Create creates an object of a consumer.
func (c *Cache) Create(ctx context.Context, id engine.ID, o *unstructured.Unstructured) error {
	in, err := c.writer(id)
	if err != nil {
		return err
	}
	_, err = in.Create(ctx, o, metav1.CreateOptions{})
	return err
}

// Patch changes an object, or a subresource of it, with a merge patch.
func (c *Cache) Patch(ctx context.Context, id engine.ID, content map[string]any, subresource string) error {
	patch, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := c.spent.spend(c.options.Tenant(id.Key.Cluster), time.Now(), len(patch)); err != nil {
		return err
	}
	in, err := c.writer(id)
	if err != nil {
		return err
	}
	var below []string
	if subresource != "" {
		below = append(below, subresource)
	}
	_, err = in.Patch(ctx, id.Key.Name, types.MergePatchType, patch, metav1.PatchOptions{}, below...)
	return err
}

// SaveStatus replaces the status of an object.
func (c *Cache) SaveStatus(ctx context.Context, id engine.ID, before, next map[string]any) error {
	content := maps.Clone(next)
	for field := range before {
		if _, ok := content[field]; !ok {
			content[field] = nil
		}
	}
	return objects.IgnoreGone(c.Patch(ctx, id, map[string]any{"status": content}, "status"))
}

// SavePlacementStatus writes the status of a Placement.
func (c *Cache) SavePlacementStatus(ctx context.Context, key kcp.Key, next *scheduling.PlacementStatus) error {
	patch, err := json.Marshal(map[string]any{"status": next})
	if err != nil {
		return err
	}
	in, err := c.placementsIn.In(string(key.Cluster))
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return objects.IgnoreGone(err)
}
