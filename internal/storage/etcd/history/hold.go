package history

import (
	"sync/atomic"
	"time"
)

// maxHold is the maximum time without a compaction. A reader that is slower fails.
const maxHold = time.Hour

// Holds count the readers of an old revision, which no compaction may remove meanwhile.
type Holds struct {
	// Pressed reports whether the database has little space: then nothing is held.
	Pressed func() bool
	readers atomic.Int64 // number of readers
	since   atomic.Int64 // Unix time of the first one
}

// Now reports whether compactions must wait.
func (h *Holds) Now() bool {
	return h.readers.Load() > 0 && time.Since(time.Unix(h.since.Load(), 0)) < maxHold && !h.Pressed()
}

// Hold keeps the history until release is called, for at most an hour and while the database
// has space.
func (h *Holds) Hold() (release func()) {
	if h.readers.Add(1) == 1 {
		h.since.Store(time.Now().Unix())
	}
	return func() { h.readers.Add(-1) }
}
