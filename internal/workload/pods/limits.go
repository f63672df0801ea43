package pods

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp"
)

const (
	// mostReads and mostStreams are the maxima of concurrent requests of one workspace. A stream is
	// a watch, a followed log, or a connection to a container.
	mostReads, mostStreams = 8, 64
	// mostCalls is the maximum of concurrent requests to targets for one workspace, and mostOfCompute
	// that to the targets of one compute workspace. Others of its requests for users must not starve.
	mostCalls, mostOfCompute = 100, 400
	// mostAsked is how many parts one request asks at a time, and mostParts how many in all.
	mostAsked, mostParts = 8, 1000
	// mostPods is the maximum of pods of one part, and mostBytes that of the bytes of a part.
	mostPods, mostBytes = 5000, 16 << 20
	// mostEvents is the maximum of events of one part.
	mostEvents = 1000
	// heldByCompute and held are the maxima of bytes of lists that are being merged, from the
	// targets of one compute workspace and from all.
	heldByCompute, held = 64 << 20, 256 << 20
	pageSize            = 500
)

// limits count what is in use. A workspace that asks for nothing has no entry.
type limits struct {
	mu    sync.Mutex
	used  map[string]int            // concurrent requests, by kind and workspace; guarded by mu
	bytes map[kcp.ClusterName]int64 // by compute workspace; guarded by mu
	all   int64                     // bytes; guarded by mu
}

func newLimits() *limits {
	return &limits{used: map[string]int{}, bytes: map[kcp.ClusterName]int64{}}
}

// enter takes a slot of each of some counters, or none and an error. leave gives them back.
func (l *limits) enter(slots ...slot) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if l.used[s.name] >= s.most {
			return nil, apierrors.NewTooManyRequests(fmt.Sprintf("too many concurrent requests for pods of %s: %d at most", s.whose, s.most), 1)
		}
	}
	for _, s := range slots {
		l.used[s.name]++
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, s := range slots {
			if l.used[s.name]--; l.used[s.name] == 0 {
				delete(l.used, s.name)
			}
		}
	}), nil
}

// A slot is one of a maximum of concurrent requests.
type slot struct {
	name, whose string
	most        int
}

func reading(c kcp.ClusterName) slot { return slot{"read " + string(c), "this workspace", mostReads} }
func streaming(c kcp.ClusterName) slot {
	return slot{"stream " + string(c), "this workspace", mostStreams}
}
func calling(c kcp.ClusterName) slot { return slot{"call " + string(c), "this workspace", mostCalls} }
func called(c kcp.ClusterName) slot {
	return slot{"called " + string(c), "the compute workspace", mostOfCompute}
}

// hold adds bytes to those that are held. It reports false if there is no room.
func (l *limits) hold(compute kcp.ClusterName, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && (l.bytes[compute]+n > heldByCompute || l.all+n > held) {
		return false
	}
	l.all += n
	if l.bytes[compute] += n; l.bytes[compute] == 0 {
		delete(l.bytes, compute)
	}
	return true
}

// A budget is the bytes that the answers of one part may have.
type budget struct {
	*limits
	compute kcp.ClusterName
	left    int64
	taken   int64
}

func (l *limits) budget(compute kcp.ClusterName) *budget {
	return &budget{limits: l, compute: compute, left: mostBytes}
}

// release gives the bytes back.
func (b *budget) release() {
	b.hold(b.compute, -b.taken)
	b.taken = 0
}

// limited is a transport that ends responses when a budget is exceeded.
type limited struct {
	through http.RoundTripper
	budget  *budget
}

// RoundTrip implements [http.RoundTripper].
func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.through.RoundTrip(req)
	if err == nil {
		resp.Body = &limitedBody{resp.Body, l.budget}
	}
	return resp, err
}

type limitedBody struct {
	io.ReadCloser
	*budget
}

// Read implements [io.Reader].
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d MiB", mostBytes>>20)
	}
	if !b.hold(b.compute, int64(n)) {
		return 0, errBusy
	}
	b.taken += int64(n)
	return n, err
}
