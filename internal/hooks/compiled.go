package hooks

import (
	"container/list"
	"sync"
	"sync/atomic"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/bounds"
)

// maxCompiled is the maximum weight of the compiled policies that are kept: bytes of policies and
// instructions of their regular expressions. Compiled, each takes some 50 bytes of memory. A tenant
// may store many more policies. Honest ones have some thousand bytes, so thousands are kept.
const maxCompiled = 16 << 20

// A cell has what was compiled last from an object, nil if it is not kept any more.
type cell struct {
	mu       sync.Mutex // held while it is compiled
	compiled atomic.Pointer[any]
}

// compilations keeps those compiled objects of all clusters that were used last.
type compilations struct {
	mu     sync.Mutex
	order  list.List // of compilation, the one that was used last at the front; guarded by mu
	at     map[weak.Pointer[cell]]*list.Element
	weight int // of all in order; guarded by mu
}

// A compilation does not keep the object, which may be deleted.
type compilation struct {
	cell   weak.Pointer[cell]
	weight int
}

// compiledBy returns what compile makes of the object of a row.
func compiledBy[T runtime.Object, C any](all *compilations, r *row[T], compile func(T) C) C {
	c := &r.cell
	kept := c.compiled.Load()
	if kept == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if kept = c.compiled.Load(); kept == nil {
			kept = new(any(compile(r.object)))
			c.compiled.Store(kept)
			all.add(c, r.size+instructions(r.object))
			return (*kept).(C)
		}
	}
	all.use(c)
	return (*kept).(C)
}

// add remembers what was compiled, and forgets what was not used for the longest time if there is
// too much.
func (all *compilations) add(c *cell, weight int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.at == nil {
		all.at = map[weak.Pointer[cell]]*list.Element{}
	}
	p := weak.Make(c)
	if old := all.at[p]; old != nil {
		all.forget(old)
	}
	all.at[p] = all.order.PushFront(compilation{p, weight})
	for all.weight += weight; all.weight > maxCompiled && all.order.Len() > 1; {
		all.forget(all.order.Back())
	}
}

// forget removes a compilation. The caller holds mu.
func (all *compilations) forget(e *list.Element) {
	old := all.order.Remove(e).(compilation)
	delete(all.at, old.cell)
	all.weight -= old.weight
	if c := old.cell.Value(); c != nil {
		c.compiled.Store(nil)
	}
}

func (all *compilations) use(c *cell) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if e := all.at[weak.Make(c)]; e != nil {
		all.order.MoveToFront(e)
	}
}

// instructions returns the size of the compiled regular expressions of an object.
func instructions(o runtime.Object) int {
	internal, err := legacyscheme.Scheme.ConvertToVersion(o, runtime.InternalGroupVersioner)
	if err != nil {
		return 0
	}
	var count bounds.Patterns
	for _, text := range admit.Expressions(internal) {
		_ = count.AddCEL(text) // an object that was stored without the limit counts, too
	}
	return count.Instructions()
}
