// Package engine is the agent that works on one physical cluster. It applies the parts of
// workloads that the target is assigned, reports about them, and removes them. It hides how
// objects of many workspaces share a physical cluster.
//
// It never changes an object that it did not create, and it removes one only after the server
// said that its workload is gone, or that the target has no part of it any more.
package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// manager is the field manager of the agent in physical clusters.
const (
	manager = "kcp-syncer"

	retryNamespace = time.Second // a namespace that is being deleted
)

// Deployments is the resource that the engine syncs.
func Deployments() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

func namespaces() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
}

// Desired is the side of the engine that the workspaces are on.
type Desired struct {
	// Workloads, Assignments and Reports are the objects of all consumers.
	Workloads   *kcp.Kind[*unstructured.Unstructured]
	Assignments *kcp.Kind[*workload.Assignment]
	Reports     *kcp.Kind[*workload.TargetStatus]
	// Wakes wakes the engine with the workloads whose desired state may have changed.
	Wakes kcp.Source
	// Read reads a workload and its Assignment from the server, not from a cache. It returns nil
	// for what does not exist.
	Read func(context.Context, kcp.Key) (*unstructured.Unstructured, *workload.Assignment, error)
	// Report writes or, if report is nil, deletes the TargetStatus of a workload.
	Report func(ctx context.Context, of kcp.Key, name string, report *workload.TargetStatus) error
}

// An Engine syncs workloads with one physical cluster.
type Engine struct {
	key     string // of the target
	desired Desired
	client  dynamic.Interface
	have    *kcp.Kind[*unstructured.Unstructured]

	objects atomic.Int64 // in the cache, about

	mu   sync.Mutex
	made map[string]bool // namespaces that are known to be the engine's; guarded by mu
}

// New returns an engine for the target with the given key. Config is for the physical cluster.
func New(key string, config *rest.Config, desired Desired) (*Engine, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	e := &Engine{key: key, desired: desired, client: client, made: map[string]bool{}}
	selector := workload.OwnerLabel + "=" + key
	all := client.Resource(Deployments())
	e.have = kcp.NewKind("deployments of a target", &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			if o.ResourceVersion == "0" {
				o.ResourceVersion, o.Limit = "", pageSize // a list from the cache has no pages
			}
			list, err := all.List(ctx, o)
			if err != nil {
				return nil, err
			}
			if o.Continue == "" {
				e.objects.Store(0)
			}
			if e.objects.Add(int64(len(list.Items))) > mostObjects {
				return nil, errTooMany
			}
			for i := range list.Items {
				stamp(&list.Items[i])
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			changes, err := all.Watch(ctx, o)
			if err != nil {
				return nil, err
			}
			return watch.Filter(changes, func(change watch.Event) (watch.Event, bool) {
				o, ok := change.Object.(*unstructured.Unstructured)
				if !ok || change.Type == watch.Error {
					return change, true
				}
				stamp(o)
				switch {
				case change.Type == watch.Deleted:
					e.objects.Add(-1)
				case change.Type == watch.Added && e.objects.Add(1) > mostObjects:
					return change, false
				}
				return change, true
			}), nil
		},
	}, slim)
	return e, nil
}

const (
	pageSize = 500
	// mostObjects is the maximum of objects of one target, and mostStatus that of the bytes of a
	// status. Whoever runs the physical cluster decides what it says, and the server keeps that.
	mostObjects = 20_000
	mostStatus  = 16 << 10
)

var errTooMany = fmt.Errorf("the physical cluster lists more than %d objects", mostObjects)

// physical stands for the logical cluster of objects in the physical cluster.
const physical = "physical"

// stamp gives an object of the physical cluster the annotation by which a Kind keeps it.
func stamp(o *unstructured.Unstructured) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[core.ClusterAnnotation] = physical
	o.SetAnnotations(annotations)
}

// Synced is closed once the engine knows what the physical cluster has.
func (e *Engine) Synced() <-chan struct{} { return e.have.Ready() }

// Run syncs until ctx ends, and returns when all its goroutines have ended.
func (e *Engine) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { e.have.Run(ctx) })
	kcp.Run(ctx, kcp.Loop{
		Name: "workload-sync",
		On: []kcp.Source{
			e.desired.Workloads.Read(), e.desired.Assignments.Read(), e.desired.Reports.Read(), e.desired.Wakes,
			e.have.Wakes(func(o *unstructured.Unstructured) []kcp.Key {
				l, ok := locatorOf(o)
				if !ok {
					return nil
				}
				return []kcp.Key{{Cluster: kcp.ClusterName(l.Cluster), Namespace: l.Namespace, Name: o.GetName()}}
			}),
		},
		Do: e.sync,
	})
}

// A job is the work on one workload.
type job struct {
	*Engine
	key    kcp.Key
	from   Locator
	want   *unstructured.Unstructured // the workload; nil if there is none
	part   *workload.AssignedTarget   // of this target; nil if it has none
	have   *unstructured.Unstructured // in the physical cluster, without spec; nil if there is none
	report *workload.TargetStatus     // the last one; nil if there is none
}

func (e *Engine) sync(ctx context.Context, key kcp.Key) error {
	j := &job{Engine: e, key: key, from: Locator{Cluster: string(key.Cluster), Namespace: key.Namespace, Target: e.key}}
	j.want = e.desired.Workloads.Get(key)
	gr := Deployments().GroupResource()
	j.report = e.desired.Reports.Get(kcp.Key{Cluster: key.Cluster, Namespace: key.Namespace, Name: StatusName(gr, key.Name, e.key)})
	j.part = e.partOf(j.want, e.desired.Assignments.Get(kcp.Key{Cluster: key.Cluster, Namespace: key.Namespace, Name: AssignmentName(gr, key.Name)}))
	if j.have = e.have.Get(kcp.Key{Cluster: physical, Namespace: j.from.namespace(), Name: key.Name}); j.have != nil && !owned(j.have, j.from) {
		return j.conflict(ctx)
	}
	if j.have != nil {
		j.keepNamespace()
	}
	if j.want == nil || j.part == nil || j.part.Phase == workload.Removing {
		return j.remove(ctx)
	}
	return j.apply(ctx)
}

// partOf returns the part of the target in an Assignment, nil if it has none.
func (e *Engine) partOf(w *unstructured.Unstructured, a *workload.Assignment) *workload.AssignedTarget {
	// The Assignment of a workload of the same name that was deleted says nothing.
	if a == nil || w != nil && a.Spec.Workload.UID != string(w.GetUID()) {
		return nil
	}
	for i := range a.Spec.Targets {
		if a.Spec.Targets[i].Key == e.key {
			return &a.Spec.Targets[i]
		}
	}
	return nil
}

func (j *job) objects() dynamic.ResourceInterface {
	return j.client.Resource(Deployments()).Namespace(j.from.namespace())
}

// read reads the object from the physical cluster, which may have one that the engine does not
// watch. It returns nil if there is none.
func (j *job) read(ctx context.Context) (*unstructured.Unstructured, error) {
	o, err := j.objects().Get(ctx, j.key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// apply brings the object in the physical cluster to what is assigned, and reports.
func (j *job) apply(ctx context.Context) error {
	want, err := desired(j.want, j.part, j.from)
	if err != nil {
		return err
	}
	next := j.blank()
	if j.report != nil {
		next.TargetGeneration = j.report.Spec.TargetGeneration
	}
	if j.have == nil || !current(want, j.have, j.last()) {
		made, err := j.write(ctx, want)
		if made == nil || err != nil {
			return err
		}
		next.TargetGeneration = made.GetGeneration()
		j.have = slim(made)
	}
	next.Generation, next.Replicas = j.want.GetGeneration(), j.part.Replicas
	status, _, err := unstructured.NestedMap(j.have.Object, "status")
	if err != nil {
		return err
	}
	observed, _, err := unstructured.NestedInt64(status, "observedGeneration")
	if err != nil {
		return err
	}
	next.Observed = observed >= next.TargetGeneration
	if next.Reported, err = raw(status); err != nil {
		return err
	}
	return j.say(ctx, next)
}

// write applies the object. It returns nil if the physical cluster has one that is not the
// engine's.
func (j *job) write(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if j.have == nil {
		foreign, err := j.read(ctx)
		if err != nil {
			return nil, j.failed(ctx, err)
		}
		if foreign != nil && !owned(foreign, j.from) {
			return nil, j.conflict(ctx)
		}
		j.have = foreign
	}
	if j.report == nil {
		// Before the object is created, so that the scheduler knows that there may be one.
		if err := j.say(ctx, j.blank()); err != nil {
			return nil, err
		}
	}
	if j.have == nil {
		if ok, err := j.ensureNamespace(ctx); err != nil || !ok {
			return nil, err
		}
	} else {
		want.SetUID(j.have.GetUID()) // not another object that took its place
	}
	made, err := j.objects().Apply(ctx, want.GetName(), want, metav1.ApplyOptions{FieldManager: manager, Force: j.have != nil})
	if err != nil {
		j.forgetNamespace()
		return nil, j.failed(ctx, err)
	}
	return made, nil
}

// failed reports why the part cannot be applied, if the physical cluster will not take it later
// either.
func (j *job) failed(ctx context.Context, err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		next := j.blank()
		next.Reason, next.Message = string(apierrors.ReasonForError(err)), refusal(err)
		if said := j.say(ctx, next); said != nil {
			return said
		}
	}
	return err // tried again with back-off
}

// refusal returns the text of an error for the tenant. It does not name the user of the agent, which
// RBAC does.
func refusal(err error) string {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), `User "`) {
		return "the physical cluster does not allow the agent to write this object"
	}
	return limited(err.Error())
}

func limited(text string) string { return text[:min(len(text), 1024)] }

// conflict reports that the physical cluster has an object of the name that the engine did not
// create. The engine leaves it alone.
func (j *job) conflict(ctx context.Context) error {
	if j.want == nil || j.part == nil || j.part.Phase == workload.Removing {
		return j.removed(ctx)
	}
	next := j.blank()
	next.Reason = "Conflict"
	next.Message = fmt.Sprintf("%s %q exists in the physical cluster and was not created by this workspace", j.want.GetKind(), j.key.Name)
	return j.say(ctx, next)
}

// remove removes the object from the physical cluster, and the report once it is gone.
func (j *job) remove(ctx context.Context) error {
	if j.have == nil {
		if j.report == nil && j.knowsNamespace() {
			return j.dropNamespace(ctx) // it was the last object of a workspace that is gone
		}
		if j.report == nil {
			return nil
		}
		found, err := j.read(ctx)
		if err != nil {
			return err
		}
		if found == nil || !owned(found, j.from) {
			return j.removed(ctx)
		}
		j.have = found
	}
	if j.want == nil || j.part == nil {
		// The caches have no part of this target: ask the server before an object is deleted.
		if ok, err := j.orphaned(ctx); err != nil || !ok {
			return err
		}
	}
	if j.have.GetDeletionTimestamp() != nil {
		return nil // the watch wakes the key when it is gone
	}
	uid := j.have.GetUID()
	err := j.objects().Delete(ctx, j.key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationForeground)})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// orphaned reports whether the server confirms that the target has no part of the workload.
func (j *job) orphaned(ctx context.Context) (bool, error) {
	w, a, err := j.desired.Read(ctx, j.key)
	if err != nil {
		return false, err
	}
	if w == nil {
		return true, nil
	}
	part := j.partOf(w, a)
	return part == nil || part.Phase == workload.Removing, nil
}

// removed deletes the report, and the namespace with the last object.
func (j *job) removed(ctx context.Context) error {
	if err := j.dropNamespace(ctx); err != nil {
		return err
	}
	if j.report == nil {
		return nil
	}
	return j.desired.Report(ctx, j.key, j.report.Name, nil)
}
