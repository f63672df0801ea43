package watchcache

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/storage/watches"
)

// An Encoded is a custom resource as JSON for clients, after conversion by its schema. The
// storage of a custom resource reads into an Encoded as into an Unstructured, and encodes
// each object once for all requests.
type Encoded struct {
	line []byte // JSON with a newline at the end; never changed
}

// GetObjectKind implements [runtime.Object]. The kind is in the JSON.
func (*Encoded) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object].
func (e *Encoded) DeepCopyObject() runtime.Object { return &Encoded{e.line} }

// Encode writes the object as Kubernetes' serializer does.
func (e *Encoded) Encode(w io.Writer) error {
	_, err := w.Write(e.line) // in one call: the size decides whether it is compressed
	return err
}

// An EncodedList is a list of encoded objects.
type EncodedList struct {
	about unstructured.UnstructuredList // without items
	lines [][]byte
}

// NewEncodedList returns an empty list of a kind.
func NewEncodedList(kind schema.GroupVersionKind) *EncodedList {
	l := &EncodedList{}
	l.about.SetGroupVersionKind(kind)
	return l
}

// GetObjectKind implements [runtime.Object].
func (l *EncodedList) GetObjectKind() schema.ObjectKind { return l.about.GetObjectKind() }

// DeepCopyObject implements [runtime.Object].
func (l *EncodedList) DeepCopyObject() runtime.Object {
	return &EncodedList{*l.about.DeepCopy(), slices.Clone(l.lines)}
}

// writeSize is the size of the buffer for a list.
const writeSize = 64 << 10

// Encode writes the list as Kubernetes' serializer does, with its fields in order.
func (l *EncodedList) Encode(to io.Writer) error {
	size := 512
	for _, line := range l.lines {
		size += len(line)
	}
	if _, err := io.WriteString(to, "{"); err != nil { // in a call of its own, which marks a stream
		return err
	}
	w := bufio.NewWriterSize(to, min(size, writeSize))
	fields := append(slices.Collect(maps.Keys(l.about.Object)), "items")
	slices.Sort(fields)
	for i, field := range fields {
		if err := write(w, separator(i), strconv.Quote(field), ":"); err != nil {
			return err
		}
		var err error
		if field == "items" {
			err = l.writeItems(w)
		} else {
			err = writeJSON(w, l.about.Object[field])
		}
		if err != nil {
			return err
		}
	}
	if err := write(w, "}\n"); err != nil {
		return err
	}
	return w.Flush()
}

func (l *EncodedList) writeItems(w *bufio.Writer) error {
	if err := write(w, "["); err != nil {
		return err
	}
	for i, line := range l.lines {
		if err := write(w, separator(i)); err != nil {
			return err
		}
		if _, err := w.Write(line[:len(line)-1]); err != nil {
			return err
		}
	}
	return write(w, "]")
}

// separator returns the text before the i-th element.
func separator(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

func write(w *bufio.Writer, texts ...string) error {
	for _, text := range texts {
		if _, err := w.WriteString(text); err != nil {
			return err
		}
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// Get implements [storage.Interface].
func (c *custom) Get(ctx context.Context, key string, o storage.GetOptions, out runtime.Object) error {
	into, ok := out.(*Encoded)
	if !ok {
		return c.Interface.Get(ctx, key, o, out)
	}
	var r watches.Raw
	err := c.rawStorage.Get(ctx, key, o, &r)
	if err != nil {
		return err
	}
	if into.line, err = c.encoded(&r); err != nil {
		if strict := c.Interface.Get(ctx, key, o, c.newFunc()); strict != nil {
			return strict // its error says why decryption failed
		}
	}
	return err
}

// encodedList lists from the cache that all schemas share, or from etcd.
func (c *custom) encodedList(ctx context.Context, key string, o storage.ListOptions, into *EncodedList) error {
	var raws watches.RawList
	if err := c.Raws(ctx, key, o, &raws); err != nil {
		return err
	}
	into.lines = make([][]byte, 0, len(raws.Items))
	encoded := func(r *watches.Raw) ([]byte, error) {
		line, err := c.encoded(r)
		if err == nil {
			err = fair.Grow(ctx, int64(len(line)))
		}
		return line, err
	}
	if err := each(ctx, &raws, encoded, func(line []byte) { into.lines = append(into.lines, line) }); err != nil {
		return err
	}
	raws.CopyMeta(&into.about)
	return nil
}

type encodedEventsKey struct{}

// WithEncodedEvents returns a context for a watch of custom resources whose events have an
// [Encoded].
func WithEncodedEvents(ctx context.Context) context.Context {
	return context.WithValue(ctx, encodedEventsKey{}, true)
}

func encodesEvents(ctx context.Context) bool {
	yes, _ := ctx.Value(encodedEventsKey{}).(bool)
	return yes
}

// An encodedEvents is a custom for watches with encoded events. They neither decode nor encode an
// object whose JSON is kept.
type encodedEvents struct{ *custom }

// Event implements [watches.Source].
func (c encodedEvents) Event(e watch.Event, wildcard bool) (watch.Event, bool) {
	r, ok := e.Object.(*watches.Raw)
	if !ok || e.Type == watch.Bookmark || len(r.Framed) == 0 {
		return c.custom.Event(e, wildcard)
	}
	line, err := c.encoded(r)
	if err != nil {
		return c.custom.Event(e, wildcard)
	}
	return watch.Event{Type: e.Type, Object: &Encoded{line}}, true
}

// An encodedValue is the JSON of a stored value, converted by a schema.
type encodedValue struct {
	revision string // in the JSON
	line     []byte // never changed
}

// encoded returns the JSON of an object, converted by its schema. It is shared.
func (c *custom) encoded(r *watches.Raw) ([]byte, error) {
	kept := c.caches.encoded
	key := kept.key(c, "", r.Framed)
	if read, ok := kept.find(key, r.Framed); ok && read.revision == r.ResourceVersion {
		return read.line, nil
	}
	decode := c.decoded
	if c.metadataOnly {
		decode = c.decodeMetadata
	}
	o, err := decode(r)
	if err != nil {
		return nil, err
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T is no custom resource", o)
	}
	text, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	line := append(text, '\n')
	if c.keeps(r.Framed) {
		kept.put(key, r.Framed, encodedValue{r.ResourceVersion, line}, len(r.Framed)+len(line))
	}
	return line, nil
}

// unconverted returns the start of objects stored in the version of o: their fields are
// sorted.
func unconverted(o runtime.Object) []byte {
	if _, ok := o.(*unstructured.Unstructured); !ok {
		return nil // the conversions of native kinds never change
	}
	version, _ := o.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return []byte(`{"apiVersion":"` + version + `",`)
}

// keeps reports whether the conversion of a value may be kept: not if a webhook converts
// it, which may change.
func (c *custom) keeps(framed []byte) bool {
	_, value, err := values.CutFrame(framed)
	return err == nil && bytes.HasPrefix(value, c.unconverted)
}

// remembers returns a decoder that uses the kept JSON of a value, if there is one. Most
// objects that change were read or written recently, and that takes a third of the time.
func (c *custom) remembers(d etcd3.Decoder) etcd3.Decoder { return readingDecoder{d, c} }

type readingDecoder struct {
	etcd3.Decoder
	of *custom
}

// Decode implements [etcd3.Decoder].
func (d readingDecoder) Decode(framed []byte, into runtime.Object, revision int64) error {
	u, ok := into.(*unstructured.Unstructured)
	if !ok || d.of.metadataOnly || !d.of.keeps(framed) {
		return d.Decoder.Decode(framed, into, revision)
	}
	kept := d.of.caches.encoded
	key := kept.key(d.of, "", framed)
	if read, ok := kept.find(key, framed); ok {
		u.Object = nil
		if err := kjson.UnmarshalCaseSensitivePreserveInts(read.line, &u.Object); err != nil {
			return err
		}
		u.SetResourceVersion(d.of.caches.store.ResourceVersion(revision))
		return nil
	}
	if err := d.Decoder.Decode(framed, into, revision); err != nil {
		return err
	}
	text, err := json.Marshal(u.Object)
	if err == nil {
		kept.put(key, framed, encodedValue{u.GetResourceVersion(), append(text, '\n')}, len(framed)+len(text))
	}
	return err
}
