package consumers

import (
	"slices"
	"sync"
)

// listeners are functions that are called for each change.
type listeners[F any] struct {
	mu  sync.Mutex
	all []*F // replaced, not changed; guarded by mu
}

// add adds a function, until leave is called.
func (l *listeners[F]) add(f F) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(slices.Clone(l.all), &f)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(slices.Clone(l.all), func(of *F) bool { return of == &f })
	}
}

// list returns the functions. The caller holds no lock while it calls them.
func (l *listeners[F]) list() []*F {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
