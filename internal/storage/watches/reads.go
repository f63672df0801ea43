package watches

import (
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/values"
)

// reads are the decoded values of an event, which watches of custom resources share: each
// is decrypted once per event, and decoded once per event and schema. The pointers are
// weak, so that events in memory for later watches do not keep the decoded objects.
type reads struct{ now, was read }

// newReads returns the reads of an event, before any.
func newReads() any { return &reads{} }

// readsOf returns the reads of an event; nil if nothing is shared.
func readsOf(e feed.Event) *reads {
	r, _ := e.Shared.(*reads)
	return r
}

type read struct {
	mu  sync.Mutex
	raw weak.Pointer[Raw]
}

// after returns the object after the event.
func (r *reads) after(w *feedWatch, e feed.Event) (*Raw, error) {
	if r == nil {
		return w.read(e, e.Value)
	}
	return r.now.get(func() (*Raw, error) { return w.read(e, e.Value) })
}

// before returns the object before the event.
func (r *reads) before(w *feedWatch, e feed.Event) (*Raw, error) {
	if r == nil {
		return w.read(e, e.Previous)
	}
	return r.was.get(func() (*Raw, error) { return w.read(e, e.Previous) })
}

func (r *read) get(fresh func() (*Raw, error)) (*Raw, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if raw := r.raw.Value(); raw != nil {
		return raw, nil
	}
	raw, err := fresh()
	if err != nil {
		return nil, err
	}
	if _, value, err := values.CutFrame(raw.Framed); err != nil || len(value) == 0 {
		return raw, nil //nolint:nilerr // not decrypted, maybe because this watch ended
	}
	raw.shared = &shared{}
	r.raw = weak.Make(raw)
	return raw, nil
}

// A Decoder decodes raws as one schema does.
type Decoder interface {
	// DecodeRaw returns an object that nothing changes.
	DecodeRaw(r *Raw) (runtime.Object, error)
}

// shared are the objects that one value decodes to, by decoder.
type shared struct {
	mu  sync.Mutex
	all map[Decoder]*decoding
}

type decoding struct {
	mu sync.Mutex
	u  weak.Pointer[unstructured.Unstructured] // of a custom resource; objects of native kinds are not shared
}

// Decode returns the object as a decoder decodes it. All readers of an event share one that is a
// custom resource.
func (r *Raw) Decode(by Decoder) (runtime.Object, error) {
	s := r.shared
	if s == nil {
		return by.DecodeRaw(r)
	}
	s.mu.Lock()
	d := s.all[by]
	if d == nil {
		if s.all == nil {
			s.all = map[Decoder]*decoding{}
		}
		d = &decoding{}
		s.all[by] = d
	}
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.u.Value(); u != nil {
		return u, nil
	}
	o, err := by.DecodeRaw(r)
	if u, ok := o.(*unstructured.Unstructured); ok && err == nil {
		d.u = weak.Make(u)
	}
	return o, err
}
