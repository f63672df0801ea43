package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A pair is a server with a pool, and an agent.
type pair struct {
	pool   *Pool
	server *httptest.Server
	stop   chan struct{} // of the server
	agent  func()        // stops the agent
}

func newPair(t *testing.T, h http.HandlerFunc) *pair {
	t.Helper()
	p := &pair{pool: &Pool{}, stop: make(chan struct{})}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := p.pool.Accept(w, req, Target{Key: "t", Tenant: "owner"}, Check{Every: time.Hour, Stop: p.stop, Valid: func(context.Context) bool { return true }}); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
	p.server.StartTLS()
	t.Cleanup(p.server.Close)
	at, err := url.Parse(p.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	connected := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		err := Dialer{URL: at, TLS: &tls.Config{InsecureSkipVerify: true}, Handler: h}.Run(ctx, func() { close(connected) })
		if err != nil && ctx.Err() == nil {
			t.Log(err)
		}
	})
	p.agent = func() { cancel(); running.Wait() }
	t.Cleanup(p.agent)
	<-connected
	p.until(t, true)
	return p
}

// until waits until there is a tunnel, or none.
func (p *pair) until(t *testing.T, there bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); (p.pool.find("t") != nil) != there; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("tunnel there: %v", !there)
		}
	}
}

func (p *pair) client() *http.Client { return &http.Client{Transport: p.pool.Transport("t")} }

func get(t *testing.T, c *http.Client, path string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), errors.Join(err, resp.Body.Close())
}

func TestRequests(t *testing.T) {
	p := newPair(t, func(w http.ResponseWriter, req *http.Request) { fmt.Fprintf(w, "%s %s", req.Method, req.URL) })
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			if got, err := get(t, p.client(), fmt.Sprintf("/x?n=%d", i)); err != nil || got != fmt.Sprintf("GET /x?n=%d", i) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	all.Wait()
	if _, err := get(t, &http.Client{Transport: p.pool.Transport("other")}, "/"); !errors.Is(err, ErrNone) {
		t.Errorf("another target: %v", err)
	}
}

// A large request and a large response pass, and none of them is in memory.
func TestBodies(t *testing.T) {
	const size = 8 << 20
	p := newPair(t, func(w http.ResponseWriter, req *http.Request) {
		n, err := io.Copy(io.Discard, req.Body)
		if err != nil || n != size {
			t.Errorf("the agent got %d bytes, %v", n, err)
		}
		if _, err := io.Copy(w, io.LimitReader(zeros{}, size)); err != nil {
			t.Error(err)
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://physical/", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Requests can be upgraded, as exec needs.
func TestUpgrade(t *testing.T) {
	p := newPair(t, func(w http.ResponseWriter, req *http.Request) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
			t.Error(err)
		}
		line, err := buffer.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(conn, strings.ToUpper(line))
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := p.client().Do(req)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	both, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatal("the connection cannot be written")
	}
	if _, err := io.WriteString(both, "hello\n"); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(both)
	if string(text) != "HELLO\n" {
		t.Errorf("got %q, %v", text, err)
	}
}

// Open requests end with an error when either side stops.
func TestEnd(t *testing.T) {
	for name, stop := range map[string]func(*pair){"agent": func(p *pair) { p.agent() }, "server": func(p *pair) { close(p.stop) }} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, func(w http.ResponseWriter, req *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
			})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := p.client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			stop(p)
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("the response ends without an error")
			}
			p.until(t, false)
			if _, err := get(t, p.client(), "/"); !errors.Is(err, ErrNone) {
				t.Errorf("without a tunnel: %v", err)
			}
		})
	}
}

// An agent that never ends its side of a connection holds nothing after the server has closed the connection.
func TestAgentsThatNeverEnd(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {})
	p.agent()
	p.until(t, false)
	at, err := url.Parse(p.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := open(t.Context(), at, &tls.Config{InsecureSkipVerify: true}, Protocol)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer func() { _ = socket.Close() }()
	serving.Go(func() {
		(&http2.Server{}).ServeConn(socket, &http2.ServeConnOpts{BaseConfig: &http.Server{}, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done() // not when the server ends its side
		})})
	})
	p.until(t, true)
	of := p.pool.find("t")
	conn, err := p.pool.Dial(t.Context(), "t")
	if err != nil || of.client.State().StreamsActive != 1 {
		t.Fatalf("%d streams, %v", of.client.State().StreamsActive, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); of.client.State().StreamsActive > 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the stream is still open")
		}
	}
}

func TestNoUpgrade(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {})
	resp, err := p.server.Client().Get(p.server.URL)
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("%v, %v", resp, err)
	}
}

// A log that is read slowly does not fill the memory of the server, and headers of a hostile agent do not either.
func TestHostileAgents(t *testing.T) {
	var sent atomic.Int64
	blocked := make(chan struct{}, 1000)
	p := newPair(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/header" {
			w.Header().Set("Long", strings.Repeat("x", 2*header))
			return
		}
		chunk := make([]byte, 32<<10)
		for {
			late := time.AfterFunc(3*time.Second, func() { blocked <- struct{}{} })
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			late.Stop()
			if err != nil {
				return
			}
		}
	})
	if text, err := get(t, p.client(), "/header"); err == nil {
		t.Errorf("a header of %d bytes: %q", 2*header, text)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-blocked
	if n := sent.Load(); n > 2*unread {
		t.Errorf("the server takes %d KiB that nobody reads", n>>10)
	}
}

// The first frame of the server bounds what an agent that speaks HTTP/2 itself may send.
func TestSettings(t *testing.T) {
	pool := &Pool{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = pool.Accept(w, req, Target{Key: "t", Tenant: "owner"}, Check{Every: time.Hour}) // the test ends it
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := open(t.Context(), at, &tls.Config{InsecureSkipVerify: true}, Protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if _, err := io.ReadFull(socket, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Fatal(err)
	}
	f, err := http2.NewFramer(io.Discard, socket).ReadFrame()
	settings, ok := f.(*http2.SettingsFrame)
	if err != nil || !ok {
		t.Fatalf("%v, %v", f, err)
	}
	if n, ok := settings.Value(http2.SettingInitialWindowSize); !ok || n != unread {
		t.Errorf("unread bytes of a stream: %d, %v", n, ok)
	}
	if n, ok := settings.Value(http2.SettingMaxHeaderListSize); !ok || n != header {
		t.Errorf("bytes of a header: %d, %v", n, ok)
	}
}

// Each target has a limit of tunnels, and so have all targets of a tenant together. A tunnel counts until it ends.
func TestTunnelsAreLimited(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {})
	at, err := url.Parse(p.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	dial := Dialer{URL: at, TLS: &tls.Config{InsecureSkipVerify: true}}
	refused := func(want string) {
		t.Helper()
		if err := dial.Run(t.Context(), func() { t.Error("the tunnel is accepted") }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v", err)
		}
	}
	count := func(targets, tunnels int) {
		p.pool.mu.Lock()
		defer p.pool.mu.Unlock()
		if p.pool.of["owner"] != 1 && targets == 1 {
			t.Errorf("the tenant has %d tunnels", p.pool.of["owner"])
		}
		p.pool.of["owner"] += targets - 1
		for len(p.pool.open["t"]) < tunnels {
			p.pool.open["t"] = append(p.pool.open["t"], p.pool.open["t"][0])
		}
		p.pool.open["t"] = p.pool.open["t"][:tunnels]
	}
	count(1, most)
	refused(fmt.Sprintf("the physical cluster has %d", most))
	count(mostOfTenant, 1)
	refused(fmt.Sprintf("the physical clusters of a tenant have %d", mostOfTenant))
	if err := p.pool.room(Target{Key: "x", Tenant: "another"}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	count(2-mostOfTenant, 1)
	p.agent()
	p.until(t, false)
	for end := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		p.pool.mu.Lock()
		left := len(p.pool.of) + len(p.pool.open)
		p.pool.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a tunnel that has ended is counted")
		}
	}
}
