package view

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

const (
	// bookmarkAfter is the number of events after which there is a bookmark, also for a reader
	// that never gets all of them.
	bookmarkAfter = 1000
	// maxOfStatus is the maximal number of bytes that are read of an error.
	maxOfStatus = 64 << 10
)

// errEnded ends a merge when one of its watches has ended.
var errEnded = errors.New("a watch has ended")

// A merge writes the events of several watches in the order of their revisions. It holds one event
// of each. An event is written when each of the other watches is known to have none before it: the
// next one of that watch has a later revision, or the watch has delivered a bookmark.
type merge struct {
	versions
	w        http.ResponseWriter
	running  sync.WaitGroup
	ended    <-chan struct{}
	requests interface{ Ask(revision int64) }
	arrivals chan arrival // has a place for each watch

	watches    []*merged
	begun      bool  // the response has
	listing    bool  // the bookmark after the existing objects is to come
	target     int64 // revision of that bookmark
	asked      int64 // the revision that was last requested
	bookmarked int64 // revision of the last bookmark
	since      int   // events after it
}

// merged is one of the watches.
type merged struct {
	next chan struct{} // has a value when another line may arrive
	head *arrival      // the event to be written next
	last int64         // revision of the last event or that it was delivered at
	safe int64         // every change up to it was delivered
}

// An arrival is an event of a watch, or its end.
type arrival struct {
	of       int
	line     []byte
	kind     watch.EventType
	revision int64
	err      error
}

func newMerge(w http.ResponseWriter, t *together, requests interface{ Ask(revision int64) }) *merge {
	m := &merge{versions: t.versions, w: w, requests: requests, arrivals: make(chan arrival, len(t.parts)), listing: t.listing}
	newest := int64(1)
	for i, p := range t.parts {
		m.watches = append(m.watches, &merged{next: make(chan struct{}, 1), last: p.from, safe: p.from})
		if newest = max(newest, p.from); i == 0 || p.from < m.bookmarked {
			m.bookmarked = p.from
		}
	}
	m.ask(newest) // each watch tells when it has begun
	return m
}

// run opens the watches and merges their events until one of them ends.
func (m *merge) run(parts []part, open func(part) (*http.Response, error)) error {
	for i, p := range parts {
		resp, err := open(p)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return refused(resp)
		}
		m.running.Go(func() { m.read(i, resp.Body) })
		m.watches[i].next <- struct{}{}
		if err := m.list(m.watches[i]); err != nil {
			return err
		}
	}
	for _, w := range m.watches {
		m.target = max(m.target, w.safe)
	}
	m.ask(m.target)
	if !m.begun { // the client knows that all watches have begun
		m.begin()
	}
	for {
		if err := m.step(); err != nil {
			return err
		}
	}
}

// step writes an event, or waits for one.
func (m *merge) step() error {
	if w := m.first(); w != nil {
		if err := m.take(w); err != nil || m.since < bookmarkAfter {
			return err
		}
		return m.bookmark()
	}
	if err := m.bookmark(); err != nil {
		return err
	}
	return m.receive()
}

// list writes the existing objects of a watch, which come before its first bookmark.
func (m *merge) list(w *merged) error {
	for m.listing && w.safe == 0 {
		if err := m.receive(); err != nil {
			return err
		}
		if w.head != nil {
			if err := m.take(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// read passes on the lines of a watch.
func (m *merge) read(of int, body io.ReadCloser) {
	defer func() { _ = body.Close() }()
	lines := bufio.NewReader(body)
	for {
		select {
		case <-m.watches[of].next:
		case <-m.ended:
			return
		}
		a := arrival{of: of}
		if a.line, a.err = lines.ReadBytes('\n'); a.err == nil {
			a.kind, a.revision, a.err = m.parse(a.line)
		}
		m.arrivals <- a
	}
}

func (m *merge) parse(line []byte) (watch.EventType, int64, error) {
	var e struct {
		Type   watch.EventType `json:"type"`
		Object struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		} `json:"object"`
	}
	if err := json.Unmarshal(line, &e); err != nil || e.Type == watch.Error {
		return e.Type, 0, err
	}
	revision, err := m.revision(e.Object.Metadata.ResourceVersion)
	return e.Type, revision, err
}

// receive waits for an event.
func (m *merge) receive() error {
	if len(m.arrivals) == 0 {
		m.flush()
	}
	var a arrival
	select {
	case a = <-m.arrivals:
	case <-m.ended:
		return errEnded
	}
	w := m.watches[a.of]
	switch {
	case errors.Is(a.err, io.EOF):
		return errEnded
	case a.err != nil:
		return a.err
	case a.kind == watch.Error:
		return errors.Join(m.write(a.line), errEnded)
	case a.kind == watch.Bookmark:
		w.safe = max(w.safe, a.revision)
		w.next <- struct{}{}
	default:
		w.last = max(w.last, w.safe+1, a.revision) // an object of a cluster that has entered the view may be older
		w.head = &a
	}
	return nil
}

// first returns the watch whose event is to be written next. It returns nil if that is not known
// yet, and asks the others whether they have one before it.
func (m *merge) first() *merged {
	var first *merged
	for _, w := range m.watches {
		if w.head != nil && (first == nil || w.last < first.last) {
			first = w
		}
	}
	if first == nil {
		return nil
	}
	m.ask(first.last)
	for _, w := range m.watches {
		if w.head == nil && max(w.last, w.safe+1) < first.last {
			return nil
		}
	}
	return first
}

// take writes the event that a watch has.
func (m *merge) take(w *merged) error {
	line := w.head.line
	w.head = nil
	w.next <- struct{}{}
	m.since++
	return m.write(line)
}

func (m *merge) ask(revision int64) {
	m.asked = max(m.asked, revision)
	m.requests.Ask(revision)
}

// bookmark writes a bookmark, if one is due: every event up to its revision has been written.
func (m *merge) bookmark() error {
	safe := m.watches[0].safe
	for _, w := range m.watches {
		safe = min(safe, w.safe)
	}
	var annotations map[string]string
	switch {
	case m.listing && safe >= m.target:
		annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	case m.listing || safe <= m.bookmarked || safe < m.asked && m.since < bookmarkAfter:
		return nil
	}
	m.listing, m.bookmarked, m.since = false, safe, 0
	at := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: m.resourceVersion(safe), Annotations: annotations},
	}
	return m.event(watch.Bookmark, at)
}

// fail answers with an error, or ends the events with it.
func (m *merge) fail(err error) {
	if !m.begun {
		fail(m.w, err)
		return
	}
	if m.event(watch.Error, responsewriters.ErrorToAPIStatus(err)) == nil {
		m.flush()
	}
}

func fail(w http.ResponseWriter, err error) {
	status := responsewriters.ErrorToAPIStatus(err)
	responsewriters.WriteRawJSON(int(status.Code), status, w)
}

// refused returns the error that a watch was refused with.
func refused(resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxOfStatus))
	if err != nil {
		return err
	}
	var status metav1.Status
	if json.Unmarshal(text, &status) == nil && status.Code != 0 {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodGet, schema.GroupResource{}, "", string(text), 0, true)
}

func (m *merge) event(kind watch.EventType, o runtime.Object) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	line, err := json.Marshal(metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}})
	if err != nil {
		return err
	}
	return m.write(append(line, '\n'))
}

func (m *merge) begin() {
	m.begun = true
	m.w.Header().Set("Content-Type", "application/json")
	m.w.WriteHeader(http.StatusOK)
}

func (m *merge) write(line []byte) error {
	if !m.begun {
		m.begin()
	}
	if _, err := m.w.Write(line); err != nil {
		return errEnded // the client has gone
	}
	return nil
}

func (m *merge) flush() {
	if m.begun {
		_ = http.NewResponseController(m.w).Flush() // an error means that the client has gone
	}
}
