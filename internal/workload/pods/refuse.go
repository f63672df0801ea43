package pods

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"
)

var (
	_ rest.Creater = &store{}
	_ rest.Patcher = &store{}
)

// Create implements [rest.Creater]. It refuses with a text: without it, clients would only learn that the
// method is not allowed.
func (*store) Create(context.Context, runtime.Object, rest.ValidateObjectFunc, *metav1.CreateOptions) (runtime.Object, error) {
	return nil, refused("create", "a workspace has the pods of its workloads only: create a Deployment or a Job instead, as with: kubectl create deployment NAME --image=IMAGE, or kubectl create job NAME --image=IMAGE")
}

// Update implements [rest.Updater]. It refuses with a text.
func (*store) Update(context.Context, string, rest.UpdatedObjectInfo, rest.ValidateObjectFunc, rest.ValidateObjectUpdateFunc, bool, *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return nil, false, refused("update", "the pods of a workspace are those of its workloads, and cannot be changed: change the pod template of the workload instead, such as spec.template of a Deployment")
}

func refused(verb, why string) error {
	err := apierrors.NewMethodNotSupported(core.Resource("pods"), verb)
	err.ErrStatus.Message = why
	return err
}
