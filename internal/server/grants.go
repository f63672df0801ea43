package server

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// grantAttempts bounds how often a role or binding is decided on anew because others
// write such at the same time.
const grantAttempts = 10

var errGrantsMoved = errors.New("others have changed what is granted below this logical cluster")

// granting is upstream's storage of ClusterRoles, or of their bindings. A write whose
// decision needs it, see [Server.dependOnGrants], is one transaction with that decision,
// whichever processes roles and bindings are written by.
type granting struct {
	rbacStorage
	resource store.Resource
}

// rbacStorage is what upstream's storages of ClusterRoles and bindings are.
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

// decided makes a write, which admission may have depend on a condition.
func (g granting) decided(ctx context.Context, write func(context.Context) error) error {
	for range grantAttempts {
		decision := &grantDecision{resource: g.resource}
		err := write(store.WithCondition(context.WithValue(ctx, grantKey{}, decision), &decision.condition))
		if !errors.Is(err, errGrantsMoved) {
			return err
		}
	}
	return apierrors.NewTooManyRequests("others change roles and bindings in this logical cluster at the same time", 1)
}

// A grantDecision is what a write of roles or bindings depends on: on nothing, as long as
// its condition is of no resource.
type grantDecision struct {
	resource  store.Resource
	condition store.Condition
}

// dependOnGrants has the write of a role or binding, in the context of which it is decided
// on, depend on a key that it changes: of two that are decided on at the same time, the
// later sees the earlier. Only those writes need it whose decision may depend on another.
func (s *Server) dependOnGrants(ctx context.Context) error {
	decision, ok := ctx.Value(grantKey{}).(*grantDecision)
	if !ok {
		return apierrors.NewInternalError(errors.New("a role or binding is written past the storage that decides on it"))
	}
	c, err := cluster.One(ctx)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	key := store.SystemKey(c, "grants", "below")
	revision, at, err := s.store.Revision(ctx, key)
	if err != nil {
		return err
	}
	if err := s.store.Spine().Await(ctx, at); err != nil {
		return err
	}
	decision.condition = store.Condition{
		Of: decision.resource, On: key, Revision: revision, Advance: true,
		Renew: func(context.Context, int64) (int64, error) { return 0, errGrantsMoved },
	}
	return nil
}
