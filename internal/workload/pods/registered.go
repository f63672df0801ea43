package pods

import (
	"sync"
	"time"

	"github.com/unforked/kcp"
)

// registers are the targets of the compute workspaces whose pods have open streams, as they were a short time ago.
// All streams of a compute workspace share one look.
type registers struct {
	mu    sync.Mutex
	of    map[kcp.ClusterName]*register // guarded by mu
	swept time.Time                     // guarded by mu
}

type register struct {
	mu   sync.Mutex // held while the server is asked
	at   time.Time  // guarded by mu
	keys map[string]bool
	used time.Time // guarded by registers.mu
}

// at returns the register of a compute workspace, and forgets those that are used no more.
func (r *registers) at(compute kcp.ClusterName, life time.Duration) *register {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.swept) > life {
		r.swept = now
		for c, of := range r.of {
			if now.Sub(of.used) > 2*life {
				delete(r.of, c)
			}
		}
	}
	of := r.of[compute]
	if of == nil {
		of = &register{}
		r.of[compute] = of
	}
	of.used = now
	return of
}

// has reports whether there is a target with a key, as it was at most life ago. keys returns those that there are. While it
// fails, there is.
func (r *register) has(key string, life time.Duration, keys func() (map[string]bool, error)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) > life {
		now, err := keys()
		if err != nil {
			return true
		}
		r.at, r.keys = time.Now(), now
	}
	return r.keys[key]
}
