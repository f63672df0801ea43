package view

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// A script is the changes of several kinds: the change i, of kind of[i], has the revision i+1.
type script struct {
	of []int

	mu     sync.Mutex
	asked  int64
	looked *sync.Cond
}

func (h *script) Ask(revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = max(h.asked, revision)
	h.looked.Broadcast()
}

// watch writes the changes of a kind after a revision, with the bookmarks that are asked for. A
// list, from revision 0, has the changes up to a revision first.
func (h *script) watch(ctx context.Context, kind int, from int64, out *io.PipeWriter) {
	var bookmarked int64
	tell := func(e watch.EventType, rev int64) {
		if e == watch.Bookmark {
			bookmarked = rev
		}
		_, _ = fmt.Fprintf(out, `{"type":%q,"object":{"metadata":{"name":"%d","resourceVersion":"%d"}}}`+"\n", e, kind, rev)
	}
	for rev := from + 1; rev <= int64(len(h.of)); rev++ {
		if h.of[rev-1] == kind {
			tell(watch.Added, rev)
		}
		h.mu.Lock()
		asked := h.asked
		h.mu.Unlock()
		if bookmarked < asked && asked <= rev && rand.IntN(3) == 0 {
			tell(watch.Bookmark, rev)
		}
	}
	for ctx.Err() == nil {
		h.mu.Lock()
		for h.asked <= bookmarked && ctx.Err() == nil {
			h.looked.Wait()
		}
		h.mu.Unlock()
		tell(watch.Bookmark, int64(len(h.of)))
	}
}

// A log is a response that ends when it has a bookmark of a revision.
type log struct {
	httptest.ResponseRecorder
	until int64
	done  func()
}

func (l *log) Write(line []byte) (int, error) {
	kind, rev := l.read(line)
	if n, err := l.ResponseRecorder.Write(line); kind != watch.Bookmark || rev < l.until {
		return n, err
	}
	l.done()
	return 0, io.EOF
}

func (l *log) read(line []byte) (watch.EventType, int64) {
	var e struct {
		Type   watch.EventType
		Object metav1.PartialObjectMetadata
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return watch.Error, 0
	}
	rev, _ := strconv.ParseInt(e.Object.ResourceVersion, 10, 64)
	return e.Type, rev
}

// TestMerge merges watches of random changes. It checks that the events after a revision are
// complete and in order, and that each bookmark is after all events up to its revision.
func TestMerge(t *testing.T) {
	t.Parallel()
	for round := range 50 {
		kinds := 1 + rand.IntN(4)
		h := &script{}
		h.looked = sync.NewCond(&h.mu)
		for range 200 {
			h.of = append(h.of, rand.IntN(kinds+1)) // the last kind is not watched
		}
		from := 1 + rand.Int64N(199)
		last := from
		for i, kind := range h.of {
			if kind < kinds {
				last = max(last, int64(i+1))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := &log{ResponseRecorder: *httptest.NewRecorder(), until: last, done: cancel}
		parse := func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }
		m := newMerge(w, &together{parts: slices.Repeat([]part{{from: from}}, kinds), versions: versions{parse, func(rev int64) string { return strconv.FormatInt(rev, 10) }}}, h)
		m.ended = ctx.Done()
		var opened int
		var writers []*io.PipeWriter
		err := m.run(make([]part, kinds), func(part) (*http.Response, error) {
			r, out := io.Pipe()
			writers = append(writers, out)
			kind := opened
			m.running.Go(func() { h.watch(ctx, kind, from, out) })
			opened++
			return &http.Response{StatusCode: http.StatusOK, Body: r}, nil
		})
		cancel()
		h.Ask(1 << 40)
		for _, out := range writers {
			_ = out.Close()
		}
		m.running.Wait()
		if err == nil {
			t.Fatal("the merge ended without an error")
		}
		check(t, w, h, kinds, from)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

func check(t *testing.T, w *log, h *script, kinds int, from int64) {
	t.Helper()
	at := from // every change of a watched kind up to it was written
	var events []int64
	for line := range bytes.Lines(w.Body.Bytes()) {
		kind, rev := w.read(line)
		if kind == watch.Bookmark {
			at = max(at, rev)
			continue
		}
		if n := len(events); n > 0 && rev <= events[n-1] {
			t.Errorf("the event %d is after %d", rev, events[n-1])
		}
		if rev <= at {
			t.Errorf("the event %d is after the bookmark %d", rev, at)
		}
		events = append(events, rev)
	}
	var want int
	for i, kind := range h.of {
		if int64(i) >= from && kind < kinds {
			want++
		}
	}
	if len(events) != want {
		t.Errorf("there are %d events, not %d", len(events), want)
	}
}
