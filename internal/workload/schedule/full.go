package schedule

import (
	"sync"
	"time"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/place"
)

const (
	// remembered is how long a target counts as full for a workspace after it has said so.
	remembered = time.Minute
	// mostRefusals is the number of refusals above which those that are over are forgotten.
	mostRefusals = 1024
)

// A refusal is a target that does not create another object for a workspace.
type refusal struct {
	cluster kcp.ClusterName
	target  string
}

// refusals are what targets have said lately. A part that leaves a full target takes its report along, and would
// come back. The zero value is ready for use.
type refusals struct {
	mu  sync.Mutex
	all map[refusal]time.Time // when it was said; guarded by mu
}

// add remembers that a target is full for a workspace.
func (r *refusals) add(cluster kcp.ClusterName, target string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) > mostRefusals || r.all == nil {
		recent := map[refusal]time.Time{}
		for of, at := range r.all {
			if now.Sub(at) < remembered {
				recent[of] = at
			}
		}
		r.all = recent
	}
	r.all[refusal{cluster, target}] = now
}

// mark marks the targets that are full for a workspace.
func (r *refusals) mark(cluster kcp.ClusterName, targets []place.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range targets {
		if at, said := r.all[refusal{cluster, targets[i].Key}]; said {
			targets[i].Full = at.Add(remembered)
		}
	}
}
