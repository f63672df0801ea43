package pods

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
)

// mostStatus is how much of an error in JSON is read. It may have a cause for each invalid field.
const mostStatus = 1 << 20

var errNotJSON = errors.New("the answer is not JSON")

// limited is a transport that ends answers when a budget is exceeded.
type limited struct {
	through http.RoundTripper
	budget  *budget
}

// RoundTrip implements [http.RoundTripper]. Answers must be JSON: others cannot be weighed before they are decoded.
// Errors may be texts. A client would decode all that it knows by the type of an error, too.
func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.through.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == runtime.ContentTypeJSON {
		watch := req.URL.Query().Has("watch")
		if resp.StatusCode >= http.StatusBadRequest { // a client reads it as a whole
			watch, resp.Body = false, shortBody{io.LimitReader(resp.Body, mostStatus), resp.Body}
		}
		if !watch { // a target that has not answered yet takes no room
			if err := l.budget.reserve(req.Context(), l.budget.next); err != nil {
				return nil, errors.Join(err, resp.Body.Close())
			}
		}
		resp.Body = &limitedBody{ReadCloser: resp.Body, budget: l.budget, watch: watch}
		return resp, nil
	}
	if resp.StatusCode < http.StatusBadRequest {
		return nil, errors.Join(errNotJSON, resp.Body.Close())
	}
	resp.Header = resp.Header.Clone()
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	resp.Header.Set("Content-Type", "text/plain")
	resp.Body = shortBody{io.LimitReader(resp.Body, mostError), resp.Body}
	return resp, nil
}

// shortBody is the beginning of a body.
type shortBody struct {
	io.Reader
	io.Closer
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
