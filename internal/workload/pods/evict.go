package pods

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/policy"

	"github.com/unforked/kcp"
)

// evictions deletes pods if the disruption budgets at their target allow that.
type evictions struct{ pods *Pods }

var _ interface {
	rest.NamedCreater
	rest.GroupVersionKindProvider
	rest.GroupVersionAcceptor
} = evictions{}

// Destroy implements [rest.Storage].
func (evictions) Destroy() {}

// New implements [rest.Storage].
func (evictions) New() runtime.Object { return &policy.Eviction{} }

// GroupVersionKind implements [rest.GroupVersionKindProvider].
func (evictions) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion implements [rest.GroupVersionAcceptor].
func (evictions) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion
}

// Create implements [rest.NamedCreater].
func (e evictions) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	of, ok := obj.(*policy.Eviction)
	if !ok || of.Name != name {
		return nil, apierrors.NewBadRequest("the name in the URL is not that of the eviction")
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	leave, err := e.pods.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, err
	}
	defer leave()
	c, pod, err := e.pods.find(ctx, name)
	if err != nil {
		return nil, err
	}
	defer c.end()
	there, err := c.deletion(of.DeleteOptions, pod.UID, name)
	if err != nil {
		return nil, err
	}
	if o != nil && len(o.DryRun) > 0 {
		there.DryRun = o.DryRun
	}
	ctx, cancel := context.WithTimeout(ctx, e.pods.Deadline)
	defer cancel()
	err = c.pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, DeleteOptions: there})
	switch {
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewNotFound(core.Resource("pods"), name)
	case apierrors.IsConflict(err):
		return nil, apierrors.NewConflict(core.Resource("pods"), name, errors.New("the pod has changed; try again"))
	case err != nil:
		return nil, c.answered(ctx, err)
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// debuggers adds ephemeral containers to pods, as "kubectl debug" does.
type debuggers struct{ pods *store }

var _ rest.Patcher = debuggers{}

// Destroy implements [rest.Storage].
func (debuggers) Destroy() {}

// New implements [rest.Storage].
func (debuggers) New() runtime.Object { return &core.Pod{} }

// Get implements [rest.Getter].
func (d debuggers) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return d.pods.Get(ctx, name, o)
}

// Update implements [rest.Updater]. The target gets the ephemeral containers alone: it lets only new ones
// be added.
func (d debuggers) Update(ctx context.Context, name string, change rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, validate rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	leave, err := d.pods.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, false, err
	}
	defer leave()
	c, pod, err := d.pods.find(ctx, name)
	if err != nil {
		return nil, false, err
	}
	defer c.sent(ctx)
	now, err := c.Pod(pod.DeepCopy(), c.Version(pod.ResourceVersion))
	if err != nil {
		return nil, false, err
	}
	changed, err := change.UpdatedObject(ctx, now.DeepCopy())
	if err == nil && validate != nil {
		err = validate(ctx, changed, now)
	}
	if err != nil {
		return nil, false, err
	}
	next, ok := changed.(*core.Pod)
	if !ok {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("a %T is no pod", changed))
	}
	if next.ResourceVersion != "" && next.ResourceVersion != now.ResourceVersion {
		return nil, false, apierrors.NewConflict(core.Resource("pods"), name, errors.New("the pod has changed; try again"))
	}
	versioned := &corev1.Pod{}
	if err := corev1conversion.Convert_core_Pod_To_v1_Pod(next.DeepCopy(), versioned, nil); err != nil {
		return nil, false, err
	}
	pod.Spec.EphemeralContainers = versioned.Spec.EphemeralContainers
	how := metav1.UpdateOptions{}
	if o != nil {
		how.DryRun = o.DryRun
	}
	ctx, cancel := context.WithTimeout(ctx, d.pods.Deadline)
	defer cancel()
	made, err := c.pods.UpdateEphemeralContainers(ctx, pod.Name, pod, how)
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, apierrors.NewNotFound(core.Resource("pods"), name)
	case apierrors.IsConflict(err):
		return nil, false, apierrors.NewConflict(core.Resource("pods"), name, errors.New("the pod has changed; try again"))
	case err != nil:
		return nil, false, c.answered(ctx, err)
	}
	shown, err := c.Pod(made, c.Version(made.ResourceVersion))
	return shown, false, err
}

// unserved refuses the proxy to pods with a text: addresses in the pages of pods would be those of the
// physical cluster.
type unserved struct{}

var _ rest.Connecter = unserved{}

// Destroy implements [rest.Storage].
func (unserved) Destroy() {}

// New implements [rest.Storage].
func (unserved) New() runtime.Object { return &core.PodProxyOptions{} }

// NewConnectOptions implements [rest.Connecter].
func (unserved) NewConnectOptions() (runtime.Object, bool, string) {
	return &core.PodProxyOptions{}, true, "path"
}

// ConnectMethods implements [rest.Connecter].
func (unserved) ConnectMethods() []string {
	return []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions}
}

// Connect implements [rest.Connecter].
func (unserved) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	err := apierrors.NewMethodNotSupported(core.Resource("pods/proxy"), "proxy")
	err.ErrStatus.Message = "the proxy to pods is not served: use kubectl port-forward"
	return nil, err
}
