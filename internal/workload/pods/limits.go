package pods

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/answers"
)

const (
	// mostReads and mostStreams are the maxima of concurrent requests of one workspace, and streamsOfTenant
	// that of all workspaces of a tenant. A stream is a watch, a followed log, or a connection to a container.
	mostReads, mostStreams, streamsOfTenant = 8, 64, 1000
	// mostCalls is the maximum of concurrent requests to targets for one workspace, and mostOfCompute
	// that to the targets of one compute workspace, of which a tenant gets at most as many as it leaves for
	// others. Others of its requests for users must not starve.
	mostCalls, mostOfCompute = 100, 800
	// mostAsked is how many parts one request asks at a time, and mostParts how many in all.
	mostAsked, mostParts = 8, 1000
	// mostPods is the maximum of pods of one part, and mostBytes that of the bytes of a part.
	mostPods, mostBytes = 5000, 64 << 20
	// heldByTenant and held are the maxima of the weight of answers, see [answers.Limits], and heldAlone that of a
	// consumer.
	heldByTenant, held, heldAlone = 768 << 20, 1 << 30, heldByTenant / 2
	// mostEvents is the maximum of events of one part.
	mostEvents = 1000
	pageSize   = 250
)

// limits count what is in use. A workspace that asks for nothing has no entry.
type limits struct {
	mu      sync.Mutex
	used    map[string]int // concurrent requests, by kind and workspace; guarded by mu
	weights *answers.Weights
}

func newLimits() *limits {
	return &limits{used: map[string]int{}, weights: answers.New(answers.Limits{
		All: held, Tenant: heldByTenant, Alone: heldAlone, Bytes: mostBytes, Answer: heldByTenant, Page: 32 << 20, One: 256 << 10,
		Change: 8 << 20, Light: 128 << 10, Density: answers.Typed(),
	})}
}

// enter takes a slot of each of some counters, or none and an error. leave gives them back.
func (l *limits) enter(slots ...slot) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if left := s.most - l.used[s.name]; left <= 0 || s.sharer != "" && l.used[s.shared()] >= left {
			return nil, apierrors.NewTooManyRequests(fmt.Sprintf("too many %s: at most %d; try again when some have ended", s.what, s.most), 1)
		}
	}
	count := func(n int) {
		for _, s := range slots {
			l.count(s.name, n)
			if s.sharer != "" {
				l.count(s.shared(), n)
			}
		}
	}
	count(1)
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		count(-1)
	}), nil
}

// count adds to a counter. The lock is held.
func (l *limits) count(name string, n int) {
	if l.used[name] += n; l.used[name] == 0 {
		delete(l.used, name)
	}
}

// A slot is one of a maximum of concurrent requests. A sharer gets at most as many as it leaves for others.
type slot struct {
	name, what string
	most       int
	sharer     kcp.ClusterName
}

// shared returns the name under which the slots of a sharer are counted.
func (s slot) shared() string { return s.name + " of " + string(s.sharer) }

func reading(c kcp.ClusterName) slot {
	return slot{name: "read " + string(c), what: "concurrent requests for pods of this workspace", most: mostReads}
}

func streaming(c kcp.ClusterName) slot {
	return slot{name: "stream " + string(c), what: "open streams of pods in this workspace", most: mostStreams}
}

func streamingOf(tenant kcp.ClusterName) slot {
	return slot{name: "streams " + string(tenant), what: "open streams of pods in all workspaces of your tenant", most: streamsOfTenant}
}

func calling(c kcp.ClusterName) slot {
	return slot{name: "call " + string(c), what: "requests to physical clusters for this workspace", most: mostCalls}
}

func called(compute, tenant kcp.ClusterName) slot {
	return slot{name: "called " + string(compute), what: "requests to the physical clusters of the compute workspace", most: mostOfCompute, sharer: tenant}
}
