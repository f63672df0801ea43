// Package fair divides the processors, the memory and the concurrent requests of a server
// among its tenants. It hides the queues and the accounting. A tenant is any string that
// the caller chooses. The package has state only for tenants with requests.
package fair

import "time"

// Limits are the limits of [Shares]. All numbers are maxima.
type Limits struct {
	// Light and Heavy are the requests of each class that compute at the same time.
	// LightEach and HeavyEach are those of one tenant, and LightShared the light ones while
	// other tenants use the server, too; 0 means LightEach.
	Light, LightEach, LightShared, Heavy, HeavyEach int
	// Waiting is the requests of one tenant that wait for a processor.
	Waiting int
	// Present is the admitted requests of one tenant, and Queue those that wait for
	// admission. Served is the admitted requests at priority levels.
	Present, Queue, Served int
	// Watches is the open watches of one tenant.
	Watches int
	// Timeout is the time that a request waits in any of these queues.
	Timeout time.Duration
	// Memory limits the bytes that requests hold.
	Memory Memory
}

// Shares divides a server among tenants.
type Shares struct {
	limits     Limits
	schedulers [2]*scheduler // by Class
	present    *scheduler
	served     *scheduler
	watches    *scheduler
	memory     *memory
	deliveries deliveries
}

// New returns shares without requests.
func New(l Limits) *Shares {
	light := newScheduler(l.Light, l.LightEach, l.Waiting)
	light.shared, light.delay = l.LightShared, newDelays().recent
	return &Shares{
		limits:     l,
		schedulers: [2]*scheduler{Light: light, Heavy: newScheduler(l.Heavy, l.HeavyEach, l.Waiting)},
		present:    newLimiter(l.Present, l.Queue),
		served:     newLimiter(l.Served, l.Present+l.Watches),
		watches:    newLimiter(l.Watches, 0),
		memory:     newMemory(l.Memory),
	}
}

// Idle reports whether there is no state of any tenant.
func (s *Shares) Idle() bool {
	return s.schedulers[Light].idle() && s.schedulers[Heavy].idle() && s.present.idle() && s.served.idle() && s.watches.idle() && s.memory.idle() && s.deliveries.idle()
}

// A Class is an estimate of how long a request computes.
type Class int

// Light requests compute for one or two milliseconds, and heavy ones for longer. The limits
// of heavy requests leave a processor free for light ones.
const (
	Light Class = iota
	Heavy
)
