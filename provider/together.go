package provider

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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// maxTogether is how many kinds a server watches over one connection at most.
	maxTogether = 32
	// apartFor is how long each kind begins a watch of its own after the server has refused to watch
	// all of them over one connection.
	apartFor = time.Minute
	// ahead is how many events of a kind can wait for its cache.
	ahead = 100
)

// A together watches several kinds of a view over one connection. Each kind resumes at a resource
// version of its own. If the server refuses the connection, each kind has a watch of its own, and so
// learns whether the reason concerns it. Servers without such connections refuse them, too.
type together struct {
	view *view

	mu      sync.Mutex
	members map[schema.GroupVersionKind]*member
	renew   context.CancelFunc // ends the connection, for another one with all members; nil without one
	apart   time.Time          // when kinds may join again
}

// A member is the watch of one kind.
type member struct {
	of       *together
	kind     schema.GroupVersionKind
	resource string // as in the query
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

// join watches a kind from a resource version. It returns nil if the kind needs a watch of its own.
// ctx is that of the view.
func (t *together) join(ctx context.Context, key kindKey, r schema.GroupVersionResource, from string) watch.Interface {
	at, err := strconv.ParseUint(from, 10, 64)
	if err != nil || at == 0 || key.form == onlyMetadata { // the server sends whole objects
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.members[key.GroupVersionKind] != nil || len(t.members) >= maxTogether || time.Now().Before(t.apart) {
		return nil
	}
	resource := r.Version + "/" + r.Resource
	if r.Group != "" {
		resource = r.Group + "/" + resource
	}
	m := &member{of: t, kind: key.GroupVersionKind, resource: resource, at: at, events: make(chan watch.Event, ahead), stopped: make(chan struct{})}
	first := len(t.members) == 0
	if t.members[m.kind] = m; t.renew != nil {
		t.renew()
	} else if first {
		t.renew = func() {} // until the connection begins
		t.view.running.Go(func() { t.run(ctx) })
	}
	return m
}

// run keeps a connection until there are no members.
func (t *together) run(ctx context.Context) {
	retry := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 10 * time.Second}
	pause := retry
	for {
		conn, all, end := t.next(ctx)
		if conn == nil {
			return
		}
		began, err := t.follow(ctx, conn, all)
		renewed := conn.Err() != nil
		end()
		switch {
		case renewed:
			continue
		case errors.Is(err, errRefused):
			t.part()
			continue
		case began:
			pause = retry
		}
		select {
		case <-time.After(pause.Step()):
		case <-ctx.Done():
		}
	}
}

// next returns the context of the next connection, and its members, nil if there are none.
func (t *together) next(ctx context.Context) (context.Context, map[schema.GroupVersionKind]*member, context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		t.clear()
	}
	if len(t.members) == 0 {
		t.renew = nil
		return nil, nil, nil
	}
	all := make(map[schema.GroupVersionKind]*member, len(t.members))
	for k, m := range t.members {
		all[k] = m
	}
	conn, cancel := context.WithCancel(ctx)
	t.renew = cancel
	return conn, all, cancel
}

// part ends the watches of all members. They begin again with a connection each.
func (t *together) part() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apart = time.Now().Add(apartFor)
	t.clear()
}

// clear ends the watches of all members. Only the goroutine of run calls it, which also sends. The
// caller holds the lock.
func (t *together) clear() {
	for _, m := range t.members {
		close(m.events)
	}
	clear(t.members)
}

// errRefused means that the server does not watch these kinds together from there.
var errRefused = errors.New("refused")

// follow delivers the events of one connection until it ends, and reports whether it began.
func (t *together) follow(ctx, conn context.Context, all map[schema.GroupVersionKind]*member) (began bool, err error) {
	query := url.Values{}
	for _, m := range all {
		query.Add("resource", fmt.Sprintf("%s@%d", m.resource, m.at))
	}
	req, err := http.NewRequestWithContext(conn, http.MethodGet, t.view.config.Host+"/watch?"+query.Encode(), http.NoBody)
	if err != nil {
		return false, err
	}
	resp, err := t.view.p.http.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError:
		return false, fmt.Errorf("the watch is %s", resp.Status)
	case resp.StatusCode != http.StatusOK:
		return false, errRefused
	}
	return true, t.read(ctx, resp.Body, all)
}

// read delivers the events of a response.
func (t *together) read(ctx context.Context, body io.Reader, all map[schema.GroupVersionKind]*member) error {
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
					o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: line.Object.GetResourceVersion()}}
					m.deliver(ctx, watch.Event{Type: watch.Bookmark, Object: o}, at)
				}
			}
		default:
			if m := all[line.Object.GroupVersionKind()]; m != nil {
				m.deliver(ctx, watch.Event{Type: line.Type, Object: &line.Object}, at)
			}
		}
	}
}

// deliver waits until the kind takes an event. Objects of a tenant that has entered the view may be
// older than what was delivered before.
func (m *member) deliver(ctx context.Context, e watch.Event, at uint64) {
	select {
	case m.events <- e:
		m.at = max(m.at, at)
	case <-m.stopped:
	case <-ctx.Done():
	}
}
