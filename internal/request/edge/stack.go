package edge

import (
	"net/http"
	"runtime"
)

// depth is the stack size that a request usually needs, in bytes.
const depth = 20 << 10

// WithStack grows the stack of a request's goroutine once, while it is small. Otherwise the
// runtime copies the stack several times as the request passes the handlers.
func WithStack(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		makeRoom()
		h.ServeHTTP(w, req)
	})
}

//go:noinline
func makeRoom() {
	var room [depth]byte
	runtime.KeepAlive(&room)
}
