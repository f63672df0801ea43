package logs

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// A log that is not read does not block writers.
func TestSinkNeverBlocks(t *testing.T) {
	r, w := io.Pipe()
	s := NewSink(w, Form{All: true})
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 10_000 {
		if n, err := s.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	var got bytes.Buffer
	read := make(chan error)
	go func() {
		_, err := io.Copy(&got, r)
		read <- err
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Write(line); n != len(line) || err != nil {
		t.Error("after the end:", n, err)
	}
	_ = w.Close()
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.String(), "Dropped log lines") || got.Len() < maxWaiting/2 || got.Len() > 3*maxWaiting {
		t.Errorf("%d bytes, which end with %q", got.Len(), got.String()[max(0, got.Len()-200):])
	}
}

func TestSinkBoundsItsRate(t *testing.T) {
	text, inJSON := regexp.MustCompile(`lines=(\d+)\n`), regexp.MustCompile(`"lines":(\d+)}\n`)
	for form, note := range map[Form]*regexp.Regexp{{}: text, {JSON: true}: inJSON} {
		var got bytes.Buffer
		s := NewSink(&got, form)
		s.limit.SetLimit(0) // no new lines while the test runs
		for range lineBurst + 1000 {
			_, _ = s.Write([]byte("I said\n"))
		}
		if err := errors.Join(s.Sync(), s.Close(), s.Sync()); err != nil {
			t.Fatal(err)
		}
		dropped := 0 // by all notes: there is one for each batch of lines
		for _, m := range note.FindAllStringSubmatch(got.String(), -1) {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			dropped += n
		}
		if n := strings.Count(got.String(), "said"); n != lineBurst || dropped != 1000 {
			t.Errorf("%d lines and notes of %d dropped ones, want %d and 1000; at the end %q", n, dropped, lineBurst, got.String()[max(0, got.Len()-200):])
		}
	}
}

// Errors of disconnected clients are not logged; other errors are, up to a limit.
func TestRequestsCannotFloodTheLog(t *testing.T) {
	var lines []string
	inner := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	h := Within(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		for _, msg := range []string{"Post-timeout activity", "Timeout or abort while handling"} {
			utilruntime.HandleErrorWithContext(req.Context(), nil, msg, "path", req.URL.Path)
		}
		klog.FromContext(req.Context()).Error(net.ErrClosed, "Error on socket receive")
		klog.FromContext(req.Context()).WithValues("a", "b").WithName("c").Error(errors.New("broken"), "Cannot do it")
	}), nil)
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req = req.WithContext(klog.NewContext(req.Context(), logr.New(inner.GetSink())))
	for range 2 * requestBurst {
		h.ServeHTTP(httptest.NewRecorder(), req)
	}
	if len(lines) < requestBurst || len(lines) >= 2*requestBurst {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines {
		if !strings.Contains(line, "Cannot do it") && !strings.Contains(line, "Dropped log lines") {
			t.Fatalf("logged: %s", line)
		}
	}
}

// A panic is logged once, even if other lines of requests exceed their limit. Filters outside see
// an aborted request. Panics have a limit, too.
func TestPanicsReachTheLog(t *testing.T) {
	panics := 0
	log := funcr.New(func(_, args string) {
		if !strings.Contains(args, "Observed a panic") {
			return
		}
		panics++
		if !strings.Contains(args, "it broke") || !strings.Contains(args, "logs_test.go:") {
			t.Errorf("logged: %s", args)
		}
	}, funcr.Options{})
	h := Within(WithPanics(WithPanics(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		for range 2 * requestBurst {
			klog.FromContext(req.Context()).Error(nil, "Cannot do it")
		}
		if req.URL.Path == "/" {
			panic("it broke")
		}
		panic(http.ErrAbortHandler)
	}))), nil)
	send := func(path string) {
		defer func() {
			r := recover()
			if err, _ := r.(error); !errors.Is(err, http.ErrAbortHandler) {
				t.Errorf("the server sees the panic %v", r)
			}
		}()
		req := httptest.NewRequest(http.MethodGet, path, nil)
		h.ServeHTTP(httptest.NewRecorder(), req.WithContext(klog.NewContext(req.Context(), log)))
	}
	if send("/aborted"); panics != 0 {
		t.Error("an aborted request is logged as a panic")
	}
	if send("/"); panics != 1 {
		t.Errorf("one panic is logged %d times", panics)
	}
	for range 2 * panicBurst {
		send("/")
	}
	if panics < panicBurst || panics >= 2*panicBurst {
		t.Errorf("%d of %d panics are logged", panics, 2*panicBurst+1)
	}
}

// Lines about a logical cluster have its path, once, also with values of the logger and in requests.
func TestLinesHavePaths(t *testing.T) {
	var lines []string
	inner := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	paths := func(c string) string { return map[string]string{"abc": "root:team"}[c] }
	log := WithPaths(WithPaths(logr.New(inner.GetSink()), paths), paths)
	log.Info("one", "cluster", "abc")
	log.WithValues("cluster", "abc").WithName("x").Error(errors.New("broken"), "two")
	h := Within(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		klog.FromContext(req.Context()).Info("three", "cluster", "abc")
		klog.FromContext(req.Context()).Info("none", "cluster", "other")
		klog.FromContext(req.Context()).Info("none")
	}), paths)
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	h.ServeHTTP(httptest.NewRecorder(), req.WithContext(klog.NewContext(req.Context(), log)))
	if len(lines) != 5 {
		t.Fatalf("logged: %q", lines)
	}
	for i, line := range lines {
		want := 1
		if i > 2 {
			want = 0
		}
		if strings.Count(line, `"path"="root:team"`) != want {
			t.Errorf("want %d paths in %s", want, line)
		}
	}
}
