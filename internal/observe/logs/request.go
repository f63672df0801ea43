package logs

import (
	"net/http"
	"sync/atomic"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/upstream/texts"
)

// Limits of the lines of all requests together, except verbose ones.
const (
	requestRate  = 20 // lines per second, sustained
	requestBurst = 200
)

// Within gives requests a logger that clients cannot flood. The libraries log errors for
// clients that disconnect, for requests that take too long and for WebSockets that end; this logger writes these at
// verbosity 4, because the answers and metrics show them. It drops other lines beyond 20 per
// second, and then writes the number of dropped lines. Lines have paths as of [WithPaths].
func Within(next http.Handler, pathOf func(cluster string) string) http.Handler {
	shared := &bound{limit: rate.NewLimiter(requestRate, requestBurst)}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		log := shared.of(WithPaths(klog.FromContext(req.Context()), pathOf))
		next.ServeHTTP(w, req.WithContext(klog.NewContext(req.Context(), log)))
	})
}

// bound is a limit that the loggers of several requests share.
type bound struct {
	limit   *rate.Limiter
	dropped atomic.Int64
}

// of returns a logger with this bound. It replaces the bound of [Within].
func (b *bound) of(log klog.Logger) klog.Logger {
	switch inner := log.GetSink().(type) {
	case nil: // it logs nothing
		return log
	case requestSink:
		return log.WithSink(requestSink{inner.LogSink, b})
	default:
		return log.WithSink(requestSink{inner, b})
	}
}

// requestSink is the sink of the loggers of requests.
type requestSink struct {
	logr.LogSink
	shared *bound
}

// allow reports whether a line may be written. Before that it writes the number of dropped lines.
func (s requestSink) allow() bool {
	if !s.shared.limit.Allow() {
		s.shared.dropped.Add(1)
		return false
	}
	if n := s.shared.dropped.Swap(0); n > 0 {
		s.deeper().Info(0, "Dropped log lines of requests: there were too many", "lines", n)
	}
	return true
}

var _ logr.CallDepthLogSink = requestSink{}

// verbose is the level of lines that clients cause.
const verbose = 4

// Info implements [logr.LogSink].
func (s requestSink) Info(level int, msg string, keysAndValues ...any) {
	if level > 0 || s.allow() {
		s.deeper().Info(level, msg, keysAndValues...)
	}
}

// Error implements [logr.LogSink].
func (s requestSink) Error(err error, msg string, keysAndValues ...any) {
	if err == nil && texts.ClientLeft(msg) || texts.SocketEnded(msg) {
		if s.Enabled(verbose) {
			s.deeper().Info(verbose, msg, append([]any{"err", err}, keysAndValues...)...)
		}
		return
	}
	if s.allow() {
		s.deeper().Error(err, msg, keysAndValues...)
	}
}

// deeper returns the inner sink, with one more frame to skip for the caller.
func (s requestSink) deeper() logr.LogSink {
	if d, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return d.WithCallDepth(1)
	}
	return s.LogSink
}

// WithValues implements [logr.LogSink].
func (s requestSink) WithValues(keysAndValues ...any) logr.LogSink {
	return requestSink{s.LogSink.WithValues(keysAndValues...), s.shared}
}

// WithName implements [logr.LogSink].
func (s requestSink) WithName(name string) logr.LogSink {
	return requestSink{s.LogSink.WithName(name), s.shared}
}

// WithCallDepth implements [logr.CallDepthLogSink].
func (s requestSink) WithCallDepth(depth int) logr.LogSink {
	if d, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return requestSink{d.WithCallDepth(depth), s.shared}
	}
	return s
}
