package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/net/http2"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/server"
)

// Connection options take effect: the limit of HTTP/2 streams, the chance of GOAWAY, and
// profiles on a socket.
func TestConnections(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(must(os.MkdirTemp("", "kcp-"))(t), "debug") // socket paths must be short
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(socket)) })
	o := server.DefaultOperation()
	o.Serving.HTTP2MaxStreamsPerConnection = 7
	o.Requests.GoawayChance = 0.02
	o.Profiling.DebugSocketPath = socket
	s := operate(t, t.TempDir(), o)

	if got := streamsOf(t, s.at); got != 7 {
		t.Errorf("a connection may have %d requests open", got)
	}
	client := must(rest.HTTPClientFor(s.admin))(t)
	t.Cleanup(client.CloseIdleConnections)
	const most = 5000 // each request has a chance of 1 in 50 to get a GOAWAY
	opened, n := 0, 0
	for ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if !c.Reused {
			opened++
		}
	}}); opened < 3 && n < most; n++ {
		resp := must(client.Do(must(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.at+"/livez", nil))(t)))(t)
		_, err := io.Copy(io.Discard, resp.Body)
		if _ = resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %s, %v", n, resp.Status, err)
		}
	}
	if opened < 3 {
		t.Errorf("%d connections for %d requests", opened, n)
	}

	local := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(local.CloseIdleConnections)
	eventually(t, "the socket shows profiles", func() bool {
		resp, err := local.RoundTrip(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kcp/debug/pprof/cmdline", nil))(t))
		if err != nil {
			return false // the socket is opened after the listener
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// streamsOf returns the limit of streams that the server announces for an HTTP/2 connection.
func streamsOf(t *testing.T, at string) uint32 {
	t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	conn := must(dialer.DialContext(t.Context(), "tcp", at))(t)
	defer func() { _ = conn.Close() }()
	must(io.WriteString(conn, http2.ClientPreface))(t)
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for {
		if settings, ok := must(framer.ReadFrame())(t).(*http2.SettingsFrame); ok {
			n, _ := settings.Value(http2.SettingMaxConcurrentStreams)
			return n
		}
	}
}
