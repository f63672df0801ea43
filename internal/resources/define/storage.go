package define

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/upstream"
)

// attempts is the maximum of attempts of a write that conflicts with other definitions
// in its group.
const attempts = 10

// APIGroup returns the API group of definitions, with storage from g. It differs from
// upstream's: each write computes the status, the definition is served when the write
// returns, and definitions that could crash the process are refused.
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
	err = s.d.define(ctx, catalog.ResourceOfName(name).Group, func(ctx context.Context) error {
		out, created, err = s.REST.Update(ctx, name, o, create, update, force, opts)
		return err
	})
	return out, created, err
}

// Delete implements [rest.GracefulDeleter].
func (s *definitionStorage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	out, deleted, err := s.REST.Delete(ctx, name, validate, o)
	s.d.store.Feed().Fresh(ctx)
	return out, deleted, err
}

// DeleteCollection implements [rest.CollectionDeleter]. Upstream's would skip the
// finalizer that deletes the objects; they would reappear with the next definition.
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

// statusStorage is upstream's storage of the status of definitions.
type statusStorage struct {
	*customresourcedefinition.StatusREST
	d *Definitions
}

// Update implements [rest.Updater].
func (s *statusStorage) Update(ctx context.Context, name string, o rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	out, created, err := s.StatusREST.Update(ctx, name, o, create, update, force, opts)
	s.d.store.Feed().Fresh(ctx)
	return out, created, err
}

// errNamesMoved means that a concurrent write changed the names of the group.
var errNamesMoved = errors.New("names of the group have changed")

type takenKey struct{}

// define runs a write that may claim names in a group of the request's cluster. It
// returns after the change feed has delivered the write. The same transaction advances a
// key of the group, so that concurrent claims of a name conflict, also between processes.
// The write that lost is retried with the new names.
func (d *Definitions) define(ctx context.Context, group string, write func(context.Context) error) error {
	c, err := cluster.One(ctx)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	claims := Claims(c, group)
	defer upstream.ForgetPatterns()
	for range attempts {
		revision, at, err := d.store.Revision(ctx, claims)
		if err != nil {
			return err
		}
		if err := d.store.Feed().Await(ctx, at); err != nil {
			return err
		}
		claiming := store.WithCondition(context.WithValue(ctx, takenKey{}, d.names(c, group)), &store.Condition{
			Of: Resource(), On: claims, Revision: revision, Advance: true,
			Renew: func(context.Context, int64) (int64, error) { return 0, errNamesMoved },
		})
		if err = write(claiming); !errors.Is(err, errNamesMoved) {
			d.store.Feed().Fresh(ctx)
			return err
		}
	}
	return outage.Unavailable("the names of resources in this group changed while this request was in progress; try again")
}

// Claims returns the key that guards the names of a group in a cluster: each claim of a name
// advances it. Groups share 16 keys, so that deleted groups leave few keys behind.
func Claims(c cluster.Name, group string) keys.Key {
	return keys.SystemKey(c, "names", fmt.Sprintf("%x", sha256.Sum256([]byte(group)))[:1])
}

// creating is upstream's create strategy that also computes the status. It does so after
// validation, so that errors name only faults of the definition, and before validating
// admission.
type creating struct{ rest.RESTCreateStrategy }

func (s creating) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if ok {
		if err := cmp.Or(checkColumns(crd), checkPatterns(crd)); err != nil {
			return field.ErrorList{err}
		}
	}
	if !ok {
		return settled(ctx, obj, s.RESTCreateStrategy.Validate(ctx, obj))
	}
	standIn := validatable(crd)
	return settled(ctx, obj, standInErrors(crd, standIn, s.RESTCreateStrategy.Validate(ctx, standIn)))
}

// updating is upstream's update strategy that also computes the status.
type updating struct{ rest.RESTUpdateStrategy }

func (s updating) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	before, was := old.(*apiextensions.CustomResourceDefinition)
	if ok {
		if err := cmp.Or(checkColumns(crd), checkPatterns(crd)); err != nil {
			return field.ErrorList{err}
		}
	}
	if !ok || !was || crd.Spec.Group != before.Spec.Group { // a change of the group is refused
		return settled(ctx, obj, s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
	}
	standIn := validatable(crd)
	return settled(ctx, obj, standInErrors(crd, standIn, s.RESTUpdateStrategy.ValidateUpdate(ctx, standIn, validatable(before))))
}

// Check returns what is wrong with a definition that a binding serves, as for the creation of
// a definition.
func Check(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	defer upstream.ForgetPatterns()
	crd = crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, &internal, nil); err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("spec"), "", err.Error())}
	}
	strategy := creating{customresourcedefinition.NewStrategy(apiextensionsserver.Scheme)}
	strategy.PrepareForCreate(ctx, &internal)
	return strategy.Validate(ctx, &internal)
}

func settled(ctx context.Context, obj runtime.Object, errs field.ErrorList) field.ErrorList {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	t, claimed := ctx.Value(takenKey{}).(taken)
	if ok && claimed && len(errs) == 0 {
		establish(crd, t)
	}
	return errs
}
