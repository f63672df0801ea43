package watches

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/values"
)

// A watchBuffer holds the events of a watch cache until the reader of the watch takes them.
// The cache itself has room for a few events, and then delays the events of all watches. A
// watch ends if more than [feed.MaxPending] events wait; its reader may resume it from the
// last event.
type watchBuffer struct {
	in      watch.Interface
	out     chan watch.Event
	stopped chan struct{}
	stop    func()
	// convert returns the event for the reader, and false if there is none. After an event
	// of type Error the watch ends.
	convert func(watch.Event) (watch.Event, bool)
	// began is the newest revision when the watch began: events up to it are a replay, which
	// waits for its reader.
	began int64
	all   *Watches
}

// Buffered returns a watch of a cache or of etcd with a buffer. If the reader asked for bookmarks,
// it gets a final one. convert returns the event for the reader, and false if there is none.
func (all *Watches) Buffered(in watch.Interface, bookmarks bool, convert func(watch.Event) (watch.Event, bool)) watch.Interface {
	b := &watchBuffer{
		in: in, out: make(chan watch.Event), stopped: make(chan struct{}), convert: convert,
		began: all.store.Latest(), all: all,
	}
	b.stop = sync.OnceFunc(func() { close(b.stopped); in.Stop() })
	done := func() {}
	if bookmarks {
		done = all.expect()
	}
	all.running.Go(func() {
		defer done()
		b.run(all.closing)
	})
	return b
}

// Stop implements [watch.Interface].
func (b *watchBuffer) Stop() { b.stop() }

// ResultChan implements [watch.Interface].
func (b *watchBuffer) ResultChan() <-chan watch.Event { return b.out }

func (b *watchBuffer) run(closing <-chan struct{}) {
	defer close(b.out)
	defer b.stop()
	var pending []watch.Event // not converted: converted they may be much larger
	var next *watch.Event     // the first of them, converted
	in := b.in.ResultChan()
	for {
		for next == nil && len(pending) > 0 {
			if e, ok := b.convert(pending[0]); ok {
				next = &e
			}
			pending[0] = watch.Event{}
			if pending = pending[1:]; len(pending) == 0 {
				pending = nil // free the room that a burst needed
			}
		}
		from, to := in, b.out
		var event watch.Event
		switch {
		case next != nil:
			event = *next
		case in == nil:
			return
		default:
			to = nil
		}
		if len(pending) >= feed.MaxPending {
			if b.live(pending[len(pending)-1]) {
				b.in.Stop()
				in = nil
			}
			from = nil
		}
		select {
		case e, ok := <-from:
			if ok {
				pending = append(pending, e)
			} else {
				in = nil
			}
		case to <- event:
			if next = nil; event.Type == watch.Error || b.all.isFinal(event) {
				return
			}
		case <-b.stopped:
			return
		case <-closing:
			return
		}
	}
}

// live reports whether e is newer than the watch.
func (b *watchBuffer) live(e watch.Event) bool {
	rev := revisionOf(e)
	return rev == 0 || rev > b.began
}

// revisionOf returns the revision of the object of an event, 0 if it has none.
func revisionOf(e watch.Event) int64 {
	accessor, err := meta.Accessor(e.Object)
	if err != nil {
		return 0
	}
	return values.RevisionOf(accessor.GetResourceVersion())
}

// endsInitial reports whether a bookmark ends the initial events of a watch.
func endsInitial(e watch.Event) bool {
	accessor, err := meta.Accessor(e.Object)
	return err == nil && accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
