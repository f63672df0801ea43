package native

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// grantAttempts is the maximum number of attempts at a write of a role or binding that
// conflicts with concurrent writes.
const grantAttempts = 10

var errGrantsMoved = errors.New("a concurrent request changed what is granted below this logical cluster")

// granting is upstream's storage of ClusterRoles, or of ClusterRoleBindings. A write after
// [DependOnGrants] succeeds only if no server changed the granted rights since
// admission decided on it. Otherwise admission decides again.
type granting struct {
	rbacStorage
	resource keys.Resource
}

// rbacStorage has the methods of upstream's storages of ClusterRoles and of their bindings.
type rbacStorage interface {
	rest.StandardStorage
	rest.Scoper
	rest.StorageVersionProvider
	rest.SingularNameProvider
}

// Create implements [rest.Creater].
func (g granting) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (out runtime.Object, err error) {
	err = g.decided(ctx, func(ctx context.Context) error {
		out, err = g.rbacStorage.Create(ctx, obj.DeepCopyObject(), validate, o)
		return err
	})
	return out, err
}

// Update implements [rest.Updater].
func (g granting) Update(ctx context.Context, name string, o rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, opts *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	err = g.decided(ctx, func(ctx context.Context) error {
		out, created, err = g.rbacStorage.Update(ctx, name, o, create, update, force, opts)
		return err
	})
	return out, created, err
}

type grantKey struct{}

// decided runs a write, to which admission may add a condition. It retries when the
// condition fails.
func (g granting) decided(ctx context.Context, write func(context.Context) error) error {
	for range grantAttempts {
		decision := &grantDecision{resource: g.resource}
		err := write(store.WithCondition(context.WithValue(ctx, grantKey{}, decision), &decision.condition))
		if !errors.Is(err, errGrantsMoved) {
			return err
		}
	}
	return apierrors.NewTooManyRequests("too many requests change roles and bindings in this logical cluster at the same time; retry", 1)
}

// A grantDecision holds the condition of a write of a role or binding. The write is
// unconditional while the condition has no resource.
type grantDecision struct {
	resource  keys.Resource
	condition store.Condition
}

// DependOnGrants adds a condition to the write of the role or binding that ctx is for. The
// write compares and advances one key of the cluster. So of two concurrent writes, the
// second is decided on again, after the first. Only a write whose decision depends on
// other roles and bindings needs it.
func DependOnGrants(ctx context.Context, s *store.Store) error {
	decision, ok := ctx.Value(grantKey{}).(*grantDecision)
	if !ok {
		return apierrors.NewInternalError(errors.New("a role or binding is written through a storage that cannot make the write conditional"))
	}
	c, err := cluster.One(ctx)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	key := keys.SystemKey(c, "grants", "below")
	revision, at, err := s.Revision(ctx, key)
	if err != nil {
		return err
	}
	if err := s.Feed().Await(ctx, at); err != nil {
		return err
	}
	decision.condition = store.Condition{
		Of: decision.resource, On: key, Revision: revision, Advance: true,
		Renew: func(context.Context, int64) (int64, error) { return 0, errGrantsMoved },
	}
	return nil
}
