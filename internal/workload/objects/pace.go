package objects

import (
	"sync"
	"time"

	"github.com/unforked/kcp"
)

// A Pace limits writes to one per second and object. The zero value is ready for use.
type Pace struct {
	mu   sync.Mutex
	last map[kcp.Key]time.Time // of objects written in the last second, and of some before; guarded by mu
}

// swept is the number of entries above which those that are no longer needed are dropped.
const swept = 1024

// Wait returns how long to wait before the object at key may be written. If that is zero, the
// caller writes it now.
func (p *Pace) Wait(key kcp.Key, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rest := time.Second - now.Sub(p.last[key]); rest > 0 {
		return rest
	}
	if len(p.last) > swept || p.last == nil {
		recent := map[kcp.Key]time.Time{}
		for k, at := range p.last {
			if now.Sub(at) < time.Second {
				recent[k] = at
			}
		}
		p.last = recent
	}
	p.last[key] = now
	return 0
}
