package server

import (
	"net/http"
	"runtime"
)

// depth is how much stack a request usually takes: its handlers stand inside each other.
const depth = 20 << 10

// withRoom has the stack of a request's goroutine grow at once, while it is short:
// otherwise it is copied again and again on the way in, always with more on it.
func withRoom(h http.Handler) http.Handler {
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
