package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// undecodable is set on the stand-in for a stored value that cannot be decoded.
// It holds the reason.
const undecodable = "kcp.io/undecodable"

// A framed value is what passes between codec and transformer: the tail of the
// key that the value belongs at, and the value as it is stored. This is how the
// cluster travels from an object to its key, where it is compared, and from the
// key back to the object, without being stored in it.

func appendFrame(b []byte, tail string, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(tail)))
	b = append(b, tail...)
	return append(b, value...)
}

func cutFrame(framed []byte) (tail string, value []byte, err error) {
	n, w := binary.Uvarint(framed)
	if w <= 0 || n > uint64(len(framed)-w) {
		return "", nil, errors.New("value without the frame that names its key")
	}
	return string(framed[w : w+int(n)]), framed[w+int(n):], nil
}

// tenantCodec encodes objects without their cluster annotation into a frame that
// names it, and stamps the annotation when it decodes one.
type tenantCodec struct{ runtime.Codec }

func (c tenantCodec) Identifier() runtime.Identifier {
	return runtime.Identifier("tenant(" + string(c.Codec.Identifier()) + ")")
}

func (c tenantCodec) Encode(obj runtime.Object, w io.Writer) error {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	name := cluster.Of(accessor)
	if name == "" {
		return fmt.Errorf("%T %s/%s is in no logical cluster", obj, accessor.GetNamespace(), accessor.GetName())
	}
	if _, err := w.Write(appendFrame(nil, tailOf(name, accessor.GetNamespace(), accessor.GetName()), nil)); err != nil {
		return err
	}
	bare, err := withoutCluster(obj)
	if err != nil {
		return err
	}
	return c.Codec.Encode(bare, w)
}

// encodeAt returns the value of an object of which it is known where it belongs,
// without a frame.
func (c tenantCodec) encodeAt(obj runtime.Object) ([]byte, error) {
	bare, err := withoutCluster(obj)
	if err != nil {
		return nil, err
	}
	return runtime.Encode(c.Codec, bare)
}

func (c tenantCodec) Decode(framed []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	tail, value, err := cutFrame(framed)
	if err != nil {
		return nil, nil, err
	}
	name, namespace, object, ok := splitTail(tail)
	if !ok {
		return nil, nil, fmt.Errorf("value at malformed key %q", tail)
	}
	obj, got, err := c.Codec.Decode(value, kind, into)
	if err != nil {
		return obj, got, fmt.Errorf("stored object %s: %w", tail, err)
	}
	return placed(obj, got, name, namespace, object)
}

// decodeAt is the inverse of encodeAt for the object that belongs at k.
func (c tenantCodec) decodeAt(k Key, value []byte) (runtime.Object, error) {
	obj, err := runtime.Decode(c.Codec, value)
	if err != nil {
		return nil, fmt.Errorf("stored object %s: %w", k.tail(), err)
	}
	obj, _, err = placed(obj, nil, k.Cluster, k.Namespace, k.Name)
	return obj, err
}

// placed stamps a decoded object with its cluster, if it calls itself as its key does.
func placed(obj runtime.Object, got *schema.GroupVersionKind, c cluster.Name, namespace, name string) (runtime.Object, *schema.GroupVersionKind, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return obj, got, err
	}
	if accessor.GetName() != name || accessor.GetNamespace() != namespace {
		return nil, got, fmt.Errorf("stored object %s calls itself %s/%s", tailOf(c, namespace, name), accessor.GetNamespace(), accessor.GetName())
	}
	stamp(accessor, c)
	return obj, got, nil
}

// derivingCodec is a tenantCodec for custom resources. Of a dry run nothing but the codec
// sees the object: so that it is answered as what it tries would be, the codec completes
// new objects too.
type derivingCodec struct {
	tenantCodec
	store *Store
	of    schema.GroupResource
}

func (c derivingCodec) Encode(obj runtime.Object, w io.Writer) error {
	if u, ok := obj.(*unstructured.Unstructured); ok && u.GetResourceVersion() == "" {
		if hook := c.store.derivedIn(c.of); hook != nil {
			u = u.DeepCopy()
			hook(u)
			obj = u
		}
	}
	return c.tenantCodec.Encode(obj, w)
}

// feedCodec is a tenantCodec for what feeds a cache of all clusters: it never
// fails to decode, as one tenant's bad value would otherwise stop everybody's.
type feedCodec struct {
	runtime.Codec // of frames
	empty         func() runtime.Object
	stamps        *stamps
	odd           *atomic.Bool         // set when a value could not be decoded
	share         func(runtime.Object) // lets the cache keep equal parts of objects once; may be nil
}

func (c feedCodec) Identifier() runtime.Identifier {
	return runtime.Identifier("feed(" + string(c.Codec.Identifier()) + ")")
}

func (c feedCodec) Decode(framed []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, got, err := c.Codec.Decode(framed, kind, into)
	if err != nil {
		if into == nil || obj == nil {
			into = c.empty()
		}
		c.odd.Store(true)
		obj = standIn(into, framed, err)
	} else if c.share != nil {
		c.share(obj)
	}
	if accessor, err := meta.Accessor(obj); err == nil && len(accessor.GetAnnotations()) == 1 {
		accessor.SetAnnotations(c.stamps.only(cluster.Of(accessor)))
	}
	return obj, got, nil
}

// standIn turns obj into one that is named as its key says and nothing more.
func standIn(obj runtime.Object, framed []byte, cause error) runtime.Object {
	if v := reflect.ValueOf(obj).Elem(); v.CanSet() {
		v.SetZero()
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.Object = map[string]any{}
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return obj
	}
	tail, _, _ := cutFrame(framed)
	name, namespace, object, _ := splitTail(tail)
	accessor.SetNamespace(namespace)
	accessor.SetName(object)
	accessor.SetAnnotations(map[string]string{cluster.Annotation: string(name), undecodable: cause.Error()})
	return obj
}

// stamp puts the cluster's annotation on an object that nobody else holds yet. It
// takes off the mark of a stand-in, which no client may set: others pass over what
// bears it.
func stamp(o metav1.Object, name cluster.Name) {
	old := o.GetAnnotations()
	_, marked := old[undecodable]
	if old[cluster.Annotation] == string(name) && !marked {
		return
	}
	o.SetAnnotations(stamped(old, name))
}

func stamped(old map[string]string, name cluster.Name) map[string]string {
	all := make(map[string]string, len(old)+1)
	maps.Copy(all, old)
	delete(all, undecodable)
	all[cluster.Annotation] = string(name)
	return all
}

// withoutCluster returns obj as it is stored. It shares everything with obj but
// its annotations.
func withoutCluster(obj runtime.Object) (runtime.Object, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok && isBare(u) {
		return u, nil
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	old := accessor.GetAnnotations()
	if old == nil {
		return obj, nil
	}
	rest := maps.Clone(old)
	delete(rest, cluster.Annotation)
	delete(rest, undecodable)
	if len(rest) == 0 {
		rest = nil
	}
	return withAnnotations(obj, rest)
}

// isBare reports whether an object has nothing that is not stored, without reading
// all of its annotations.
func isBare(u *unstructured.Unstructured) bool {
	metadata, ok := u.Object["metadata"].(map[string]any)
	if !ok {
		return false
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	_, stamped := annotations[cluster.Annotation]
	_, marked := annotations[undecodable]
	return ok && len(annotations) > 0 && !stamped && !marked
}

// withAnnotations returns a shallow copy of obj with other annotations.
func withAnnotations(obj runtime.Object, annotations map[string]string) (runtime.Object, error) {
	var other runtime.Object
	if o, ok := obj.(*unstructured.Unstructured); ok {
		top := maps.Clone(o.Object)
		if m, ok := top["metadata"].(map[string]any); ok {
			top["metadata"] = maps.Clone(m)
		}
		other = &unstructured.Unstructured{Object: top}
	} else {
		v := reflect.New(reflect.TypeOf(obj).Elem())
		v.Elem().Set(reflect.ValueOf(obj).Elem())
		other = v.Interface().(runtime.Object)
	}
	accessor, err := meta.Accessor(other)
	if err != nil {
		return nil, err
	}
	accessor.SetAnnotations(annotations)
	return other, nil
}
