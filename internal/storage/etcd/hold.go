package etcd

import (
	"sync/atomic"
	"time"
)

// maxHold is the maximum time without a compaction. A reader that is slower fails.
const maxHold = time.Hour

// holds count the readers of an old revision, which no compaction may remove meanwhile.
type holds struct {
	pressed func() bool  // reports whether the database has little space: then nothing is held
	readers atomic.Int64 // number of readers
	since   atomic.Int64 // Unix time of the first one
}

// now reports whether compactions must wait.
func (h *holds) now() bool {
	return h.readers.Load() > 0 && time.Since(time.Unix(h.since.Load(), 0)) < maxHold && !h.pressed()
}

// Hold keeps the history until release is called, for at most an hour and while the database
// has space. It has no effect on an external etcd, which other processes may compact.
func (b *Backend) Hold() (release func()) {
	if b.holds == nil {
		return func() {}
	}
	if b.holds.readers.Add(1) == 1 {
		b.holds.since.Store(time.Now().Unix())
	}
	return func() { b.holds.readers.Add(-1) }
}
