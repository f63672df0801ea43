package fleet

import (
	"fmt"
	"io"
	"net/http"

	"github.com/unforked/kcp/internal/workload/engine"
)

// mostBytes is the maximum of a response of a physical cluster, except for watches, whose events
// client-go limits. Lists have smaller pages if one is too large.
const mostBytes = 32 << 20

// bounded is a transport that limits responses: a tenant decides which server answers.
type bounded struct{ through http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.through.RoundTrip(req)
	if err != nil || req.URL.Query().Get("watch") == "true" {
		return resp, err
	}
	resp.Body = &limitedBody{resp.Body, mostBytes}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	left int64
}

// Read implements [io.Reader].
func (l *limitedBody) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("%w: it has more than %d MiB", engine.ErrTooLarge, mostBytes>>20)
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
