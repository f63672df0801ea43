package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/physical"
)

// reading returns a client, as the engine has one, of a physical cluster that answers with bodies.
func reading(t *testing.T, weights *answers.Weights, body func(*http.Request) io.Reader) dynamic.ResourceInterface {
	t.Helper()
	peer := &Peer{Peer: &physical.Peer{Config: &rest.Config{Host: "https://x", QPS: -1}}, through: answer(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body(r)), Request: r}, nil
	})}
	client, err := dynamic.NewForConfig(peer.Work(weights, "tenant"))
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"})
}

// list returns a list with an item again and again, about as large as bytes.
func list(item string, bytes int) string {
	return `{"apiVersion":"apps/v1","kind":"DeploymentList","metadata":{},"items":[` + strings.Repeat(item+",", bytes/len(item)) + item + `]}`
}

// object returns an object with a content.
func object(content string) string {
	return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":` + content + `}`
}

// All lists from the physical clusters of a tenant share one limit of memory, until their callers have used them.
func TestListsAreBoundedInMemory(t *testing.T) {
	for name, item := range map[string]string{
		"empty objects": `{}`,
		"small objects": object(`{"a":{"b":""}}`),
		"numbers":       object(`[` + strings.Repeat(`1,`, 1000) + `1]`),
		"small maps":    object(`[` + strings.Repeat(`{"":0},`, 1000) + `{"":0}]`),
		"nested maps":   object(strings.Repeat(`{"":`, 50) + `0` + strings.Repeat(`}`, 50)),
		"members":       object(`{` + strings.Repeat(`"":0,`, 1000) + `"":0}`),
		"texts":         object(`"` + strings.Repeat("x", 1<<10) + `"`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const clusters = 4
				weights := Weights()
				through := reading(t, weights, func(r *http.Request) io.Reader {
					limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
					return &lazy{text: func() string { return list(item, (mostBytes-1<<10)*limit/500) }}
				})
				before := live()
				ctx, cancel := context.WithCancel(t.Context())
				pages := make(chan *unstructured.UnstructuredList, clusters)
				var all sync.WaitGroup
				for range clusters {
					all.Go(func() {
						ctx, done := answers.Keep(ctx)
						defer done()
						for limit := int64(500); limit > 0; limit /= 2 { // as the engine does
							page, err := through.List(ctx, metav1.ListOptions{Limit: limit})
							if err == nil {
								pages <- page
								<-ctx.Done() // it is used
								return
							}
							if !errors.Is(err, answers.ErrTooLarge) {
								return // there is no room
							}
						}
					})
				}
				synctest.Wait() // the others wait for room
				took, held := live()-before, weights.Held()
				if took > mostOfTenant+1<<20 || took > held+1<<20 || held > mostOfTenant || len(pages) == 0 {
					t.Errorf("%d lists take %d MiB, and weigh %d MiB", len(pages), took>>20, held>>20)
				}
				cancel()
				all.Wait()
				if held := weights.Held(); held != 0 {
					t.Errorf("%d bytes are held after the last use", held)
				}
			})
		})
	}
}

// lazy is a text that exists once it is read.
type lazy struct {
	text func() string
	from *strings.Reader
}

func (l *lazy) Read(p []byte) (int, error) {
	if l.from == nil {
		l.from = strings.NewReader(l.text())
	}
	return l.from.Read(p)
}

// live returns how many bytes are in use.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A page of usual Deployments has room, and one answer after the other is forgotten.
func TestUsualPagesHaveRoom(t *testing.T) {
	one := object(`{"replicas":3,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"example.com/web:1","ports":[{"containerPort":8080}],"env":[{"name":"A","value":"1"}],"resources":{"limits":{"memory":"256Mi"}}}],"serviceAccountName":"web","tolerations":[{"key":"a","operator":"Exists"}]}}},"status":{"replicas":3,"readyReplicas":3,"conditions":[{"type":"Available","status":"True","message":"Deployment has minimum availability."}]}`)
	weights, body := Weights(), list(one, 499*len(one))
	through := reading(t, weights, func(*http.Request) io.Reader { return strings.NewReader(body) })
	ctx, done := answers.Keep(t.Context())
	for range 20 {
		page, err := through.List(ctx, metav1.ListOptions{Limit: 500})
		if err != nil || len(page.Items) != 500 {
			t.Fatal(err)
		}
		if held := weights.Held(); held == 0 || held > mostOfTenant/4 {
			t.Errorf("the page of %d KiB weighs %d KiB while it is used", len(body)>>10, held>>10)
		}
	}
	done()
	if held := weights.Held(); held != 0 {
		t.Errorf("%d bytes are held after the last use", held)
	}
	if _, err := through.List(t.Context(), metav1.ListOptions{Limit: 500}); err != nil || weights.Held() != 0 {
		t.Errorf("without a keeper, %d bytes are held: %v", weights.Held(), err)
	}
}

// events are a body that repeats an event.
type events struct {
	event string
	at    int
}

func (e *events) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		of := copy(p[n:], e.event[e.at:])
		n, e.at = n+of, (e.at+of)%len(e.event)
	}
	return n, nil
}

// The events of watches that are being read for the physical clusters of a tenant are bounded together, with the other
// responses. A watch may have any number of them.
func TestEventsAreBounded(t *testing.T) {
	const size = 6 << 20
	event := `{"type":"ADDED","object":` + object(`"`+strings.Repeat("x", size)+`"`) + `}`
	whole := len(event)
	for name, c := range map[string]struct {
		event string
		read  int64 // of each watch
		many  int
		want  error
	}{
		"many events":                 {event + "\n", 7 * size, 1, nil},
		"an event that never ends":    {event[:whole-2], 7 * size, 1, answers.ErrTooLarge},
		"an event of each cluster":    {event, size, mostOfTenant / (4 * size), nil},
		"an event of further ones":    {event, size, mostOfTenant/(4*size) + 1, answers.ErrBusy},
		"small events of many, begun": {event, lightEvent / 4, 1000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			weights := Weights()
			through := answers.Transport{Through: answer(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(&events{event: c.event})}, nil
			}), Weights: weights, Of: answers.Owners{Compute: "tenant"}, Within: readWithin}
			var open []io.Closer
			var err error
			for range c.many {
				req, failed := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api?watch=true", nil)
				if failed != nil {
					t.Fatal(failed)
				}
				resp, failed := through.RoundTrip(req)
				if failed != nil {
					t.Fatal(failed)
				}
				open = append(open, resp.Body)
				if _, failed := io.CopyN(io.Discard, resp.Body, c.read); failed != nil {
					err = failed
				}
			}
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("got %v", err)
			}
			for _, body := range append(open, open[0]) { // one of them twice
				if err := body.Close(); err != nil {
					t.Error(err)
				}
			}
			if n := weights.Held(); n != 0 {
				t.Errorf("%d bytes are held after the end", n)
			}
		})
	}
}

// An answer that does not end holds no room for ever.
func TestAnswersEndInTime(t *testing.T) {
	weights := Weights()
	through := answers.Transport{Through: answer(func(r *http.Request) (*http.Response, error) {
		from, to := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(r.Context().Err()) })
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: from}, nil
	}), Weights: weights, Of: answers.Owners{Compute: "tenant"}}
	ctx, done := answers.Keep(t.Context())
	defer done()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/api", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := through.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&bytes.Buffer{}, resp.Body); err == nil || !strings.Contains(fmt.Sprint(err), "in time") {
		t.Errorf("got %v", err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if n := weights.Held(); n != 0 {
		t.Errorf("%d bytes are held after the end", n)
	}
}
