package engine

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// blank returns a report that says nothing yet.
func (j *job) blank() workload.TargetStatusSpec {
	s := workload.TargetStatusSpec{Key: j.Engine.key, Workload: Reference(j.want)}
	if j.part != nil {
		s.Location = j.part.Location
	}
	return s
}

// Reference returns the reference to a workload.
func Reference(w *unstructured.Unstructured) workload.WorkloadReference {
	of := Deployments()
	return workload.WorkloadReference{Group: of.Group, Resource: of.Resource, Kind: w.GetKind(), Name: w.GetName(), UID: string(w.GetUID())}
}

// Owner returns the owner reference of a side object of a workload.
func Owner(w *unstructured.Unstructured) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: w.GetAPIVersion(), Kind: w.GetKind(), Name: w.GetName(), UID: w.GetUID()}
}

// last returns the last report, if it is about this workload and not about one of its name.
func (j *job) last() *workload.TargetStatusSpec {
	if j.report == nil || j.report.Spec.Workload.UID != string(j.want.GetUID()) {
		return nil
	}
	return &j.report.Spec
}

// say writes the report, if it says something new.
func (j *job) say(ctx context.Context, next workload.TargetStatusSpec) error {
	if last := j.last(); last != nil && sameReport(*last, next) {
		return nil
	}
	name := StatusName(Deployments().GroupResource(), j.key.Name, j.Engine.key)
	report := &workload.TargetStatus{Spec: next}
	report.Name, report.Namespace = name, j.key.Namespace
	report.OwnerReferences = []metav1.OwnerReference{Owner(j.want)}
	return j.desired.Report(ctx, j.key, name, report)
}

// raw returns the part of a status that goes up.
func raw(status map[string]any) (*runtime.RawExtension, error) {
	if len(status) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	return &runtime.RawExtension{Raw: text}, nil
}

// ensureNamespace creates the namespace of the workload in the physical cluster. It reports false
// if there is one of the name that is not the engine's.
func (j *job) ensureNamespace(ctx context.Context) (bool, error) {
	name := j.from.namespace()
	if j.knowsNamespace() {
		return true, nil
	}
	all := j.client.Resource(namespaces())
	have, err := all.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		locator, err := j.from.text()
		if err != nil {
			return false, err
		}
		made := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
			"name": name, "labels": map[string]any{workload.OwnerLabel: j.from.Target}, "annotations": map[string]any{workload.LocatorAnnotation: locator}}}}
		if _, err = all.Create(ctx, made, metav1.CreateOptions{FieldManager: manager}); err != nil {
			return false, j.failed(ctx, err)
		}
	} else if err != nil {
		return false, j.failed(ctx, err)
	} else if !owned(have, j.from) {
		next := j.blank()
		next.Reason, next.Message = "Conflict", "the namespace of the workload exists in the physical cluster and was not created by this workspace"
		return false, j.say(ctx, next)
	} else if have.GetDeletionTimestamp() != nil {
		return false, kcp.After(retryNamespace)
	}
	j.keepNamespace()
	return true, nil
}

func (j *job) keepNamespace() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.made[j.from.namespace()] = true
}

func (j *job) knowsNamespace() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.made[j.from.namespace()]
}

func (j *job) forgetNamespace() {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.made, j.from.namespace())
}

// dropNamespace deletes the namespace in the physical cluster if the engine has nothing in it any
// more, and nothing is assigned that goes there.
func (j *job) dropNamespace(ctx context.Context) error {
	for _, a := range j.desired.Assignments.List(j.key.Cluster) {
		if a.Namespace != j.key.Namespace || a.Spec.Workload.Name == j.key.Name {
			continue
		}
		for _, t := range a.Spec.Targets {
			if t.Key == j.Engine.key && t.Phase != workload.Removing {
				return nil
			}
		}
	}
	name := j.from.namespace()
	left, err := j.objects().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(left.Items) > 0 {
		return err
	}
	all := j.client.Resource(namespaces())
	have, err := all.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !owned(have, j.from) || have.GetDeletionTimestamp() != nil {
		return err
	}
	j.forgetNamespace()
	uid := have.GetUID()
	err = all.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
