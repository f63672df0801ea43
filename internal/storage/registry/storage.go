package registry

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

type identityKey struct{}

// WithIdentity returns a context for requests to the objects of a custom resource
// that belong to the export of that identity.
func WithIdentity(ctx context.Context, identity string) context.Context {
	return context.WithValue(ctx, identityKey{}, identity)
}

// Identified returns a resource with the identity of the request, if it is a custom resource.
func Identified(ctx context.Context, r keys.Resource) keys.Resource {
	if r.Root == keys.Custom {
		r.Identity, _ = ctx.Value(identityKey{}).(string)
	}
	return r
}

// Options describe the registry of a resource.
type Options struct {
	Resource keys.Resource // without an identity, which comes from the context
	// Root is the start of the registry's keys.
	Root string
	// Cached is true if a watch cache has the objects, so that none of them may expire by
	// lease: many may in one revision, of which the cache would process one.
	Cached bool
}

// A Storage is the storage of a registry, which knows one cluster. It adds the cluster of the
// request to every key.
type Storage struct {
	storage.Interface // by keys with a cluster
	store             *store.Store
	of                Options
}

// NewStorage returns the storage of a registry. Inner is the storage by keys with a cluster.
func NewStorage(s *store.Store, of Options, inner storage.Interface) *Storage {
	return &Storage{Interface: inner, store: s, of: of}
}

func (s *Storage) resource(ctx context.Context) keys.Resource {
	return Identified(ctx, s.of.Resource)
}

// one returns the key of an object, or of a range, in the cluster of the request.
func (s *Storage) one(ctx context.Context, key string) (cluster.Name, string, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return "", "", apierrors.NewBadRequest(err.Error())
	}
	if c == "" || strings.Contains(string(c), "/") {
		return "", "", apierrors.NewBadRequest(fmt.Sprintf("malformed name of a logical cluster: %q", c))
	}
	rest, err := s.below(key)
	if err != nil {
		return "", "", err
	}
	return c, s.resource(ctx).Prefix() + "/" + string(c) + rest, nil
}

// below returns the part of a key of the registry after the root.
func (s *Storage) below(key string) (string, error) {
	rest, ok := strings.CutPrefix(key, s.of.Root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", fmt.Errorf("key %q is not below %q", key, s.of.Root)
	}
	return rest, nil
}

// Create implements [storage.Interface].
func (s *Storage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	return s.label(ctx).add(out)
}

func (s *Storage) create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	c, k, err := s.one(ctx, key)
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	values.SetCluster(accessor, c)
	dropComputed(accessor)
	s.store.Complete(s.resource(ctx), obj)
	if err := s.part(ctx).takes(obj); err != nil {
		return err
	}
	if hook := s.store.CreateHookOf(s.resource(ctx)); hook != nil {
		return runHook(ctx, hook, c, obj, out)
	}
	if ttl != 0 && s.of.Cached {
		return s.expires()
	}
	return s.Interface.Create(ctx, k, obj, out, ttl)
}

// expires refuses a lease on an object that a watch cache holds.
func (s *Storage) expires() error {
	return fmt.Errorf("refusing to let an object of %s expire: many may in one revision, of which its watch cache would take in one", s.of.Resource.KindPrefix())
}

// createByUpdate creates an object by an update of an object that does not exist, as
// server-side apply does. It reports whether it created one.
func (s *Storage) createByUpdate(ctx context.Context, hook store.CreateHook, key string, into runtime.Object, update storage.UpdateFunc) (bool, error) {
	u, ok := into.(*unstructured.Unstructured)
	if !ok {
		return false, fmt.Errorf("create hook of a %T", into)
	}
	none := u.NewEmptyInstance()
	if err := s.Interface.Get(ctx, key, storage.GetOptions{}, none); !storage.IsNotFound(err) {
		return false, err
	}
	c, err := cluster.One(ctx)
	if err != nil {
		return false, err
	}
	obj, _, err := update(u.NewEmptyInstance(), storage.ResponseMeta{})
	if err != nil {
		return false, err
	}
	if err = runHook(ctx, hook, c, obj, into); storage.IsExist(err) || apierrors.IsAlreadyExists(err) {
		return false, nil // another request created it, and it is updated
	}
	return err == nil, err
}

// Delete implements [storage.Interface].
func (s *Storage) Delete(ctx context.Context, key string, out runtime.Object, p *storage.Preconditions, v storage.ValidateObjectFunc, cached runtime.Object, o storage.DeleteOptions) error {
	_, k, err := s.one(ctx, key)
	if err != nil {
		return err
	}
	if v = s.deletesPart(ctx, key, v); s.part(ctx) != nil {
		o.IgnoreStoreReadError = false // its labels decide
	}
	validate := v
	if s.store.StandIns() && !o.IgnoreStoreReadError {
		validate = func(ctx context.Context, obj runtime.Object) error {
			if err := s.checkDecoded(obj); err != nil {
				return err
			}
			return v(ctx, obj)
		}
	}
	if err := s.Interface.Delete(ctx, k, out, p, validate, cached, o); err != nil {
		return err
	}
	return s.label(ctx).found(out)
}

// Get implements [storage.Interface].
func (s *Storage) Get(ctx context.Context, key string, o storage.GetOptions, out runtime.Object) error {
	_, k, err := s.one(ctx, key)
	if err != nil {
		return err
	}
	if err := s.Interface.Get(ctx, k, o, out); err != nil {
		return err
	}
	if !s.part(ctx).has(out) {
		if !o.IgnoreNotFound {
			return storage.NewKeyNotFoundError(key, 0)
		}
		return runtime.SetZeroValue(out)
	}
	if err := s.checkDecoded(out); err != nil {
		return err
	}
	return s.label(ctx).found(out)
}

// GuaranteedUpdate implements [storage.Interface].
func (s *Storage) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, ignoreNotFound bool, p *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	c, k, err := s.one(ctx, key)
	if err != nil {
		return err
	}
	update = s.withinPart(ctx, key, s.label(ctx).update(update))
	stamping := func(in runtime.Object, r storage.ResponseMeta) (runtime.Object, *uint64, error) {
		if err := s.checkDecoded(in); err != nil {
			return nil, nil, err
		}
		out, ttl, err := update(in, r)
		if err != nil {
			return nil, nil, err
		}
		if ttl != nil && *ttl != 0 && s.of.Cached {
			return nil, nil, s.expires()
		}
		accessor, err := meta.Accessor(out)
		if err != nil {
			return nil, nil, err
		}
		values.SetCluster(accessor, c) // a client may have left out the annotation
		s.store.Complete(s.resource(ctx), out)
		return out, ttl, nil
	}
	if hook := s.store.CreateHookOf(s.resource(ctx)); hook != nil && ignoreNotFound {
		made, err := s.createByUpdate(ctx, hook, k, into, stamping)
		if err != nil {
			return err
		}
		if made {
			return s.label(ctx).add(into)
		}
	}
	if err := s.store.RunUpdate(ctx, s.resource(ctx), func(ctx context.Context) error {
		return s.Interface.GuaranteedUpdate(ctx, k, into, ignoreNotFound, p, stamping, cached)
	}); err != nil {
		return err
	}
	return s.label(ctx).add(into)
}

// GetList implements [storage.Interface].
func (s *Storage) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	k, o, err := s.many(ctx, key, s.selectPart(ctx, s.label(ctx).selects(o)))
	if err != nil {
		return err
	}
	if _, err := s.store.Epoch().Revision(o.ResourceVersion); apierrors.IsResourceExpired(err) {
		return err // upstream refuses malformed ones
	}
	if err := s.growList(ctx, o); err != nil {
		return err
	}
	if err := s.Interface.GetList(ctx, k, o, list); err != nil {
		return err
	}
	switch {
	case !s.store.StandIns() || !meta.IsListType(list): // a list of encoded objects has no items
	case cluster.IsAll(ctx):
		err = s.withoutStandIns(list)
	default:
		err = meta.EachListItem(list, s.checkDecoded)
	}
	if err != nil {
		return err
	}
	return s.label(ctx).addAll(list)
}

// withoutStandIns removes the stand-ins from a list of all clusters: one tenant's bad value
// must not fail the list.
func (s *Storage) withoutStandIns(list runtime.Object) error {
	var good []runtime.Object
	bad := false
	if err := meta.EachListItem(list, func(o runtime.Object) error {
		if s.checkDecoded(o) == nil {
			good = append(good, o)
		} else {
			bad = true
		}
		return nil
	}); err != nil || !bad {
		return err
	}
	return meta.SetList(list, good)
}

// Watch implements [storage.Interface].
func (s *Storage) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	k, o, err := s.many(ctx, key, s.selectPart(ctx, s.label(ctx).selects(o)))
	if err != nil {
		return nil, err
	}
	switch _, err := s.store.Epoch().Revision(o.ResourceVersion); {
	case apierrors.IsResourceExpired(err):
		return nil, err
	case err != nil:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err)) // as for lists
	}
	if err := growSelectors(ctx, o.Predicate); err != nil {
		return nil, err
	}
	if err := refuseFuture(ctx, s.store, o.ResourceVersion); err != nil {
		return nil, err
	}
	return s.Interface.Watch(ctx, k, o)
}

// AndField adds a term to a selector, which may be nil.
func AndField(s fields.Selector, field, value string) fields.Selector {
	term := fields.OneTermEqualSelector(field, value)
	if s == nil || s.Empty() {
		return term
	}
	return fields.AndSelectors(s, term)
}

// many returns the range of a list or watch. A request to all clusters covers the whole
// resource, and selects by fields instead of the key.
func (s *Storage) many(ctx context.Context, key string, o storage.ListOptions) (_ string, _ storage.ListOptions, err error) {
	if !cluster.IsAll(ctx) {
		_, k, err := s.one(ctx, key)
		return k, o, err
	}
	rest, err := s.below(key)
	if err != nil {
		return "", o, err
	}
	namespace, name, named := strings.Cut(strings.Trim(rest, "/"), "/")
	if !named && namespace != request.NamespaceValue(ctx) {
		namespace, name = "", namespace
	}
	if namespace != "" {
		o.Predicate.Field = AndField(o.Predicate.Field, "metadata.namespace", namespace)
	}
	if name != "" {
		o.Predicate.Field = AndField(o.Predicate.Field, "metadata.name", name)
	}
	o.Recursive = true
	if scope := ScopeOf(ctx); scope != nil {
		if o, err = s.unpaged(scope, o); err != nil {
			return "", o, err
		}
	}
	return s.resource(ctx).Prefix(), o, nil
}

func (s *Storage) checkDecoded(o runtime.Object) error {
	return s.store.CheckDecoded(s.of.Resource, o)
}

// refuseFuture returns 410 for a watch from a revision that was never reached, as after a
// restore from a backup. Upstream would wait for the revision without an answer.
func refuseFuture(ctx context.Context, s *store.Store, resourceVersion string) error {
	rev, err := s.Epoch().Revision(resourceVersion)
	if err != nil || rev <= s.Latest() {
		return err
	}
	newest, err := s.Newest(ctx)
	if err != nil || rev <= newest {
		return err
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("too large resource version: %d, current: %d", rev, newest))
}

// Stats implements [storage.Interface]. Only metrics use it, without a context: it would
// read every cluster.
func (s *Storage) Stats(context.Context) (storage.Stats, error) { return storage.Stats{}, nil }

// runHook stores a new object by its hook.
func runHook(ctx context.Context, hook store.CreateHook, c cluster.Name, obj, out runtime.Object) error {
	in, ok := obj.(*unstructured.Unstructured)
	to, ok2 := out.(*unstructured.Unstructured)
	if !ok || !ok2 {
		return fmt.Errorf("create hook of a %T", obj)
	}
	made := &unstructured.Unstructured{Object: in.Object}
	if err := hook(ctx, c, made); err != nil {
		return outage.StatusIn(err)
	}
	to.Object = made.Object
	return nil
}
