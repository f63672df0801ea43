package engine

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// blank returns an empty report.
func (j *job) blank() workload.TargetStatusSpec {
	s := workload.TargetStatusSpec{Key: j.Engine.key, Workload: Reference(j.id.GroupResource, j.want)}
	if j.part != nil {
		s.Location = j.part.Location
	}
	return s
}

// Reference returns the reference to a workload.
func Reference(of schema.GroupResource, w *unstructured.Unstructured) workload.WorkloadReference {
	return workload.WorkloadReference{Group: of.Group, Resource: of.Resource, Kind: w.GetKind(), Name: w.GetName(), UID: string(w.GetUID())}
}

// last returns the last report, if it is about this workload and not about one of its name.
func (j *job) last() *workload.TargetStatusSpec {
	if j.report == nil || j.report.Spec.Workload.UID != string(j.want.GetUID()) {
		return nil
	}
	return &j.report.Spec
}

// say writes the report, unless it equals the last one.
func (j *job) say(ctx context.Context, next workload.TargetStatusSpec) error {
	if last := j.last(); last != nil && sameReport(*last, next) {
		return nil
	}
	report := &workload.TargetStatus{Spec: next}
	report.Name, report.Namespace = StatusName(j.id.GroupResource, j.id.Key.Name, j.Engine.key), j.id.Key.Namespace
	return j.desired.Report(ctx, j.id, report)
}

// ends reports that the object in the physical cluster is being deleted: its replicas no longer
// count. The watch wakes the key when the object is gone.
func (j *job) ends(ctx context.Context) error {
	last := j.last()
	if last == nil {
		return nil
	}
	next := *last
	next.Observed = false
	return j.say(ctx, next)
}

// raw returns a status as it is in reports.
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
		if _, err = all.Create(ctx, made, metav1.CreateOptions{FieldManager: manager}); err != nil && !apierrors.IsAlreadyExists(err) {
			return false, j.refused(ctx, err)
		} else if err != nil {
			return false, kcp.After(soon) // another job was first, or it is not the engine's
		}
	} else if err != nil {
		return false, j.refused(ctx, err)
	} else if !owned(have, j.from) {
		return false, j.notOurs(ctx)
	} else if have.GetDeletionTimestamp() != nil {
		return false, kcp.After(soon)
	}
	j.keepNamespace()
	return true, nil
}

// refused reports why the namespace cannot be made, if the job is about an object that has reports.
func (j *job) refused(ctx context.Context, err error) error {
	if j.want == nil {
		return err
	}
	return j.failed(ctx, err)
}

func (j *job) notOurs(ctx context.Context) error {
	if j.want == nil {
		return again()
	}
	return j.refuse(ctx, reason{"Conflict", "the namespace of the workload exists in the physical cluster and was not created by this workspace"})
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
