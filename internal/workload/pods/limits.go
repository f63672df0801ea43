package pods

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp"
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
	mostPods, mostBytes = 5000, 16 << 20
	// mostEvents is the maximum of events of one part.
	mostEvents = 1000
	// mostChange is the maximum weight of an event of a watch: what is stored in etcd is lighter. lightChange is
	// what counts for nobody, so that those who read slowly take nothing from others.
	mostChange, lightChange = 8 << 20, 128 << 10
	// heldByTenant and held are the maxima of the weight of answers that are being read and merged, from the
	// targets of one tenant and from all. An owner of targets, and one of consumers among those of the targets,
	// get at most as much as they leave for others.
	heldByTenant, held = 192 << 20, 512 << 20
	pageSize           = 500
)

// limits count what is in use. A workspace that asks for nothing has no entry.
type limits struct {
	mu     sync.Mutex
	used   map[string]int   // concurrent requests, by kind and workspace; guarded by mu
	weight map[owners]int64 // of answers; without a consumer, that of all consumers; guarded by mu
	all    int64            // weight of answers; guarded by mu
}

// owners are the tenant whose targets are asked, and the one that asks.
type owners struct{ compute, consumer kcp.ClusterName }

func newLimits() *limits {
	return &limits{used: map[string]int{}, weight: map[owners]int64{}}
}

// enter takes a slot of each of some counters, or none and an error. leave gives them back.
func (l *limits) enter(slots ...slot) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if left := s.most - l.used[s.name]; left <= 0 || s.sharer != "" && l.used[s.shared()] >= left {
			return nil, apierrors.NewTooManyRequests(fmt.Sprintf("too many concurrent requests for pods of %s: %d at most", s.whose, s.most), 1)
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
	name, whose string
	most        int
	sharer      kcp.ClusterName
}

// shared returns the name under which the slots of a sharer are counted.
func (s slot) shared() string { return s.name + " of " + string(s.sharer) }

func reading(c kcp.ClusterName) slot {
	return slot{name: "read " + string(c), whose: "this workspace", most: mostReads}
}

func streaming(c kcp.ClusterName) slot {
	return slot{name: "stream " + string(c), whose: "this workspace", most: mostStreams}
}

func streamingOf(tenant kcp.ClusterName) slot {
	return slot{name: "streams " + string(tenant), whose: "you and your workspaces", most: streamsOfTenant}
}

func calling(c kcp.ClusterName) slot {
	return slot{name: "call " + string(c), whose: "this workspace", most: mostCalls}
}

func called(compute, tenant kcp.ClusterName) slot {
	return slot{name: "called " + string(compute), whose: "the compute workspace", most: mostOfCompute, sharer: tenant}
}

// hold adds weight to what is held for owners. It reports false if there is no room.
func (l *limits) hold(of owners, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := owners{compute: of.compute}
	if mine, now := l.weight[of]+n, l.weight[all]+n; n > 0 && (now > heldByTenant || now > held-l.all-n || mine > heldByTenant-now) {
		return false
	}
	l.all += n
	for _, o := range []owners{of, all} {
		if l.weight[o] += n; l.weight[o] == 0 {
			delete(l.weight, o)
		}
	}
	return true
}

// A budget is what the answers to one call may weigh.
type budget struct {
	*limits
	of   owners
	left int64 // bytes of answers that are no watches; below 0 if there were more

	mu    sync.Mutex // a watch ends while it is read
	taken int64      // guarded by mu
	ended bool       // guarded by mu
}

// budget returns the budget of a call.
func (l *limits) budget(of owners) *budget { return &budget{limits: l, of: of, left: mostBytes} }

// take takes weight. It reports false if there is no room.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || !b.hold(b.of, n) {
		return false
	}
	b.taken += n
	return true
}

// release gives back all that was taken.
func (b *budget) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold(b.of, -b.taken)
	b.taken = 0
}

// end is release for the last time.
func (b *budget) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.release()
}

// limited is a transport that ends answers when a budget is exceeded.
type limited struct {
	through http.RoundTripper
	budget  *budget
}

// RoundTrip implements [http.RoundTripper]. Answers must be JSON: others cannot be weighed before they are decoded.
func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.through.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != runtime.ContentTypeJSON && resp.StatusCode < http.StatusBadRequest {
		return nil, errors.Join(errors.New("the answer is not JSON"), resp.Body.Close())
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, budget: l.budget, watch: req.URL.Query().Has("watch")}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	*budget
	scale scale
	watch bool

	change int64 // weight of the events of a watch that are not decoded yet
	seen   int   // values that had ended when they were read
}

// Read implements [io.Reader].
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.watch && b.scale.values > b.seen { // who reads on has decoded the events before
		b.release()
		b.seen, b.change = b.scale.values, 0
	}
	n, err := b.ReadCloser.Read(p)
	weight, bad := b.scale.weigh(p[:n])
	if bad != nil {
		return 0, bad
	}
	if b.watch {
		if b.change += weight; b.change > mostChange {
			return 0, fmt.Errorf("an event weighs more than %d MiB", mostChange>>20)
		}
		weight = min(weight, max(0, b.change-lightChange))
	} else if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d MiB", mostBytes>>20)
	}
	if !b.take(weight) {
		return 0, errBusy
	}
	return n, err
}
