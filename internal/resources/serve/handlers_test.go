package serve

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/upstream"
)

// A workshop counts how often each handler was built and torn down.
type workshop struct {
	t *testing.T
	*handlers
	clock       time.Time
	built, gone atomic.Int32
}

func newWorkshop(t *testing.T) *workshop {
	w := &workshop{t: t, handlers: newHandlers(), clock: time.Unix(1e9, 0)}
	w.now = func() time.Time { return w.clock }
	return w
}

func (w *workshop) build(d *upstream.Definition) (http.Handler, error) {
	w.built.Add(1)
	_, err := d.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
		w.gone.Add(1)
		if _, err := d.Get(d.CRD.Name); err == nil {
			w.t.Errorf("a definition is removed, and still there")
		}
	}})
	return http.NotFoundHandler(), err
}

// use uses the handler of a content until the returned function is called.
func (w *workshop) use(c *catalog.Content) (done func()) {
	w.t.Helper()
	h, done, err := w.of(handlerKey{content: c.Hash}, c, w.build)
	if err != nil || h == nil {
		w.t.Fatal(h, err)
	}
	return done
}

func (w *workshop) expect(when string, handlers, built, gone int) {
	w.t.Helper()
	if w.len() != handlers || int(w.built.Load()) != built || int(w.gone.Load()) != gone {
		w.t.Errorf("%s: %d handlers, %d were built, %d torn down; want %d, %d, %d", when, w.len(), w.built.Load(), w.gone.Load(), handlers, built, gone)
	}
}

func contentOf(t testing.TB, group string) *catalog.Content {
	t.Helper()
	c, err := catalog.NewContent(gadgets(group))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A handler is built once for all concurrent requests. A slow build does not delay requests for
// other handlers.
func TestOneHandler(t *testing.T) {
	w := newWorkshop(t)
	slow, quick := contentOf(t, "slow.com"), contentOf(t, "quick.com")
	begun, goOn := make(chan struct{}), make(chan struct{})
	var builds atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, done, err := w.of(handlerKey{content: slow.Hash}, slow, func(d *upstream.Definition) (http.Handler, error) {
				builds.Add(1)
				close(begun)
				<-goOn
				return w.build(d)
			})
			if err != nil {
				t.Error(err)
				return
			}
			done()
		})
	}
	<-begun
	w.use(quick)()
	close(goOn)
	wg.Wait()
	if builds.Load() != 1 {
		t.Errorf("built %d times", builds.Load())
	}
	w.expect("in the end", 2, 2, 0)
	_, done, err := w.of(handlerKey{content: slow.Hash, tenant: "c1"}, slow, func(d *upstream.Definition) (http.Handler, error) {
		w.close() // its request was given up, and goes on
		w.expect("closed while one is built", 1, 2, 2)
		return w.build(d)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.close()
	w.expect("closed twice", 1, 3, 2)
	done()
	w.expect("let go", 0, 3, 3)
}

// All waiting requests get the error of a failed build. The next request tries again.
func TestHandlerThatCannotBeBuilt(t *testing.T) {
	w := newWorkshop(t)
	c := contentOf(t, "example.com")
	for name, build := range map[string]func(*upstream.Definition) (http.Handler, error){
		"cannot": func(*upstream.Definition) (http.Handler, error) { return nil, errors.New("cannot") },
		"broken": func(*upstream.Definition) (http.Handler, error) { panic("broken") },
	} {
		for range 2 {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					h, done, err := w.of(handlerKey{content: c.Hash}, c, build)
					if err == nil || !strings.Contains(err.Error(), name) || h != nil || done != nil {
						t.Errorf("%s: got %v, %v", name, h, err)
					}
				})
			}
			wg.Wait()
			w.expect(name, 0, 0, 0)
		}
	}
	w.use(c)()
	w.expect("after errors", 1, 1, 0)
}

// Idle handlers are removed when the use of another handler ends.
func TestIdleHandlers(t *testing.T) {
	w := newWorkshop(t)
	old, watched, busy := contentOf(t, "old.com"), contentOf(t, "watched.com"), contentOf(t, "busy.com")
	w.use(old)()
	watch := w.use(watched)
	w.clock = w.clock.Add(handlerIdle - 1)
	w.use(busy)()
	w.expect("nobody is idle for long enough", 3, 3, 0)
	w.clock = w.clock.Add(1)
	w.use(busy)()
	w.expect("one is", 2, 3, 1)
	w.clock = w.clock.Add(10 * handlerIdle)
	w.use(busy)()
	w.expect("one is in use", 2, 3, 1)
	watch()
	w.use(watched)()
	w.expect("just used", 2, 3, 1)
	w.use(old)()
	w.expect("wanted again", 3, 4, 1)
	runtime.KeepAlive([]*catalog.Content{old, watched, busy})
}

// The number of unused handlers is limited. Handlers in use do not count and are not removed.
func TestManyHandlers(t *testing.T) {
	w := newWorkshop(t)
	var all []*catalog.Content
	var watches []func()
	for i := range maxHandlers + 20 {
		all = append(all, contentOf(t, fmt.Sprintf("g%d.com", i)))
		done := w.use(all[i])
		if i%2 == 0 {
			watches = append(watches, done)
		} else {
			done()
		}
	}
	w.expect("half of them in use", len(all), len(all), 0)
	for i := range maxHandlers {
		all = append(all, contentOf(t, fmt.Sprintf("h%d.com", i)))
		w.use(all[len(all)-1])()
	}
	w.expect("others since", maxHandlers+len(watches), len(all), len(all)-maxHandlers-len(watches))
	for _, done := range watches {
		done()
	}
	w.expect("all let go", maxHandlers, len(all), len(all)-maxHandlers)
	w.use(all[0])()
	w.expect("it was let go late", maxHandlers, len(all), len(all)-maxHandlers)
	w.use(all[maxHandlers+20])()
	w.expect("it was let go early", maxHandlers, len(all)+1, len(all)+1-maxHandlers)
	runtime.KeepAlive(all)
}

// orphaned reports whether there is a handler whose content was collected.
func (w *workshop) orphaned() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.byKey {
		if h.gone {
			return true
		}
	}
	return false
}

// collect runs the garbage collector, and lets its cleanups run.
func collect() {
	runtime.GC()
	runtime.Gosched()
}

// A handler is removed with its content: at once, or after its last request.
func TestOrphanedHandlers(t *testing.T) {
	w := newWorkshop(t)
	kept := contentOf(t, "kept.com")
	w.use(kept)()
	w.use(contentOf(t, "idle.com"))()
	for w.len() != 1 { // or the test times out
		collect()
	}
	w.expect("idle", 1, 2, 1)
	watch := w.use(contentOf(t, "watched.com"))
	for !w.orphaned() {
		collect()
	}
	w.expect("in use", 2, 3, 1)
	watch()
	w.expect("let go", 1, 3, 2)
	runtime.KeepAlive(kept)
}
