package push

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/unforked/kcp/internal/workload/answers"
)

const (
	// mostBytes is the maximum of a response of a physical cluster, and mostAnswer that of what it may take in memory,
	// except for watches. Lists have smaller pages if one is too large.
	mostBytes, mostAnswer = 8 << 20, mostOfTenant / 2
	// mostOfTenant is the maximum of what the responses of the physical clusters of a tenant, and events of watches,
	// take in memory until they are used, and mostOfAll that of all tenants.
	mostOfTenant, mostOfAll = 128 << 20, 1 << 30
	// mostEvent is the maximum of what an event of a watch takes in memory. The first lightEvent bytes of one count
	// only against this.
	mostEvent, lightEvent = 32 << 20, 16 << 10
	// readWithin is how long a response may take once it has begun.
	readWithin = time.Minute
)

// mostProbe is the maximum of a response to a probe, which has one namespace. In memory, it may take a hundred
// times as much, and the probes of many physical clusters run at a time.
const mostProbe = 256 << 10

// Weights returns the weights of what engines read from physical clusters.
func Weights() *answers.Weights {
	return answers.New(answers.Limits{
		All: mostOfAll, Tenant: mostOfTenant, Alone: mostOfTenant, Bytes: mostBytes, Answer: mostAnswer, Page: 32 << 20, One: 256 << 10,
		Change: mostEvent, Light: lightEvent, Density: answers.Untyped(),
	})
}

// bounded is a transport that limits responses to probes: a tenant decides which server answers.
type bounded struct{ through http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.through.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, left: mostProbe}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	left int64
}

// Read implements [io.Reader].
func (l *limitedBody) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("%w: it has more than %d KiB", answers.ErrTooLarge, mostProbe>>10)
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
