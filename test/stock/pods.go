package stock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// readyPods is the patch of the status of a pod that a kubelet would run.
const readyPods = `{"status":{"phase":"Running","startTime":%[2]q,"podIP":"10.0.0.1","hostIP":"` + NodeAddress + `","containerStatuses":[{"name":%[1]q,"ready":true,"started":true,"image":"i","imageID":"i","state":{"running":{}}}],"conditions":[{"type":"Ready","status":"True","lastTransitionTime":%[2]q}]}}`

// RunPods plays the scheduler and the kubelets of the control plane until ctx ends: every pod becomes
// ready at once, and no container runs. A pod that is deleted goes at once.
func (c *ControlPlane) RunPods(ctx context.Context) error {
	config := c.Config(AdminToken)
	config.QPS = -1 // the default would determine how long the pods of hundreds of workloads take
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		changes, err := client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
		if err == nil {
			err = c.runPods(ctx, client, changes)
			changes.Stop()
			if refused := apierrors.APIStatus(nil); errors.As(err, &refused) && refused.Status().Code < http.StatusInternalServerError && ctx.Err() == nil {
				return err
			}
		}
		if err != nil {
			select { // the control plane was stopped or killed, and may start again
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
	return nil
}

// runPods does what RunPods does until the watch ends.
func (c *ControlPlane) runPods(ctx context.Context, client kubernetes.Interface, changes watch.Interface) error {
	for e := range changes.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.DeletionTimestamp != nil && e.Type != watch.Deleted && p.Spec.NodeName != "" {
			err := client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return err
			}
		} else if ok && p.Status.Phase == corev1.PodPending && p.DeletionTimestamp == nil {
			if err := c.bind(ctx, client, p); err != nil {
				return err
			}
			patch := fmt.Sprintf(readyPods, p.Spec.Containers[0].Name, time.Now().UTC().Format(time.RFC3339))
			_, err := client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("pod %s/%s cannot be made ready: %w", p.Namespace, p.Name, err)
			}
		}
	}
	return nil
}

// bind gives a pod to the node, if there is one.
func (c *ControlPlane) bind(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) error {
	if c.node == "" || p.Spec.NodeName != "" {
		return nil
	}
	err := client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: c.node}}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsForbidden(err) { // it is being deleted, or its namespace
		return nil
	}
	return err
}
