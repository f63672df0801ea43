package serve

import (
	"container/list"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/upstream"
)

const (
	// maxHandlers is the maximum of idle handlers. Each holds the compiled schemas of
	// a definition: some hundred KB, and for the largest definitions some MB.
	maxHandlers = 256
	// handlerIdle is the time after its last use until an idle handler is destroyed.
	handlerIdle = 10 * time.Minute
)

// A handlerKey identifies a handler. Requests with equal keys share it.
type handlerKey struct {
	content catalog.Hash
	tenant  cluster.Name // only if the handler calls webhooks
}

// handlers holds one handler for each key. It destroys a handler when no cluster uses
// its content any more, when it has been idle for handlerIdle, or when more than
// maxHandlers are idle. It never destroys a handler that serves a request, such as a
// watch. It checks idle times when a request ends, without a timer.
type handlers struct {
	now func() time.Time

	mu     sync.Mutex
	byKey  map[handlerKey]*handler
	idle   list.List // idle handlers, most recently used first
	closed bool
}

// A handler serves one content. It holds the definition but not the [catalog.Content], so that
// the garbage collector can free the Content.
type handler struct {
	definition *upstream.Definition
	once       sync.Once
	http       http.Handler
	err        error

	key  handlerKey
	uses int           // guarded by handlers.mu
	at   *list.Element // in handlers.idle, nil while it is in use
	used time.Time     // end of the last use
	gone bool          // the content was garbage collected
	last runtime.Cleanup
}

func newHandlers() *handlers {
	return &handlers{now: time.Now, byKey: map[handlerKey]*handler{}}
}

// of returns the handler of key, and builds it with build if it does not exist. Other
// handlers stay available meanwhile. The caller must call done when the request has ended.
func (s *handlers) of(key handlerKey, c *catalog.Content, build func(*upstream.Definition) (http.Handler, error)) (h http.Handler, done func(), err error) {
	use := s.take(key, c)
	use.once.Do(func() {
		defer func() {
			if p := recover(); p != nil { // a definition of a tenant must not crash the server
				use.err = fmt.Errorf("panic: %v", p)
			}
		}()
		if use.definition.CRD, use.err = c.Whole(); use.err == nil {
			gr := c.GroupResource()
			use.definition.CRD.Name = gr.Resource + "." + gr.Group // the name that upstream looks up, also in the core group
			if c.Ruled() && len(use.definition.CRD.Spec.Versions) > 1 {
				catalog.InProcess(use.definition.CRD)
			}
			use.http, use.err = build(use.definition)
		}
	})
	if use.err != nil {
		s.release(use)
		return nil, nil, use.err
	}
	return use.http, func() { s.release(use) }, nil
}

func (s *handlers) take(key handlerKey, c *catalog.Content) *handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.byKey[key]
	if h == nil {
		h = &handler{key: key, definition: &upstream.Definition{}}
		s.byKey[key] = h
		h.last = runtime.AddCleanup(c, s.orphan, h)
	}
	if h.uses++; h.at != nil {
		s.idle.Remove(h.at)
		h.at = nil
	}
	return h
}

func (s *handlers) release(h *handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.uses--; h.uses > 0 {
		return
	}
	h.used, h.at = s.now(), s.idle.PushFront(h)
	if h.gone || h.err != nil || s.closed {
		s.drop(h)
	}
	for last := s.idle.Back(); last != nil; last = s.idle.Back() {
		old := last.Value.(*handler)
		if s.idle.Len() <= maxHandlers && h.used.Sub(old.used) < handlerIdle {
			return
		}
		s.drop(old)
	}
}

// orphan runs after the content of h was garbage collected.
func (s *handlers) orphan(h *handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.gone = true; h.at != nil {
		s.drop(h)
	}
}

// drop destroys an idle handler. The caller holds mu.
func (s *handlers) drop(h *handler) {
	s.idle.Remove(h.at)
	h.at = nil
	h.last.Stop() // the cleanup would keep h in memory as long as the content exists
	if s.byKey[h.key] == h {
		delete(s.byKey, h.key)
	}
	h.definition.Remove()
}

func (s *handlers) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}

// close destroys all handlers. A request that timed out may still use one; that handler
// is destroyed when the request ends.
func (s *handlers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for first := s.idle.Front(); first != nil; first = s.idle.Front() {
		s.drop(first.Value.(*handler))
	}
}
