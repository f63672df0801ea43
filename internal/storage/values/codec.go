package values

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A framed value is what a codec and a transformer exchange: the tail of the key that the
// value belongs to, and the stored value. The frame carries the cluster from an object to
// the transformer, which compares it with the key, and from the key back to the object.
// The frame is not stored.

// AppendFrame appends the framed value to b.
func AppendFrame(b []byte, tail string, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(tail)))
	b = append(b, tail...)
	return append(b, value...)
}

// CutFrame is the inverse of [AppendFrame]. The value shares the memory of framed.
func CutFrame(framed []byte) (tail string, value []byte, err error) {
	n, w := binary.Uvarint(framed)
	if w <= 0 || n > uint64(len(framed)-w) {
		return "", nil, errors.New("value without the frame that names its key")
	}
	return string(framed[w : w+int(n)]), framed[w+int(n):], nil
}

// A Codec encodes an object without its cluster annotation, into a frame that names the
// cluster. When it decodes, it sets the annotation. The inner codec is that of upstream.
type Codec struct{ runtime.Codec }

// Identifier implements [runtime.Encoder].
func (c Codec) Identifier() runtime.Identifier {
	return runtime.Identifier("tenant(" + string(c.Codec.Identifier()) + ")")
}

// Encode implements [runtime.Encoder].
func (c Codec) Encode(obj runtime.Object, w io.Writer) error {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	name := cluster.Of(accessor)
	if name == "" {
		return fmt.Errorf("%T %s/%s is in no logical cluster", obj, accessor.GetNamespace(), accessor.GetName())
	}
	if _, err := w.Write(AppendFrame(nil, keys.Tail(name, accessor.GetNamespace(), accessor.GetName()), nil)); err != nil {
		return err
	}
	bare, err := withoutCluster(obj)
	if err != nil {
		return err
	}
	return c.Codec.Encode(bare, w)
}

// encodeBare returns the encoded object without a frame.
func (c Codec) encodeBare(obj runtime.Object) ([]byte, error) {
	bare, err := withoutCluster(obj)
	if err != nil {
		return nil, err
	}
	return runtime.Encode(c.Codec, bare)
}

// Decode implements [runtime.Decoder].
func (c Codec) Decode(framed []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	tail, value, err := CutFrame(framed)
	if err != nil {
		return nil, nil, err
	}
	name, namespace, object, ok := keys.SplitTail(tail)
	if !ok {
		return nil, nil, fmt.Errorf("value at malformed key %q", tail)
	}
	obj, got, err := c.Codec.Decode(value, kind, into)
	if err != nil {
		return obj, got, fmt.Errorf("stored object %s: %w", tail, err)
	}
	return placed(obj, got, name, namespace, object)
}

// decodeBare is the inverse of encodeBare for the object at k.
func (c Codec) decodeBare(k keys.Key, value []byte) (runtime.Object, error) {
	obj, err := runtime.Decode(c.Codec, value)
	if err != nil {
		return nil, corruptUnlessNewer(fmt.Errorf("stored object %s: %w", k.Tail(), err))
	}
	obj, _, err = placed(obj, nil, k.Cluster, k.Namespace, k.Name)
	return obj, corrupt(err)
}

// placed sets the cluster annotation of a decoded object. It fails if the name or the
// namespace of the object differs from its key.
func placed(obj runtime.Object, got *schema.GroupVersionKind, c cluster.Name, namespace, name string) (runtime.Object, *schema.GroupVersionKind, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return obj, got, err
	}
	if accessor.GetName() != name || accessor.GetNamespace() != namespace {
		return nil, got, fmt.Errorf("stored object %s calls itself %s/%s", keys.Tail(c, namespace, name), accessor.GetNamespace(), accessor.GetName())
	}
	SetCluster(accessor, c)
	return obj, got, nil
}

// Undecodable is the annotation of a stand-in for a stored value that cannot be decoded.
// Its value is the reason.
const Undecodable = "kcp.io/undecodable"

// A CacheCodec decodes for a watch cache of all clusters. It never fails: one tenant's bad
// value would stop the cache for everyone. It returns a stand-in for such a value, with the
// name of its key and the annotation [Undecodable].
type CacheCodec struct {
	runtime.Codec // of framed values
	// Empty returns an object that becomes the stand-in.
	Empty func() runtime.Object
	// Stamps shares the annotations of objects that have no others.
	Stamps *Stamps
	// Failed is called for each value that cannot be decoded.
	Failed func()
	// Share shares equal parts of the objects that the cache keeps; nil to share nothing.
	Share func(runtime.Object)
}

// Identifier implements [runtime.Encoder].
func (c CacheCodec) Identifier() runtime.Identifier {
	return runtime.Identifier("feed(" + string(c.Codec.Identifier()) + ")")
}

// Decode implements [runtime.Decoder]. Its error is always nil.
func (c CacheCodec) Decode(framed []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, got, err := c.Codec.Decode(framed, kind, into)
	if err != nil {
		if into == nil || obj == nil {
			into = c.Empty()
		}
		c.Failed()
		obj = standIn(into, framed, err)
	} else if c.Share != nil {
		c.Share(obj)
	}
	if accessor, err := meta.Accessor(obj); err == nil && len(accessor.GetAnnotations()) == 1 {
		accessor.SetAnnotations(c.Stamps.Of(cluster.Of(accessor)))
	}
	return obj, got, nil
}

// standIn clears obj but for the name in its key, and sets the annotation [Undecodable].
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
	tail, _, _ := CutFrame(framed)
	name, namespace, object, _ := keys.SplitTail(tail)
	accessor.SetNamespace(namespace)
	accessor.SetName(object)
	accessor.SetAnnotations(map[string]string{cluster.Annotation: string(name), Undecodable: cause.Error()})
	return obj
}

// SetCluster sets the cluster annotation of an object, which no other goroutine may use
// yet. It removes the annotation [Undecodable], which no client may set, because watches
// skip objects that have it.
func SetCluster(o metav1.Object, c cluster.Name) {
	old := o.GetAnnotations()
	_, marked := old[Undecodable]
	if old[cluster.Annotation] == string(c) && !marked {
		return
	}
	all := make(map[string]string, len(old)+1)
	maps.Copy(all, old)
	delete(all, Undecodable)
	all[cluster.Annotation] = string(c)
	o.SetAnnotations(all)
}

// withoutCluster returns obj without the annotations that are not stored. It shares
// everything but the annotations with obj.
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
	delete(rest, Undecodable)
	if len(rest) == 0 {
		rest = nil
	}
	return withAnnotations(obj, rest)
}

// isBare reports whether an object has only annotations that are stored. It does not copy
// them.
func isBare(u *unstructured.Unstructured) bool {
	metadata, ok := u.Object["metadata"].(map[string]any)
	if !ok {
		return false
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	_, stamped := annotations[cluster.Annotation]
	_, marked := annotations[Undecodable]
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
