package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/server"
)

// A starting server is not ready. It is live during its liveness grace period.
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
		if _, _, body := ask(t, client, at+"/readyz?verbose"); !strings.Contains(body, "[+]etcd ok") {
			t.Errorf("%s: readyz lacks a check of etcd\n%s", name, body)
		}
		for _, path := range []string{"/livez", "/readyz"} {
			if status, _, body := ask(t, client, at+path); status != http.StatusOK {
				t.Errorf("%s: at last %s is %d\n%s", name, path, status, body)
			}
		}
	}
}

// A start that ends before the server is ready does not wait for the shutdown delay.
func TestStoppedStart(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.ShutdownDelayDuration = time.Hour
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := server.New(ctx, server.Config{
			Dir: t.TempDir(), NoSync: true, Operation: o,
			Loops: func(*server.Server) ([]control.Loop, error) { stop(); return nil, nil },
		})
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the start ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the start still waits")
	}
}

// stranger returns an anonymous client that verifies no certificate and opens a connection
// per request.
func stranger(t *testing.T) *http.Client {
	t.Helper()
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// ask retries until the server answers.
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

// With these options, a stopping server waits for watches and answers 429 with Retry-After
// meanwhile.
func TestStopping(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.ShutdownSendRetryAfter = true
	o.Requests.ShutdownWatchTerminationGracePeriod = time.Hour
	s := operate(t, t.TempDir(), o)
	if _, err := s.client(t, "root", "").CoreV1().ConfigMaps("default").Create(t.Context(), named("watched"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	watching := &http.Client{Transport: s.InProcess("root", server.System()).Transport}
	req := must(http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "http://kcp/clusters/root/api/v1/configmaps?watch=1", nil))(t)
	watch := must(watching.Do(req))(t)
	// The watch cannot end while it writes an event that is not read.
	if _, err := io.ReadFull(watch.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	client, url := stranger(t), "https://"+s.at+"/version" // health endpoints answer until the end
	eventually(t, "requests are answered 429", func() bool {
		status, header, _ := ask(t, client, url)
		return status == http.StatusTooManyRequests && header.Get("Retry-After") != ""
	})
	for range 20 { // the server listens until the watch ends
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
