// Package answers bounds what the answers of physical clusters take in memory. It hides how an answer is weighed while
// it is read, and how tenants share the weight. The owner of a physical cluster decides what it answers.
package answers

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/network/dial"
)

// mostStatus is how much of an error in JSON is read. It may have a cause for each invalid field.
const mostStatus = 1 << 20

// MostText is how much of an error is read that is not JSON.
const MostText = 8 << 10

var (
	// ErrNotJSON is the error of an answer in another format.
	ErrNotJSON = errors.New("the answer is not JSON")
	// ErrBusy is the error of an answer for which there is no room now.
	ErrBusy = fmt.Errorf("physical clusters answer with too much at once: %w", dial.ErrBusy)
	// ErrTooLarge is the error of an answer that exceeds a limit of its own.
	ErrTooLarge = errors.New("the response of the physical cluster is too large")
)

// Limited is a transport that ends answers when a budget is exceeded.
type Limited struct {
	Through http.RoundTripper
	Budget  *Budget
}

// RoundTrip implements [http.RoundTripper]. Answers must be JSON: others cannot be weighed before they are decoded.
// Errors may be texts. A client would decode all that it knows by the type of an error, too.
func (l Limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.Through.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == runtime.ContentTypeJSON {
		watch := watches(req)
		if resp.StatusCode >= http.StatusBadRequest { // a client reads it as a whole
			watch, resp.Body = false, shortBody{io.LimitReader(resp.Body, mostStatus), resp.Body}
		}
		if !watch { // a physical cluster that has not answered yet takes no room
			if err := l.Budget.Reserve(req.Context(), l.Budget.next); err != nil {
				return nil, errors.Join(err, resp.Body.Close())
			}
		}
		resp.Body = &limitedBody{ReadCloser: resp.Body, Budget: l.Budget, watch: watch, scale: scale{as: l.Budget.Density}}
		return resp, nil
	}
	if resp.StatusCode < http.StatusBadRequest {
		return nil, errors.Join(ErrNotJSON, resp.Body.Close())
	}
	resp.Header = resp.Header.Clone()
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	resp.Header.Set("Content-Type", "text/plain")
	resp.Body = shortBody{io.LimitReader(resp.Body, MostText), resp.Body}
	return resp, nil
}

// watches reports whether a request is a watch.
func watches(req *http.Request) bool { return req.URL.Query().Has("watch") }

// shortBody is the beginning of a body.
type shortBody struct {
	io.Reader
	io.Closer
}

type limitedBody struct {
	io.ReadCloser
	*Budget
	scale scale
	watch bool

	answer int64 // weight of an answer that is no watch
	change int64 // weight of the events of a watch that are not decoded yet
	seen   int   // values that had ended when they were read
}

// Read implements [io.Reader].
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.watch && b.scale.values > b.seen { // a decoder that reads on has decoded what it had
		b.seen, b.change = b.scale.values, 0
		b.decoded(b.seen)
	}
	n, err := b.ReadCloser.Read(p)
	weight, bad := b.scale.weigh(p[:n])
	if bad != nil {
		return 0, bad
	}
	if b.watch {
		if b.change += weight; b.change > b.Change {
			return 0, fmt.Errorf("%w: an event weighs more than %d MiB", ErrTooLarge, b.Change>>20)
		}
		weight = min(weight, max(0, b.change-b.Light))
	} else if err := b.count(int64(n), weight); err != nil {
		return 0, err
	}
	if !b.take(weight) {
		b.Release() // at once: of several answers that grow at the same time, one fails for the others
		return 0, ErrBusy
	}
	return n, err
}

// count counts bytes of an answer that is no watch, and their weight.
func (b *limitedBody) count(bytes, weight int64) error {
	b.answer += weight
	switch b.left -= bytes; {
	case b.left < 0:
		return fmt.Errorf("%w: it has more than %d MiB", ErrTooLarge, b.Bytes>>20)
	case b.answer > b.Answer:
		return fmt.Errorf("%w: it takes more than %d MiB of memory", ErrTooLarge, b.Answer>>20)
	}
	return nil
}
