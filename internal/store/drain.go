package store

import (
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// maxPending is how many events may wait for the reader of a watch.
const maxPending = 1000

// A drain stands between a watch cache, which has room for a few events of a
// watch and then waits for it before it gives an event to anybody, and the reader
// of the watch. A reader that falls behind by more than maxPending loses its
// watch, and may resume it from the last event it got.
type drain struct {
	in      watch.Interface
	out     chan watch.Event
	stopped chan struct{}
	stop    func()
	// convert turns an event into what the reader gets, and tells whether there is
	// anything to get. After an error the watch ends.
	convert func(watch.Event) (watch.Event, bool)
	// began is the newest revision when the watch did: events up to it are a replay,
	// which waits for its reader.
	began    int64
	farewell *farewell
}

// drained returns in with room for events that its reader has not taken yet.
// bookmarks tells whether the reader asked for them: then the last event will be one.
func (s *Store) drained(in watch.Interface, bookmarks bool, convert func(watch.Event) (watch.Event, bool)) watch.Interface {
	d := &drain{
		in: in, out: make(chan watch.Event), stopped: make(chan struct{}), convert: convert,
		began: s.guard.latest.Load(), farewell: s.farewell,
	}
	d.stop = sync.OnceFunc(func() { close(d.stopped); in.Stop() })
	pay := func() {}
	if bookmarks {
		pay = s.farewell.owe()
	}
	s.drains.Go(func() {
		defer pay()
		d.run(s.closing)
	})
	return d
}

// Stop implements [watch.Interface].
func (d *drain) Stop() { d.stop() }

// ResultChan implements [watch.Interface].
func (d *drain) ResultChan() <-chan watch.Event { return d.out }

func (d *drain) run(closing <-chan struct{}) {
	defer close(d.out)
	defer d.stop()
	var pending []watch.Event // as they came: converted they may be much larger
	var next *watch.Event     // the first of them, converted
	in := d.in.ResultChan()
	for {
		for next == nil && len(pending) > 0 {
			if e, ok := d.convert(pending[0]); ok {
				next = &e
			}
			pending[0] = watch.Event{}
			if pending = pending[1:]; len(pending) == 0 {
				pending = nil // what a burst needed is not kept
			}
		}
		from, to := in, d.out
		var event watch.Event
		switch {
		case next != nil:
			event = *next
		case in == nil:
			return
		default:
			to = nil
		}
		if len(pending) >= maxPending {
			if d.live(pending[len(pending)-1]) {
				d.in.Stop()
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
			if next = nil; event.Type == watch.Error || d.farewell.last(event) {
				return
			}
		case <-d.stopped:
			return
		case <-closing:
			return
		}
	}
}

// live reports whether e is newer than the watch.
func (d *drain) live(e watch.Event) bool {
	rev := revisionOf(e)
	return rev == 0 || rev > d.began
}

// revisionOf returns the revision of the object of an event, 0 if it has none.
func revisionOf(e watch.Event) int64 {
	accessor, err := meta.Accessor(e.Object)
	if err != nil {
		return 0
	}
	rev, err := strconv.ParseInt(accessor.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return rev
}

// endsInitial reports whether a bookmark says that all that exists was sent.
func endsInitial(e watch.Event) bool {
	accessor, err := meta.Accessor(e.Object)
	return err == nil && accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

// bare returns the object of an event, which the cache may have wrapped to share
// its encodings.
func bare(o runtime.Object) runtime.Object {
	if c, ok := o.(runtime.CacheableObject); ok {
		return c.GetObject()
	}
	return o
}
