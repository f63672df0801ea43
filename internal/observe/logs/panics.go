package logs

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

// Limits of the panics that one filter logs. Other lines do not count, so a client that causes
// many of them cannot hide a panic.
const (
	panicRate  = 1 // per second, sustained
	panicBurst = 20
)

// WithPanics logs each panic of next with its stack, and aborts the request with
// [http.ErrAbortHandler], which no other filter logs. Upstream's filters log panics, too, but
// run requests in goroutines of their own: a panic loses its stack on the way to another
// goroutine. After the timeout of a request, they log its panic like a client that has left,
// and [Within] omits such lines.
func WithPanics(next http.Handler) http.Handler {
	shared := &bound{limit: rate.NewLimiter(panicRate, panicBurst)}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			r := recover()
			if r == nil {
				return
			}
			if err, _ := r.(error); !errors.Is(err, http.ErrAbortHandler) {
				shared.of(klog.FromContext(req.Context())).Error(nil, "Observed a panic",
					"panic", fmt.Sprint(r), "method", req.Method, "URI", req.RequestURI, "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		next.ServeHTTP(w, req)
	})
}
