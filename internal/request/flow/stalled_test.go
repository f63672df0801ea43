package flow

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// endless answers with parts until that fails, and then closes ended.
func endless(ended chan<- struct{}) http.HandlerFunc {
	part := make([]byte, 1<<20)
	return func(w http.ResponseWriter, req *http.Request) {
		defer close(ended)
		watch := &watchWriter{ResponseWriter: w, after: 50 * time.Millisecond}
		if req.Header.Get("Upgrade") != "" {
			conn, both, err := watch.Hijack()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			for err == nil {
				_, err = both.Write(part)
			}
			return
		}
		for {
			if _, err := watch.Write(part); err != nil {
				return
			}
			if err := http.NewResponseController(watch).Flush(); err != nil {
				return
			}
		}
	}
}

// watched returns the response of a server, of which nothing was read.
func watched(t *testing.T, http2 bool, h http.HandlerFunc) *http.Response {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	s.StartTLS()
	t.Cleanup(s.Close)
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// A watch whose client does not read ends.
func TestStalledWatchesEnd(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprint("http2 ", http2), func(t *testing.T) {
			ended := make(chan struct{})
			resp := watched(t, http2, endless(ended))
			if resp.ProtoMajor == 2 != http2 {
				t.Fatal(resp.Proto)
			}
			<-ended
		})
	}
	t.Run("upgraded", func(t *testing.T) {
		ended := make(chan struct{})
		s := httptest.NewServer(endless(ended))
		defer s.Close()
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: kcp\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-ended
	})
}

// A client that reads slowly, but reads, keeps its watch.
func TestReadersKeepTheirWatch(t *testing.T) {
	ended := make(chan struct{})
	resp := watched(t, true, func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		watch := &watchWriter{ResponseWriter: w, after: time.Minute}
		for i := range 100 {
			if _, err := fmt.Fprintln(watch, i); err != nil {
				t.Error(err)
			}
			watch.Flush()
		}
	})
	lines := 0
	for in := bufio.NewScanner(resp.Body); in.Scan(); lines++ {
	}
	if <-ended; lines != 100 {
		t.Errorf("%d lines", lines)
	}
}

// The client of a watch over WebSocket has nothing to say, and fills no memory of the server.
func TestWatchesReceiveLittle(t *testing.T) {
	received := make(chan int64, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, both, err := (&watchWriter{ResponseWriter: w, after: time.Minute}).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		n, _ := io.Copy(io.Discard, both)
		received <- n
	}))
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: kcp\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	part := make([]byte, 1<<20)
	for range 32 {
		if _, err := conn.Write(part); err != nil {
			break // the server has closed the connection
		}
	}
	_ = conn.Close()
	if n := <-received; n > maxReceived {
		t.Errorf("the server keeps %d bytes", n)
	}
}
