package agent

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

const (
	// takeover is the lease of a replica that begins to lead, until it has reached the server.
	takeover = 15 * time.Second
	// looked is the time between two checks of the lease.
	looked = time.Second
)

// A lease is the time in which the server starts no workload elsewhere that runs at one place.
// After it, the agent stops the workloads with lease fencing.
type lease struct {
	mu     sync.Mutex
	begun  time.Time      // guarded by mu
	length time.Duration  // zero means that it has no end; guarded by mu
	engine *engine.Engine // nil while none runs; guarded by mu
}

// begin begins a lease.
func (l *lease) begin(at time.Time, length time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun, l.length = at, length
}

// tell makes the lease known to an engine, before the engine runs.
func (l *lease) tell(e *engine.Engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.engine = e; e != nil {
		e.Lease(!l.overAt(time.Now()))
	}
}

// over reports whether the lease has run out, and tells the engine.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.overAt(time.Now())
	if l.engine != nil {
		l.engine.Lease(!over)
	}
	return over
}

// overAt reports whether the lease has run out. It uses both clocks: the monotonic one may stand still
// while a machine sleeps, and the other one may be set.
func (l *lease) overAt(now time.Time) bool {
	return l.length > 0 && max(now.Sub(l.begun), now.Round(0).Sub(l.begun.Round(0))) > l.length
}

// mayStop reports whether the agent has the right to end pods. Without it, the agent may not have
// stopped the workloads in time.
func (a *agent) mayStop(ctx context.Context) bool {
	review, err := a.clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "pods"}}}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed
}

// keep stops workloads with lease fencing while the lease has run out, until ctx ends.
func (a *agent) keep(ctx context.Context) {
	for ctx.Err() == nil {
		next := looked
		if a.lease.over() {
			if err := a.quiesce(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "cannot stop the workloads that may begin elsewhere; the agent tries again")
			}
			next *= 3
		}
		wait(ctx, next)
	}
}

// quiesce stops the workloads with lease fencing. It finds them by their marks: a replica that has
// just begun to lead knows nothing else.
func (a *agent) quiesce(ctx context.Context) error {
	for _, p := range profile.Shipped() {
		if p.Quiesce == nil {
			continue
		}
		all := a.objects.Resource(p.GroupVersionResource)
		list, err := all.List(ctx, metav1.ListOptions{LabelSelector: workload.OwnerLabel + "=" + a.key})
		if err != nil {
			return err
		}
		patch, err := json.Marshal(p.Quiesce)
		if err != nil {
			return err
		}
		for i := range list.Items {
			o := &list.Items[i]
			if o.GetAnnotations()[workload.FencingAnnotation] != workload.LeaseFencing || p.Finished(o) {
				continue
			}
			if !quiet(o, p.Quiesce) {
				klog.FromContext(ctx).Info("the lease has run out: the workload is stopped", "resource", p.Resource, "namespace", o.GetNamespace(), "name", o.GetName())
				_, err := all.Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kcp-agent-lease"})
				if err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
			if err := a.endPods(ctx, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// quiet reports whether an object has the values of a patch.
func quiet(o *unstructured.Unstructured, patch map[string]any) bool {
	want, _ := patch["spec"].(map[string]any)
	have, _ := o.Object["spec"].(map[string]any)
	for field, value := range want {
		wanted, err := json.Marshal(value)
		found, foundErr := json.Marshal(have[field])
		if err != nil || foundErr != nil || string(wanted) != string(found) {
			return false
		}
	}
	return true
}

// endPods deletes the pods of an object: its controller may wait for one to become ready before it
// deletes the next one.
func (a *agent) endPods(ctx context.Context, of *unstructured.Unstructured) error {
	labels, _, err := unstructured.NestedStringMap(of.Object, "spec", "selector", "matchLabels")
	if err != nil || len(labels) == 0 {
		return err
	}
	pods := a.clients.CoreV1().Pods(of.GetNamespace())
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels})})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil && ends(p) && metav1.IsControlledBy(p, of) {
			err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	return nil
}

// ends reports whether a pod has not ended yet.
func ends(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}
