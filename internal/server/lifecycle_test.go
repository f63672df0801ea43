package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/server"
)

// While a server starts it is not ready. It is alive for as long as it may take.
func TestStarting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grace time.Duration
		alive int
	}{
		"without grace": {0, http.StatusInternalServerError},
		"with grace":    {time.Hour, http.StatusOK},
	} {
		o := server.DefaultOperation()
		o.Requests.LivezGracePeriod = c.grace
		listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
		at := "https://" + listener.Addr().String()
		reached, release := make(chan struct{}), make(chan struct{})
		started := make(chan error, 1)
		go func() {
			s, err := server.New(t.Context(), server.Config{
				Dir: t.TempDir(), NoSync: true, Listener: listener, ExternalURL: at, Operation: o,
				Loops: func(*server.Server) ([]control.Loop, error) {
					close(reached)
					<-release
					return nil, nil
				},
			})
			if err == nil {
				t.Cleanup(s.Close)
			}
			started <- err
		}()
		<-reached
		client := stranger(t)
		for path, want := range map[string]int{"/livez?verbose": c.alive, "/readyz?verbose": http.StatusInternalServerError} {
			status, _, body := ask(t, client, at+path)
			if status != want || !strings.Contains(body, "poststarthook/kcp-start-controllers") {
				t.Errorf("%s: %s is %d\n%s", name, path, status, body)
			}
		}
		close(release)
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/livez", "/readyz"} {
			if status, _, body := ask(t, client, at+path); status != http.StatusOK {
				t.Errorf("%s: at last %s is %d\n%s", name, path, status, body)
			}
		}
	}
}

// stranger is a client that trusts everybody and is nobody. It opens a connection for
// each request.
func stranger(t *testing.T) *http.Client {
	t.Helper()
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// ask waits until the server answers at all.
func ask(t *testing.T, client *http.Client, url string) (status int, header http.Header, body string) {
	t.Helper()
	eventually(t, "the server answers", func() bool {
		resp, err := client.Do(must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t))
		if err != nil {
			return false
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		status, header, body = resp.StatusCode, resp.Header, string(text)
		return err == nil
	})
	return status, header, body
}

// A server that stops waits for watches, and while it does so it tells others to come
// back, if both was chosen.
func TestStopping(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.ShutdownSendRetryAfter = true
	o.Requests.ShutdownWatchTerminationGracePeriod = time.Hour
	s := operate(t, t.TempDir(), o)
	watching := &http.Client{Transport: s.InProcess("root", server.System()).Transport}
	req := must(http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "http://kcp/clusters/root/api/v1/configmaps?watch=1", nil))(t)
	watch := must(watching.Do(req))(t) // nobody reads it, so it cannot end
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	client, url := stranger(t), "https://"+s.at+"/version" // health is told to the end
	eventually(t, "requests are answered 429", func() bool {
		status, header, _ := ask(t, client, url)
		return status == http.StatusTooManyRequests && header.Get("Retry-After") != ""
	})
	for range 20 { // it listens for as long as the watch goes on
		resp, err := client.Do(must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t))
		if err != nil {
			t.Fatalf("the server has stopped before the watch ended: %v", err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("while it waits for the watch: %s", resp.Status)
		}
	}
	if _, err := io.Copy(io.Discard, watch.Body); err != nil {
		t.Errorf("the watch was cut: %v", err)
	}
	_ = watch.Body.Close()
	<-closed
	if resp, err := client.Do(must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)); err == nil {
		_ = resp.Body.Close()
		t.Errorf("a server that has stopped answers %s", resp.Status)
	}
}
