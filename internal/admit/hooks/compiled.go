package hooks

import (
	"container/list"
	"sync"
	"sync/atomic"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/bounds"
)

const (
	// maxCompiled is the maximum weight of the compiled policies, and of the plugins with compiled
	// match conditions, that are kept: bytes of their sources and instructions of their regular
	// expressions. Compiled, each takes some 50 bytes of memory. A tenant may store many more
	// policies. Honest ones have some thousand bytes, so thousands are kept.
	maxCompiled = 16 << 20
	// pluginWeight is the weight of a plugin without match conditions, which takes about 20 KB.
	pluginWeight = 400
)

// A cell has the last result of compiling an object, nil if it is not kept any more.
type cell struct {
	mu       sync.Mutex // held while it is compiled
	compiled atomic.Pointer[any]
}

// compilations keeps the compiled objects that were used last. Beyond the maximum, the tenant
// with most loses one: a tenant with many policies displaces only its own.
type compilations struct {
	tenant func(cluster.Name) cluster.Name

	mu     sync.Mutex
	of     map[cluster.Name]*compilationsOf // by tenant
	at     map[weak.Pointer[cell]]*list.Element
	weight int // of all
}

// compilationsOf are those of one tenant.
type compilationsOf struct {
	tenant cluster.Name
	order  list.List // of compilation, the one that was used last at the front
	weight int
}

// A compilation does not keep the object, which may be deleted.
type compilation struct {
	cell   weak.Pointer[cell]
	weight int
	of     *compilationsOf
}

func newCompilations(tenant func(cluster.Name) cluster.Name) *compilations {
	return &compilations{tenant: tenant, of: map[cluster.Name]*compilationsOf{}, at: map[weak.Pointer[cell]]*list.Element{}}
}

// compiledBy returns what compile makes of the object of a row in cluster c.
func compiledBy[T runtime.Object, C any](all *compilations, c cluster.Name, r *row[T], compile func(T) C) C {
	out, _ := keep(all, c, &r.cell, func() (C, int, error) { return compile(r.object), r.size + instructions(r.object), nil })
	return out
}

// keep returns what a cell has, or else what compile returns with its weight, and keeps that for the
// tenant of cluster c.
func keep[C any](all *compilations, c cluster.Name, in *cell, compile func() (C, int, error)) (C, error) {
	kept := in.compiled.Load()
	if kept == nil {
		in.mu.Lock()
		defer in.mu.Unlock()
		if kept = in.compiled.Load(); kept == nil {
			out, weight, err := compile()
			if err != nil {
				return out, err
			}
			in.compiled.Store(new(any(out)))
			all.add(all.tenant(c), in, weight)
			return out, nil
		}
	}
	all.use(in)
	return (*kept).(C), nil
}

// add remembers what was compiled for a tenant, and makes room for it.
func (all *compilations) add(tenant cluster.Name, c *cell, weight int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	p := weak.Make(c)
	if old := all.at[p]; old != nil {
		all.forget(old)
	}
	of := all.of[tenant]
	if of == nil {
		of = &compilationsOf{tenant: tenant}
		all.of[tenant] = of
	}
	all.at[p] = of.order.PushFront(compilation{p, weight, of})
	of.weight += weight
	for all.weight += weight; all.weight > maxCompiled; {
		all.forget(all.most().order.Back())
	}
}

// most returns the compilations of the tenant with most. The caller holds mu.
func (all *compilations) most() (most *compilationsOf) {
	for _, of := range all.of {
		if most == nil || of.weight > most.weight {
			most = of
		}
	}
	return most
}

// forget removes a compilation. The caller holds mu.
func (all *compilations) forget(e *list.Element) {
	old := e.Value.(compilation)
	delete(all.at, old.cell)
	all.weight -= old.weight
	old.of.weight -= old.weight
	if old.of.order.Remove(e); old.of.order.Len() == 0 {
		delete(all.of, old.of.tenant)
	}
	if c := old.cell.Value(); c != nil {
		c.compiled.Store(nil)
	}
}

// use notes a use of what a cell has.
func (all *compilations) use(c *cell) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if e := all.at[weak.Make(c)]; e != nil {
		e.Value.(compilation).of.order.MoveToFront(e)
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
