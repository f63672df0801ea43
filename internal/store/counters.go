package store

import "sync/atomic"

// counters are what operators see of the caches of custom resources.
type counters struct{ warm, warmings, coolings atomic.Int64 }

func (c *counters) warmed() {
	c.warm.Add(1)
	c.warmings.Add(1)
}

func (c *counters) cooled() {
	c.warm.Add(-1)
	c.coolings.Add(1)
}
