package watches

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// open returns the watches of a store.
func open(t *testing.T, s *store.Store) *Watches {
	t.Helper()
	client := s.Client()
	all, err := New(t.Context(), s, client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		all.Close()
		_ = client.Close()
	})
	return all
}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// at returns a bookmark at a revision.
func at(rev int64, annotations map[string]string) watch.Event {
	o := storetest.ConfigMap("", "", "")
	o.ResourceVersion, o.Annotations = fmt.Sprint(rev), annotations
	return watch.Event{Type: watch.Bookmark, Object: o}
}

func same(e watch.Event) (watch.Event, bool) { return e, true }

// receive returns the next event of a watch; false if it has ended.
func receive(t *testing.T, w watch.Interface) (watch.Event, bool) {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		return e, ok
	case <-time.After(storetest.Patience):
		t.Fatal("the watch neither delivers nor ends")
		return watch.Event{}, false
	}
}

// End returns once every watch that asked for bookmarks has one at the revision of the end, and
// not at an older bookmark that was on its way. The next process finds the revision.
func TestFinalBookmarks(t *testing.T) {
	s := openStore(t)
	all := open(t, s)
	in := watch.NewFakeWithChanSize(10, false)
	w := all.Buffered(in, true, same)
	quiet := all.Buffered(watch.NewFakeWithChanSize(10, false), false, same) // wants no bookmarks
	if err := all.Refuse(); err != nil {
		t.Errorf("a watch before the end: %v", err)
	}
	begun := s.Latest()
	ended, rounds := make(chan struct{}), 0
	go func() {
		defer close(ended)
		all.End(t.Context(), func(_ context.Context, rev int64) {
			if rounds++; rounds == 1 {
				in.Action(watch.Bookmark, at(begun, nil).Object)
			} else {
				in.Action(watch.Bookmark, at(rev, nil).Object)
			}
		})
	}()
	last := int64(0)
	for e, ok := receive(t, w); ok; e, ok = receive(t, w) {
		last = revisionOf(e)
	}
	<-ended
	if last <= begun || rounds != 2 {
		t.Errorf("the last bookmark is at %d, the watch began at %d; %d rounds", last, begun, rounds)
	}
	if err := all.Refuse(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a watch after the end: %v", err)
	}
	quiet.Stop()
	next := open(t, s)
	if rev := next.Resumable(); rev != last {
		t.Errorf("the next process resumes at %d, want %d", rev, last)
	}
	if next.resumeAt = s.Latest() - maxReplay - 1; next.Resumable() != 0 {
		t.Errorf("too many changes to replay: resumes at %d", next.Resumable())
	}
}

// A throttled watch delivers few bookmarks, but always the one after the initial events and the
// final one.
func TestThrottle(t *testing.T) {
	all := &Watches{ending: make(chan struct{})}
	convert := all.Throttle(same)
	if _, ok := convert(at(5, nil)); ok {
		t.Error("a bookmark right after the beginning is delivered")
	}
	if _, ok := convert(at(6, map[string]string{metav1.InitialEventsAnnotationKey: "true"})); !ok {
		t.Error("the bookmark after the initial events is missing")
	}
	if e := (watch.Event{Type: watch.Added, Object: storetest.ConfigMap("ns", "x", "")}); !delivers(convert, e) {
		t.Error("an object is missing")
	}
	all.last.Store(10)
	close(all.ending)
	if delivers(convert, at(9, nil)) {
		t.Error("a bookmark before the final one is delivered")
	}
	if !delivers(convert, at(10, nil)) {
		t.Error("the final bookmark is missing")
	}
}

func delivers(convert func(watch.Event) (watch.Event, bool), e watch.Event) bool {
	_, ok := convert(e)
	return ok
}

// A buffered watch ends after an error of its conversion, and leaves out what that drops.
func TestConversionOfBufferedEvents(t *testing.T) {
	all := open(t, openStore(t))
	in := watch.NewFakeWithChanSize(10, false)
	w := all.Buffered(in, false, func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Modified {
			return Failed(context.DeadlineExceeded), true
		}
		return e, e.Type != watch.Deleted
	})
	object := storetest.ConfigMap("ns", "x", "")
	in.Delete(object)
	in.Add(object)
	in.Modify(object)
	in.Add(object)
	var got []watch.EventType
	for e, ok := receive(t, w); ok; e, ok = receive(t, w) {
		got = append(got, e.Type)
	}
	if fmt.Sprint(got) != "[ADDED ERROR]" {
		t.Errorf("got %v", got)
	}
	if !in.IsStopped() {
		t.Error("the watch behind the buffer goes on")
	}
}

// A progress request is for a revision and all before it. Without requests nothing wakes a watch.
func TestProgressRequests(t *testing.T) {
	var none *ProgressRequests
	if asked, more := none.more(); asked != 0 || more != nil {
		t.Errorf("without requests: %d, %v", asked, more)
	}
	p := progressRequestsOf(WithProgressRequests(t.Context(), NewProgressRequests()))
	_, more := p.more()
	p.Ask(7)
	select {
	case <-more:
	default:
		t.Error("a request wakes no watch")
	}
	_, more = p.more()
	p.Ask(7)
	p.Ask(3)
	select {
	case <-more:
		t.Error("a request of an older revision wakes the watches")
	default:
	}
	if asked, _ := p.more(); asked != 7 {
		t.Errorf("asked for %d", asked)
	}
}
