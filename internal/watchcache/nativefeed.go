package watchcache

import (
	"context"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/unforked/kcp/internal/fair"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
)

// nativeTimes is the memory of a decoded native object, per stored byte.
const nativeTimes = 8

// A nativeFeed is the objects of a native kind for lists and watches in a sparse scope. Upstream's
// watch caches know neither the members of a scope nor their parts.
type nativeFeed struct {
	caches      *Caches
	kind        keys.Resource
	cfg         *storagebackend.ConfigForResource
	codec       runtime.Codec
	newFunc     func() runtime.Object
	attrs       storage.AttrFunc
	etcdStorage storage.Interface // etcd, of raw
}

func (c *Caches) nativeFeed(kind keys.Resource, o store.Objects, attrs storage.AttrFunc) (*nativeFeed, error) {
	n := &nativeFeed{caches: c, kind: kind, cfg: o.Config, codec: o.Codec, newFunc: o.New, attrs: tenantAttrs(attrs)}
	var err error
	n.etcdStorage, err = c.store.Lenient(c.direct, store.Objects{Config: o.Config, Root: o.Root, Codec: nativeRaws{n}, New: newRaw, NewList: newRawList})
	return n, err
}

func (n *nativeFeed) of() *Caches { return n.caches }

func (n *nativeFeed) resource(context.Context) keys.Resource { return n.kind }

func (n *nativeFeed) transformer() values.Transformer {
	return n.caches.store.Values().Transformer(n.cfg.GroupResource)
}

func (n *nativeFeed) raws(context.Context, string, storage.ListOptions, *rawList) error {
	return errors.New("native objects are read from the change feed in a sparse scope only")
}

func (n *nativeFeed) past(ctx context.Context, key string, o storage.ListOptions, into *rawList) error {
	return n.etcdStorage.GetList(ctx, key, o, into)
}

// raw returns an object. One that cannot be decoded has no object in it.
func (n *nativeFeed) raw(framed []byte) (raw, error) {
	tail, _, err := values.CutFrame(framed)
	if err != nil {
		return raw{}, err
	}
	in, namespace, name, _ := keys.SplitTail(tail)
	r := raw{framed: framed}
	r.Namespace, r.Name, r.Annotations = namespace, name, n.caches.store.Stamps().Of(in)
	if o, _, err := n.codec.Decode(framed, nil, n.newFunc()); err == nil {
		if a, err := meta.Accessor(o); err == nil {
			r.Labels, r.object = a.GetLabels(), o
		}
	}
	return r, nil
}

func (n *nativeFeed) selects(r *raw, p storage.SelectionPredicate) (bool, error) {
	if r.object == nil {
		return false, nil
	}
	p.GetAttrs = n.attrs
	return p.Matches(r.object)
}

func (n *nativeFeed) event(e watch.Event, _ bool) (watch.Event, bool) {
	r, ok := e.Object.(*raw)
	switch {
	case !ok:
		return e, true // a Status
	case e.Type == watch.Bookmark:
		return watch.Event{Type: e.Type, Object: n.named(r)}, true
	case r.object != nil:
		o, err := n.decode(r)
		return watch.Event{Type: e.Type, Object: o}, err == nil
	case e.Type == watch.Added:
		return e, false
	}
	return watch.Event{Type: watch.Deleted, Object: n.named(r)}, true
}

// decode returns the object of r with its revision.
func (n *nativeFeed) decode(r *raw) (runtime.Object, error) {
	o := r.object.DeepCopyObject() // watches share it
	a, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	a.SetResourceVersion(r.ResourceVersion)
	return o, nil
}

// named returns an object that has only the metadata of its raw.
func (n *nativeFeed) named(r *raw) runtime.Object {
	o := n.newFunc()
	if a, err := meta.Accessor(o); err == nil {
		a.SetNamespace(r.Namespace)
		a.SetName(r.Name)
		a.SetResourceVersion(r.ResourceVersion)
		a.SetAnnotations(r.Annotations)
	}
	return o
}

// list lists in a sparse scope.
func (n *nativeFeed) list(ctx context.Context, scope *store.Scope, o storage.ListOptions, into runtime.Object) error {
	raws, err := sparse(ctx, n, scope, o)
	if err != nil {
		return err
	}
	all := make([]runtime.Object, 0, len(raws.Items))
	for i := range raws.Items {
		if err := fair.Grow(ctx, nativeTimes*int64(len(raws.Items[i].framed))); err != nil {
			return err
		}
		o, err := n.decode(&raws.Items[i])
		if err != nil {
			return err
		}
		all = append(all, o)
	}
	if err := meta.SetList(into, all); err != nil {
		return err
	}
	m, err := meta.ListAccessor(into)
	if err != nil {
		return err
	}
	m.SetResourceVersion(raws.ResourceVersion)
	return nil
}

// nativeRaws decodes native objects as raws. It never fails, as [rawCodec].
type nativeRaws struct{ of *nativeFeed }

// Identifier implements [runtime.Encoder].
func (nativeRaws) Identifier() runtime.Identifier { return "native raw" }

// Encode implements [runtime.Encoder]. It always fails: raws of native kinds are only read.
func (nativeRaws) Encode(runtime.Object, io.Writer) error {
	return errors.New("native objects are not written as raws")
}

// Decode implements [runtime.Decoder].
func (c nativeRaws) Decode(framed []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	r, ok := into.(*raw)
	if !ok {
		r = &raw{}
	}
	var err error
	if *r, err = c.of.raw(append([]byte(nil), framed...)); err != nil {
		return nil, nil, err
	}
	return r, &schema.GroupVersionKind{}, nil
}
