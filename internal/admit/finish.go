package admit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// A Finish limits a request to removing one name from a list in the status of a
// LogicalCluster.
type Finish struct {
	Field string // "initializers" or "terminators"
	Name  string
}

type finishKey struct{}

// WithFinish returns a context for a request that may only finish.
func WithFinish(ctx context.Context, f Finish) context.Context {
	return context.WithValue(ctx, finishKey{}, f)
}

// finishing returns the Finish that limits the request of a context, if there is one.
func finishing(ctx context.Context) (Finish, bool) {
	f, ok := ctx.Value(finishKey{}).(Finish)
	return f, ok
}

// validate refuses an update that changes anything else.
func (f Finish) validate(r Request) error {
	old, ok := r.GetOldObject().(*unstructured.Unstructured)
	now, ok2 := r.GetObject().(*unstructured.Unstructured)
	if !ok || !ok2 {
		return r.Forbid(errors.New("a LogicalCluster can only be updated here"))
	}
	before, _, _ := unstructured.NestedStringSlice(old.Object, "status", f.Field)
	after, _, err := unstructured.NestedStringSlice(now.Object, "status", f.Field)
	left := slices.DeleteFunc(slices.Clone(before), func(name string) bool { return name == f.Name })
	if err == nil && len(left) < len(before) && slices.Equal(left, after) && equality.Semantic.DeepEqual(f.rest(old), f.rest(now)) {
		return nil
	}
	singular := f.Field[:len(f.Field)-1]
	return apierrors.NewInvalid(core.GroupVersion.WithKind("LogicalCluster").GroupKind(), r.GetName(), field.ErrorList{field.Invalid(
		field.NewPath("status", f.Field), before, fmt.Sprintf("only removing the %q %s is supported", f.Name, singular),
	)})
}

// rest returns the status of a LogicalCluster without the list.
func (f Finish) rest(u *unstructured.Unstructured) map[string]any {
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	delete(status, f.Field)
	return status
}
