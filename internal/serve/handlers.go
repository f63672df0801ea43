package serve

import (
	"container/list"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// maxHandlers is how many handlers stay that nobody uses right now. Each holds
	// the compiled schemas of a definition: some hundred KB, and for the largest
	// definitions some MB.
	maxHandlers = 256
	// handlerIdle is how long one stays after it was last used.
	handlerIdle = 10 * time.Minute
)

// A handlerKey is what requests must have in common to be served by one handler.
type handlerKey struct {
	content Hash
	tenant  cluster.Name // only if it calls webhooks
}

// handlers holds one handler for each key. They go when no cluster has their
// content any more, when they have been idle for long, or when there are many;
// never while a request, such as a watch, is in them. Nothing runs meanwhile.
type handlers struct {
	now func() time.Time

	mu     sync.Mutex
	byKey  map[handlerKey]*handler
	idle   list.List // of those that nobody uses, the last used first
	closed bool
}

// A handler serves one content. It does not hold on to it, but to its definition.
type handler struct {
	definition *oneDefinition
	once       sync.Once
	http       http.Handler
	err        error

	key  handlerKey
	uses int           // guarded by handlers.mu
	at   *list.Element // in handlers.idle, nil while it is used
	used time.Time     // when it was last let go of
	gone bool          // nobody has the content any more
	last runtime.Cleanup
}

func newHandlers() *handlers {
	return &handlers{now: time.Now, byKey: map[handlerKey]*handler{}}
}

// of returns the handler of a key, which is for content c. It is built once, without
// holding up others. Done must be called when the request has ended.
func (s *handlers) of(key handlerKey, c *Content, build func(*oneDefinition) (http.Handler, error)) (h http.Handler, done func(), err error) {
	use := s.take(key, c)
	use.once.Do(func() {
		defer func() {
			if p := recover(); p != nil { // what one tenant defined must not break what all use
				use.err = fmt.Errorf("panic: %v", p)
			}
		}()
		if use.definition.crd, use.err = c.Whole(); use.err == nil {
			gr := c.GroupResource()
			use.definition.crd.Name = gr.Resource + "." + gr.Group // as upstream looks for it, also in the core group
			use.http, use.err = build(use.definition)
		}
	})
	if use.err != nil {
		s.release(use)
		return nil, nil, use.err
	}
	return use.http, func() { s.release(use) }, nil
}

func (s *handlers) take(key handlerKey, c *Content) *handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.byKey[key]
	if h == nil {
		h = &handler{key: key, definition: &oneDefinition{}}
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

// orphan is called when nobody has the content of h any more.
func (s *handlers) orphan(h *handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.gone = true; h.at != nil {
		s.drop(h)
	}
}

// drop tears an unused handler down. Called locked.
func (s *handlers) drop(h *handler) {
	s.idle.Remove(h.at)
	h.at = nil
	h.last.Stop() // it would keep h for as long as there is the content
	if s.byKey[h.key] == h {
		delete(s.byKey, h.key)
	}
	h.definition.remove()
}

func (s *handlers) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}

// close tears all handlers down. A request that was given up may still be in one, even
// while that is built: then it goes when the request is done with it.
func (s *handlers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for first := s.idle.Front(); first != nil; first = s.idle.Front() {
		s.drop(first.Value.(*handler))
	}
}
