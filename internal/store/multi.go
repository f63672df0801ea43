package store

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
	"github.com/unforked/kcp/internal/etcd"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/values"
)

// clusterIndex is the field by which watch caches find the watches of an event, so that an
// event costs only the watches of its cluster.
const clusterIndex = "kcp.io/cluster"

type identityKey struct{}

// WithIdentity returns a context for requests to the objects of a custom resource
// that belong to the export of that identity.
func WithIdentity(ctx context.Context, identity string) context.Context {
	return context.WithValue(ctx, identityKey{}, identity)
}

// multi makes a registry, which knows one cluster, work on the cluster of the request: it
// adds the cluster to every key.
type multi struct {
	storage.Interface // by keys with a cluster
	store             *Store
	kind              keys.Resource // its identity comes from the context
	root              string        // of the registry's keys
	attrs             storage.AttrFunc
	wait              func(context.Context) error // waits until the cache can serve; nil without a cache
	// lenient reads etcd without failing on a value, for requests to all clusters that no
	// cache serves.
	lenient storage.Interface
}

func (m *multi) resource(ctx context.Context) keys.Resource {
	r := m.kind
	if r.Root == keys.Custom {
		r.Identity, _ = ctx.Value(identityKey{}).(string)
	}
	return r
}

// one returns the key of an object, or of a range, in the cluster of the request.
func (m *multi) one(ctx context.Context, key string) (cluster.Name, string, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return "", "", apierrors.NewBadRequest(err.Error())
	}
	if c == "" || strings.Contains(string(c), "/") {
		return "", "", apierrors.NewBadRequest(fmt.Sprintf("malformed name of a logical cluster: %q", c))
	}
	rest, ok := strings.CutPrefix(key, m.root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", "", fmt.Errorf("key %q is not below %q", key, m.root)
	}
	return c, m.resource(ctx).Prefix() + "/" + string(c) + rest, nil
}

func (m *multi) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	c, k, err := m.one(ctx, key)
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	values.SetCluster(accessor, c)
	m.store.complete(m.resource(ctx), obj)
	if hook := m.store.hook(m.resource(ctx)); hook != nil {
		return runHook(ctx, hook, c, obj, out)
	}
	if ttl != 0 && m.cached() {
		return m.expires()
	}
	return m.Interface.Create(ctx, k, obj, out, ttl)
}

// cached reports whether a watch cache serves the resource.
func (m *multi) cached() bool { return m.wait != nil || m.kind.Root == keys.Custom }

// expires refuses a lease on an object that a watch cache holds.
func (m *multi) expires() error {
	return fmt.Errorf("refusing to let an object of %s expire: many may in one revision, of which its watch cache would take in one", m.kind.KindPrefix())
}

// createByUpdate creates an object by an update of an object that does not exist, as
// server-side apply does. It reports whether it created one.
func (m *multi) createByUpdate(ctx context.Context, hook CreateHook, key string, into runtime.Object, update storage.UpdateFunc) (bool, error) {
	u, ok := into.(*unstructured.Unstructured)
	if !ok {
		return false, fmt.Errorf("create hook of a %T", into)
	}
	none := u.NewEmptyInstance()
	if err := m.Interface.Get(ctx, key, storage.GetOptions{}, none); !storage.IsNotFound(err) {
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

func runHook(ctx context.Context, hook CreateHook, c cluster.Name, obj, out runtime.Object) error {
	in, ok := obj.(*unstructured.Unstructured)
	to, ok2 := out.(*unstructured.Unstructured)
	if !ok || !ok2 {
		return fmt.Errorf("create hook of a %T", obj)
	}
	made := &unstructured.Unstructured{Object: in.Object}
	if err := hook(ctx, c, made); err != nil {
		return etcd.StatusIn(err)
	}
	to.Object = made.Object
	return nil
}

func (m *multi) Delete(ctx context.Context, key string, out runtime.Object, p *storage.Preconditions, v storage.ValidateObjectFunc, cached runtime.Object, o storage.DeleteOptions) error {
	_, k, err := m.one(ctx, key)
	if err != nil {
		return err
	}
	if !m.store.standIns.Load() || o.IgnoreStoreReadError {
		return m.Interface.Delete(ctx, k, out, p, v, cached, o)
	}
	decodable := func(ctx context.Context, obj runtime.Object) error {
		if err := m.refuseStandIn(obj); err != nil {
			return err
		}
		return v(ctx, obj)
	}
	return m.Interface.Delete(ctx, k, out, p, decodable, cached, o)
}

func (m *multi) Get(ctx context.Context, key string, o storage.GetOptions, out runtime.Object) error {
	_, k, err := m.one(ctx, key)
	if err != nil {
		return err
	}
	if err := m.Interface.Get(ctx, k, o, out); err != nil {
		return err
	}
	return m.refuseStandIn(out)
}

func (m *multi) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, ignoreNotFound bool, p *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	c, k, err := m.one(ctx, key)
	if err != nil {
		return err
	}
	stamping := func(in runtime.Object, r storage.ResponseMeta) (runtime.Object, *uint64, error) {
		if err := m.refuseStandIn(in); err != nil {
			return nil, nil, err
		}
		out, ttl, err := update(in, r)
		if err != nil {
			return nil, nil, err
		}
		if ttl != nil && *ttl != 0 && m.cached() {
			return nil, nil, m.expires()
		}
		accessor, err := meta.Accessor(out)
		if err != nil {
			return nil, nil, err
		}
		values.SetCluster(accessor, c) // a client may have left out the annotation
		m.store.complete(m.resource(ctx), out)
		return out, ttl, nil
	}
	if hook := m.store.hook(m.resource(ctx)); hook != nil && ignoreNotFound {
		if made, err := m.createByUpdate(ctx, hook, k, into, stamping); made || err != nil {
			return err
		}
	}
	return m.Interface.GuaranteedUpdate(ctx, k, into, ignoreNotFound, p, stamping, cached)
}

func (m *multi) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	k, o, err := m.many(ctx, key, o)
	if err != nil {
		return err
	}
	if _, err := m.store.epoch.Revision(o.ResourceVersion); apierrors.IsResourceExpired(err) {
		return err // upstream refuses malformed ones
	}
	if err := m.growList(ctx, o); err != nil {
		return err
	}
	if err := m.ready(ctx); err != nil {
		return err
	}
	if err := m.reader(ctx).GetList(ctx, k, o, list); err != nil {
		return err
	}
	_, encoded := list.(*EncodedList) // no cache fills it
	switch {
	case encoded || !m.store.standIns.Load():
		return nil
	case isWildcard(ctx):
		return m.withoutStandIns(list)
	default:
		return meta.EachListItem(list, m.refuseStandIn)
	}
}

// reader returns the storage for lists and watches.
func (m *multi) reader(ctx context.Context) storage.Interface {
	if m.lenient != nil && isWildcard(ctx) {
		return m.lenient
	}
	return m.Interface
}

// withoutStandIns removes the stand-ins from a list of all clusters: one tenant's bad value
// must not fail the list.
func (m *multi) withoutStandIns(list runtime.Object) error {
	var good []runtime.Object
	bad := false
	if err := meta.EachListItem(list, func(o runtime.Object) error {
		if m.refuseStandIn(o) == nil {
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

func (m *multi) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	k, o, err := m.many(ctx, key, o)
	if err != nil {
		return nil, err
	}
	switch _, err := m.store.epoch.Revision(o.ResourceVersion); {
	case apierrors.IsResourceExpired(err):
		return nil, err
	case err != nil:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err)) // as for lists
	}
	if err := growSelectors(ctx, o.Predicate); err != nil {
		return nil, err
	}
	if err := m.store.final.refuse(); err != nil {
		return nil, err
	}
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	if err := m.store.refuseFuture(ctx, o.ResourceVersion); err != nil {
		return nil, err
	}
	wildcard := isWildcard(ctx)
	convert := func(e watch.Event) (watch.Event, bool) { return m.event(e, wildcard) }
	var w watch.Interface
	switch {
	case m.kind.Root == keys.Custom:
		return m.Interface.Watch(ctx, k, o) // it has a buffer
	case m.wait == nil:
		w, err = m.store.watchEtcd(ctx, m.reader(ctx), k, o)
		convert = m.store.final.throttle(convert)
	default:
		o.Predicate.GetAttrs = m.attrs
		if !wildcard {
			o.Predicate = ofCluster(ctx, o.Predicate)
		}
		w, err = m.Interface.Watch(ctx, k, o)
	}
	if err != nil {
		return nil, err
	}
	return m.store.buffered(w, o.Predicate.AllowWatchBookmarks, convert), nil
}

// event converts an event of the cache. In a watch of all clusters, an object that cannot
// be decoded does not exist; a watch of one cluster ends.
func (m *multi) event(e watch.Event, wildcard bool) (watch.Event, bool) {
	if e.Type == watch.Bookmark || e.Type == watch.Error || e.Type == watch.Deleted {
		return e, true
	}
	err := m.refuseStandIn(e.Object)
	switch {
	case err == nil:
		return e, true
	case !wildcard:
		return failed(err), true
	default:
		return watch.Event{Type: watch.Deleted, Object: e.Object}, e.Type == watch.Modified
	}
}

// failed returns the event that ends a watch because of err.
func failed(err error) watch.Event {
	status := apierrors.NewInternalError(err).Status()
	return watch.Event{Type: watch.Error, Object: &status}
}

// ofCluster restricts a predicate to the cluster of the request, by the index.
func ofCluster(ctx context.Context, p storage.SelectionPredicate) storage.SelectionPredicate {
	c, _ := cluster.From(ctx)
	p.Field = and(p.Field, clusterIndex, string(c))
	p.IndexFields = []string{clusterIndex}
	return p
}

// and adds a term to a selector, which may be nil.
func and(s fields.Selector, field, value string) fields.Selector {
	term := fields.OneTermEqualSelector(field, value)
	if s == nil || s.Empty() {
		return term
	}
	return fields.AndSelectors(s, term)
}

func isWildcard(ctx context.Context) bool {
	c, _ := cluster.From(ctx)
	return c == cluster.All
}

// many returns the range of a list or watch. A request to all clusters covers the whole
// resource, and selects by fields instead of the key.
func (m *multi) many(ctx context.Context, key string, o storage.ListOptions) (_ string, _ storage.ListOptions, err error) {
	if !isWildcard(ctx) {
		_, k, err := m.one(ctx, key)
		return k, o, err
	}
	rest, ok := strings.CutPrefix(key, m.root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", o, fmt.Errorf("key %q is not below %q", key, m.root)
	}
	namespace, name, named := strings.Cut(strings.Trim(rest, "/"), "/")
	if !named && namespace != request.NamespaceValue(ctx) {
		namespace, name = "", namespace
	}
	if namespace != "" {
		o.Predicate.Field = and(o.Predicate.Field, "metadata.namespace", namespace)
	}
	if name != "" {
		o.Predicate.Field = and(o.Predicate.Field, "metadata.name", name)
	}
	o.Recursive = true
	if scopeOf(ctx) != nil {
		if o, err = m.unpaged(o); err != nil {
			return "", o, err
		}
	}
	return m.resource(ctx).Prefix(), o, nil
}

// ready waits for the cache. Upstream answers 429 while it starts.
func (m *multi) ready(ctx context.Context) error {
	if m.wait == nil || m.ReadinessCheck() == nil {
		return nil
	}
	if err := m.wait(ctx); err != nil {
		return starting(err)
	}
	return nil
}

func starting(err error) error {
	return apierrors.NewServiceUnavailable("the watch cache is starting: " + err.Error())
}

// refuseStandIn returns an error for the stand-in of a value that cannot be decoded.
func (m *multi) refuseStandIn(obj runtime.Object) error {
	if !m.store.standIns.Load() {
		return nil
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil //nolint:nilerr // no object, no stand-in
	}
	if why := accessor.GetAnnotations()[values.Undecodable]; why != "" {
		return apierrors.NewInternalError(fmt.Errorf("the stored %s %s/%s cannot be decoded: %s", m.kind.Resource, accessor.GetNamespace(), accessor.GetName(), why))
	}
	return nil
}

// refuseFuture returns 410 for a watch from a revision that was never reached, as after a
// restore from a backup. Upstream would wait for the revision without an answer.
func (s *Store) refuseFuture(ctx context.Context, resourceVersion string) error {
	rev, err := s.epoch.Revision(resourceVersion)
	if err != nil || rev <= s.guard.latest.Load() {
		return err
	}
	newest, err := s.newest(ctx)
	if err != nil || rev <= newest {
		return err
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("too large resource version: %d, current: %d", rev, newest))
}

// Stats implements [storage.Interface]. Only metrics use it, without a context: it would
// read every cluster.
func (m *multi) Stats(context.Context) (storage.Stats, error) { return storage.Stats{}, nil }
