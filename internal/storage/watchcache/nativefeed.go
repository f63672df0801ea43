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

	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/storage/watches"
)

// nativeTimes is the memory of a decoded native object, per stored byte.
const nativeTimes = 8

// A nativeFeed is the objects of a native kind for lists and watches in a sparse scope. Upstream's
// watch caches know neither the members of a scope nor their parts.
type nativeFeed struct {
	caches     *Caches
	kind       keys.Resource
	cfg        *storagebackend.ConfigForResource
	codec      runtime.Codec
	newFunc    func() runtime.Object
	attrs      storage.AttrFunc
	rawStorage storage.Interface // etcd, of raw
}

func (c *Caches) nativeFeed(kind keys.Resource, o store.Objects, attrs storage.AttrFunc) (*nativeFeed, error) {
	n := &nativeFeed{caches: c, kind: kind, cfg: o.Config, codec: o.Codec, newFunc: o.New, attrs: cacher.WithCluster(attrs)}
	var err error
	n.rawStorage, err = c.store.Lenient(c.direct, store.Objects{Config: o.Config, Root: o.Root, Codec: nativeRaws{n}, New: newRaw, NewList: newRawList})
	return n, err
}

// Resource implements [watches.Source].
func (n *nativeFeed) Resource(context.Context) keys.Resource { return n.kind }

// Transformer implements [watches.Source].
func (n *nativeFeed) Transformer() values.Transformer {
	return n.caches.store.Values().Transformer(n.cfg.GroupResource)
}

// Raws implements [watches.Source].
func (n *nativeFeed) Raws(context.Context, string, storage.ListOptions, *watches.RawList) error {
	return errors.New("native objects are read from the change feed in a sparse scope only")
}

// Past implements [watches.Source].
func (n *nativeFeed) Past(ctx context.Context, key string, o storage.ListOptions, into *watches.RawList) error {
	return n.rawStorage.GetList(ctx, key, o, into)
}

// Raw implements [watches.Source]. The raw of a value that cannot be decoded has no object.
func (n *nativeFeed) Raw(framed []byte) (watches.Raw, error) {
	tail, _, err := values.CutFrame(framed)
	if err != nil {
		return watches.Raw{}, err
	}
	in, namespace, name, _ := keys.SplitTail(tail)
	r := watches.Raw{Framed: framed}
	r.Namespace, r.Name, r.Annotations = namespace, name, n.caches.store.Stamps().Of(in)
	if o, _, err := n.codec.Decode(framed, nil, n.newFunc()); err == nil {
		if a, err := meta.Accessor(o); err == nil {
			r.Labels, r.Object = a.GetLabels(), o
		}
	}
	return r, nil
}

// Selects implements [watches.Source].
func (n *nativeFeed) Selects(r *watches.Raw, p storage.SelectionPredicate) (bool, error) {
	if r.Object == nil {
		return false, nil
	}
	p.GetAttrs = n.attrs
	return p.Matches(r.Object)
}

// Event implements [watches.Source].
func (n *nativeFeed) Event(e watch.Event, _ bool) (watch.Event, bool) {
	r, ok := e.Object.(*watches.Raw)
	switch {
	case !ok:
		return e, true // a Status
	case e.Type == watch.Bookmark:
		return watch.Event{Type: e.Type, Object: n.named(r)}, true
	case r.Object != nil:
		o, err := n.decode(r)
		return watch.Event{Type: e.Type, Object: o}, err == nil
	case e.Type == watch.Added:
		return e, false
	}
	return watch.Event{Type: watch.Deleted, Object: n.named(r)}, true
}

// decode returns the object of r with its revision.
func (n *nativeFeed) decode(r *watches.Raw) (runtime.Object, error) {
	o := r.Object.DeepCopyObject() // watches share it
	a, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	a.SetResourceVersion(r.ResourceVersion)
	return o, nil
}

// named returns an object that has only the metadata of its raw.
func (n *nativeFeed) named(r *watches.Raw) runtime.Object {
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
func (n *nativeFeed) list(ctx context.Context, scope *registry.Scope, o storage.ListOptions, into runtime.Object) error {
	raws, err := n.caches.watches.List(ctx, n, scope, o)
	if err != nil {
		return err
	}
	all := make([]runtime.Object, 0, len(raws.Items))
	for i := range raws.Items {
		if err := fair.Grow(ctx, nativeTimes*int64(len(raws.Items[i].Framed))); err != nil {
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
	r, ok := into.(*watches.Raw)
	if !ok {
		r = &watches.Raw{}
	}
	var err error
	if *r, err = c.of.Raw(append([]byte(nil), framed...)); err != nil {
		return nil, nil, err
	}
	return r, &schema.GroupVersionKind{}, nil
}
