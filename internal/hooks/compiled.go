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

const (
	// maxCompiled is the maximum weight of what is kept of the compiled policies and the plugins with
	// compiled match conditions: bytes of their sources and instructions of their regular expressions.
	// Compiled, each takes some 50 bytes of memory. A tenant may store many more policies. Honest ones
	// have some thousand bytes, so thousands are kept.
	maxCompiled = 16 << 20
	// pluginWeight is the weight of a plugin without match conditions, which takes about 20 KB.
	pluginWeight = 400
)

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
	out, _ := keep(all, &r.cell, func() int { return r.size + instructions(r.object) }, func() (C, error) { return compile(r.object), nil })
	return out
}

// keep returns what a cell has, or else what compile returns, and keeps that.
func keep[C any](all *compilations, c *cell, weigh func() int, compile func() (C, error)) (C, error) {
	kept := c.compiled.Load()
	if kept == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if kept = c.compiled.Load(); kept == nil {
			out, err := compile()
			if err != nil {
				return out, err
			}
			c.compiled.Store(new(any(out)))
			all.add(c, weigh())
			return out, nil
		}
	}
	all.use(c)
	return (*kept).(C), nil
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
func instructions(o runtime.Object) int { return compiledSize(expressions(o)) }

func expressions(o runtime.Object) []string {
	internal, err := legacyscheme.Scheme.ConvertToVersion(o, runtime.InternalGroupVersioner)
	if err != nil {
		return nil
	}
	return admit.Expressions(internal)
}

func compiledSize(expressions []string) int {
	var count bounds.Patterns
	for _, text := range expressions {
		_ = count.AddCEL(text) // an object that was stored without the limit counts, too
	}
	return count.Instructions()
}

// conditions returns the weight of the match conditions of a configuration.
func conditions(r configuration) int {
	r.weighing.Do(func() {
		all := expressions(r.object)
		r.weight = compiledSize(all)
		for _, text := range all {
			r.weight += len(text)
		}
	})
	return r.weight
}
