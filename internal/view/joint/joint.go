// Package joint watches several kinds of a view over one connection: it is the client of the watches at
// [Path] in package view and of the views of extensions.
package joint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// Path is the path in a view at which several kinds are watched together. A view may refuse it.
	Path = "/watch"
	// MaxKinds is how many kinds can be watched together at most.
	MaxKinds = 32
	// apartFor is how long each kind begins a watch of its own after the server has refused to watch
	// all of them over one connection.
	apartFor = time.Minute
	// ahead is how many events of a kind can wait for its cache.
	ahead = 100
)

// A Watch watches several kinds of a view over one connection. Each kind resumes at a resource
// version of its own. If the server refuses the connection, each kind has a watch of its own, and so
// learns whether the reason concerns it. Servers without such connections refuse them, too.
type Watch struct {
	ctx    context.Context
	url    string
	client *http.Client
	spawn  func(func())

	mu      sync.Mutex
	members map[schema.GroupVersionKind]*member
	renew   context.CancelFunc                 // ends the connection, for another one with all members; nil without one
	apart   time.Time                          // when kinds may join again
	expired map[schema.GroupVersionKind]uint64 // resource versions of which the server does not know any more
}

// A member is the watch of one kind.
type member struct {
	of       *Watch
	kind     schema.GroupVersionKind
	resource string // as in the query
	as       func(*unstructured.Unstructured) runtime.Object
	at       uint64 // every event up to this resource version was delivered
	events   chan watch.Event
	stopped  chan struct{}
	stop     sync.Once
}

// Stop implements watch.Interface.
func (m *member) Stop() {
	m.stop.Do(func() { close(m.stopped) })
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if m.of.members[m.kind] == m {
		delete(m.of.members, m.kind)
	}
}

// ResultChan implements watch.Interface.
func (m *member) ResultChan() <-chan watch.Event { return m.events }

// Whole returns an object as it is.
func Whole(o *unstructured.Unstructured) runtime.Object { return o }

// New returns a Watch of the view at a URL, such as https://kcp.example.com/services/x/clusters/*. It uses
// spawn for its goroutine, which ends with ctx.
func New(ctx context.Context, url string, client *http.Client, spawn func(func())) *Watch {
	return &Watch{ctx: ctx, url: url, client: client, spawn: spawn, members: map[schema.GroupVersionKind]*member{}, expired: map[schema.GroupVersionKind]uint64{}}
}

// Join watches a kind from a resource version. It returns nil if the kind needs a watch of its own, as its
// resource version is that of no list. Events have their objects as the function as returns them. The object of a
// bookmark has a kind and a resource version only.
func (w *Watch) Join(kind schema.GroupVersionKind, r schema.GroupVersionResource, from string, as func(*unstructured.Unstructured) runtime.Object) watch.Interface {
	at, err := strconv.ParseUint(from, 10, 64)
	if err != nil || at == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.members[kind] != nil || len(w.members) >= MaxKinds || time.Now().Before(w.apart) || w.expired[kind] == at {
		return nil
	}
	resource := r.Version + "/" + r.Resource
	if r.Group != "" {
		resource = r.Group + "/" + resource
	}
	m := &member{of: w, kind: kind, resource: resource, as: as, at: at, events: make(chan watch.Event, ahead), stopped: make(chan struct{})}
	first := len(w.members) == 0
	if w.members[kind] = m; w.renew != nil {
		w.renew()
	} else if first {
		w.renew = func() {} // until the connection begins
		w.spawn(w.run)
	}
	return m
}

// run keeps a connection until there are no members.
func (w *Watch) run() {
	retry := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 10 * time.Second}
	pause := retry
	for {
		conn, all, end := w.next()
		if conn == nil {
			return
		}
		began, err := w.follow(conn, all)
		renewed := conn.Err() != nil
		end()
		switch {
		case renewed:
			continue
		case errors.Is(err, errExpired):
			w.expire()
			continue
		case errors.Is(err, errRefused):
			w.part()
			continue
		case began:
			pause = retry
		}
		select {
		case <-time.After(pause.Step()):
		case <-w.ctx.Done():
		}
	}
}

// next returns the context of the next connection, and its members, nil if there are none.
func (w *Watch) next() (context.Context, map[schema.GroupVersionKind]*member, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		w.clear()
	}
	if len(w.members) == 0 {
		w.renew = nil
		return nil, nil, nil
	}
	all := make(map[schema.GroupVersionKind]*member, len(w.members))
	for k, m := range w.members {
		all[k] = m
	}
	conn, cancel := context.WithCancel(w.ctx)
	w.renew = cancel
	return conn, all, cancel
}

// part ends the watches of all members. They begin again with a connection each.
func (w *Watch) part() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.apart = time.Now().Add(apartFor)
	w.clear()
}

// expire ends the watches of all members. They begin again with a connection each, and join when they have
// listed their kind again.
func (w *Watch) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, m := range w.members {
		w.expired[kind] = m.at
	}
	w.clear()
}

// clear ends the watches of all members. Only the goroutine of run calls it, which also sends. The
// caller holds the lock.
func (w *Watch) clear() {
	for _, m := range w.members {
		close(m.events)
	}
	clear(w.members)
}

var (
	// errRefused means that the server does not watch these kinds together.
	errRefused = errors.New("refused")
	// errExpired means that it does not know the changes of one of them any more.
	errExpired = errors.New("expired")
)

// follow delivers the events of one connection until it ends, and reports whether it began.
func (w *Watch) follow(conn context.Context, all map[schema.GroupVersionKind]*member) (began bool, err error) {
	query := url.Values{}
	for _, m := range all {
		query.Add("resource", fmt.Sprintf("%s@%d", m.resource, m.at))
	}
	req, err := http.NewRequestWithContext(conn, http.MethodGet, w.url+Path+"?"+query.Encode(), http.NoBody)
	if err != nil {
		return false, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError:
		return false, fmt.Errorf("the watch is %s", resp.Status)
	case resp.StatusCode == http.StatusGone:
		return false, errExpired
	case resp.StatusCode != http.StatusOK:
		return false, errRefused
	}
	return true, w.read(resp.Body, all)
}

// read delivers the events of a response.
func (w *Watch) read(body io.Reader, all map[schema.GroupVersionKind]*member) error {
	for lines := json.NewDecoder(body); ; {
		var line struct {
			Type   watch.EventType           `json:"type"`
			Object unstructured.Unstructured `json:"object"`
		}
		if err := lines.Decode(&line); err != nil {
			return err
		}
		at, _ := strconv.ParseUint(line.Object.GetResourceVersion(), 10, 64) // 0 moves nothing
		switch line.Type {
		case watch.Error:
			return errRefused
		case watch.Bookmark:
			for _, m := range all {
				if m.at <= at {
					o := &unstructured.Unstructured{}
					o.SetGroupVersionKind(m.kind)
					o.SetResourceVersion(line.Object.GetResourceVersion())
					m.deliver(watch.Event{Type: watch.Bookmark, Object: m.as(o)}, at)
				}
			}
		default:
			if m := all[line.Object.GroupVersionKind()]; m != nil {
				m.deliver(watch.Event{Type: line.Type, Object: m.as(&line.Object)}, at)
			}
		}
	}
}

// deliver waits until the kind takes an event. Objects of a tenant that has entered the view may be
// older than what was delivered before.
func (m *member) deliver(e watch.Event, at uint64) {
	select {
	case m.events <- e:
		m.at = max(m.at, at)
	case <-m.stopped:
	case <-m.of.ctx.Done():
	}
}
