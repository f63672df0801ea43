package serve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// attempts bounds how often a definition is decided on anew because others define
// something in the same group.
const attempts = 10

// APIGroup returns the group of definitions, stored in what g gives. It is
// upstream's but for a few things: their status is settled with every write, what was
// written is served when the answer comes, and what would take the process down is refused.
func (d *Definitions) APIGroup(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsserver.Scheme, metav1.ParameterCodec, apiextensionsserver.Codecs)
	info.NegotiatedSerializer = shallow{info.NegotiatedSerializer}
	inner, err := customresourcedefinition.NewREST(apiextensionsserver.Scheme, g)
	if err != nil {
		return info, err
	}
	status := customresourcedefinition.NewStatusREST(apiextensionsserver.Scheme, inner)
	create, update := inner.CreateStrategy, inner.UpdateStrategy
	inner.CreateStrategy, inner.UpdateStrategy = creating{create}, updating{update}
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"customresourcedefinitions":        &definitionStorage{inner, d},
		"customresourcedefinitions/status": &statusStorage{status, d},
	}
	return info, nil
}

// definitionStorage is upstream's storage of definitions.
type definitionStorage struct {
	*customresourcedefinition.REST
	d *Definitions
}

// Create implements [rest.Creater].
func (s *definitionStorage) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (out runtime.Object, err error) {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, apierrors.NewBadRequest("not a CustomResourceDefinition")
	}
	err = s.d.define(ctx, crd.Spec.Group, func(ctx context.Context) error {
		out, err = s.REST.Create(ctx, crd.DeepCopy(), validate, o)
		return err
	})
	return out, err
}

// Update implements [rest.Updater].
func (s *definitionStorage) Update(ctx context.Context, name string, o rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, opts *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	err = s.d.define(ctx, ResourceOfName(name).Group, func(ctx context.Context) error {
		out, created, err = s.REST.Update(ctx, name, o, create, update, force, opts)
		return err
	})
	return out, created, err
}

// Delete implements [rest.GracefulDeleter].
func (s *definitionStorage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	out, deleted, err := s.REST.Delete(ctx, name, validate, o)
	s.d.store.Spine().Fresh(ctx)
	return out, deleted, err
}

// DeleteCollection implements [rest.CollectionDeleter]. Upstream's deletes the
// definitions alone, and leaves their objects to whoever defines them next.
func (s *definitionStorage) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions, which *metainternalversion.ListOptions) (runtime.Object, error) {
	found, err := s.List(ctx, which)
	if err != nil {
		return nil, err
	}
	list, ok := found.(*apiextensions.CustomResourceDefinitionList)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T is no list of definitions", found))
	}
	for i := range list.Items {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if _, _, err := s.Delete(ctx, list.Items[i].Name, validate, o.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return list, nil
}

// statusStorage is upstream's storage of their status.
type statusStorage struct {
	*customresourcedefinition.StatusREST
	d *Definitions
}

// Update implements [rest.Updater].
func (s *statusStorage) Update(ctx context.Context, name string, o rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	out, created, err := s.StatusREST.Update(ctx, name, o, create, update, force, opts)
	s.d.store.Spine().Fresh(ctx)
	return out, created, err
}

type takenKey struct{}

// define makes a write that may claim names in a group of the request's cluster,
// and returns once what it wrote is served. The names are claimed by advancing a
// key of the group in the same transaction: of two definitions that ask for one
// name at the same time, the later sees the earlier, whichever processes they are
// written by.
func (d *Definitions) define(ctx context.Context, group string, write func(context.Context) error) error {
	c, err := cluster.One(ctx)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	claims := store.SystemKey(c, "names", claimsOf(group))
	defer forgetPatterns()
	for range attempts {
		revision, at, err := d.store.Revision(ctx, claims)
		if err != nil {
			return err
		}
		if err := d.store.Spine().Await(ctx, at); err != nil {
			return err
		}
		claiming := store.WithCondition(context.WithValue(ctx, takenKey{}, d.names(c, group)), &store.Condition{
			Of: CustomResourceDefinitions(), On: claims, Revision: revision, Advance: true,
			Renew: func(context.Context, int64) (int64, error) { return 0, errNamesMoved },
		})
		if err = write(claiming); !errors.Is(err, errNamesMoved) {
			d.store.Spine().Fresh(ctx)
			return err
		}
	}
	return apierrors.NewTooManyRequests("others define resources in this group at the same time", 1)
}

// claimsOf returns what the names of a group are claimed by. Groups share a few keys,
// so that a cluster does not leave one behind for every group that it ever had.
func claimsOf(group string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(group)))[:1] }

// creating is upstream's strategy with the status settled. It is settled once the
// definition was found to be valid, so that an invalid one is told of its own faults
// alone, and before admission has its last word.
type creating struct{ rest.RESTCreateStrategy }

func (s creating) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if ok {
		if err := cmp.Or(checkColumns(crd), checkPatterns(crd)); err != nil {
			return field.ErrorList{err}
		}
	}
	if !ok || crd.Spec.Group != "" {
		return settled(ctx, obj, s.RESTCreateStrategy.Validate(ctx, obj))
	}
	standIn := validatable(crd)
	return settled(ctx, obj, coreErrors(crd, standIn, s.RESTCreateStrategy.Validate(ctx, standIn)))
}

// updating is upstream's strategy with the status settled.
type updating struct{ rest.RESTUpdateStrategy }

func (s updating) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	before, was := old.(*apiextensions.CustomResourceDefinition)
	if ok {
		if err := cmp.Or(checkColumns(crd), checkPatterns(crd)); err != nil {
			return field.ErrorList{err}
		}
	}
	if !ok || !was || crd.Spec.Group != "" || before.Spec.Group != "" { // what goes to another group is refused
		return settled(ctx, obj, s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
	}
	standIn := validatable(crd)
	return settled(ctx, obj, coreErrors(crd, standIn, s.RESTUpdateStrategy.ValidateUpdate(ctx, standIn, validatable(before))))
}

func settled(ctx context.Context, obj runtime.Object, errs field.ErrorList) field.ErrorList {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	t, claimed := ctx.Value(takenKey{}).(taken)
	if ok && claimed && len(errs) == 0 {
		establish(crd, t)
	}
	return errs
}
