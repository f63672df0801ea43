package answers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// many is the least limit of a list for which the room of a page is reserved.
const many = 10

var errLate = errors.New("the response of the physical cluster does not end in time")

// A Transport sends requests to the physical clusters of an owner. The weight of an answer counts until the caller
// closes its body, or as long as [Keep] says.
type Transport struct {
	Through http.RoundTripper
	Weights *Weights
	Of      Owners
	// Within is how long the body of an answer may take that is no watch.
	Within time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	watch, kept := watches(req), keeperFrom(req.Context())
	if watch {
		kept = nil // its events are counted one after the other
	}
	b := t.Weights.Results(t.Of).Budget()
	b.direct = watch
	if n, _ := strconv.Atoi(req.URL.Query().Get("limit")); n >= many {
		b.Pages()
	}
	kept.keep(b) // before there is room for this one, none is held for the last one
	ctx, cancel := context.WithCancel(req.Context())
	resp, err := Limited{t.Through, b}.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		b.End()
		return nil, err
	}
	body := &keptBody{ReadCloser: resp.Body, cancel: cancel, end: b.End}
	if kept != nil {
		body.end = b.Settle
	}
	if !watch {
		body.timer = time.AfterFunc(t.Within, func() { body.late.Store(true); cancel() })
	}
	resp.Body = body
	return resp, nil
}

type keptBody struct {
	io.ReadCloser
	cancel context.CancelFunc
	end    func()
	timer  *time.Timer // nil for watches
	late   atomic.Bool // the timer has ended the body
}

// Read implements [io.Reader].
func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.late.Load() {
		err = errLate
	}
	return n, err
}

// Close implements [io.Closer].
func (b *keptBody) Close() error {
	defer b.end()
	defer b.cancel()
	if b.timer != nil {
		b.timer.Stop()
	}
	return b.ReadCloser.Close()
}

type keeperKey struct{}

// A keeper has the budget of the last answer to a caller.
type keeper struct {
	mu   sync.Mutex
	last *Budget // guarded by mu
}

// Keep returns a context for calls that follow each other. The weight of an answer counts until the next call, or until
// the caller calls done. Keep has no effect without a [Transport].
func Keep(ctx context.Context) (_ context.Context, done func()) {
	k := &keeper{}
	return context.WithValue(ctx, keeperKey{}, k), func() { k.keep(nil) }
}

func keeperFrom(ctx context.Context) *keeper {
	k, _ := ctx.Value(keeperKey{}).(*keeper)
	return k
}

// keep ends the budget of the last answer, and keeps the next one.
func (k *keeper) keep(next *Budget) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last != nil {
		k.last.End()
	}
	k.last = next
}
