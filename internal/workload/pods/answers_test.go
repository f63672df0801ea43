package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	object "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/pods/shown"
	"github.com/unforked/kcp/internal/workload/pods/stream"
)

// answering returns an instance whose targets have the namespaces of parts, and answer all else with f.
func answering(f func(*http.Request) *http.Response, parts ...*part) *Pods {
	return New(func(context.Context, kcp.ClusterName, *workload.SyncTarget) (*Link, error) {
		return &Link{Server: &url.URL{Scheme: "https", Host: "secret.example.com"}, Through: answer(func(r *http.Request) (*http.Response, error) {
			for _, of := range parts {
				if strings.HasSuffix(r.URL.Path, of.Physical) {
					return respond(http.StatusOK, "application/json", strings.NewReader(namespaceOf(of))), nil
				}
			}
			if resp := f(r); resp != nil {
				return resp, nil
			}
			<-r.Context().Done() // it never answers
			return nil, r.Context().Err()
		})}, nil
	})
}

func respond(code int, kind string, body io.Reader) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(body)}
}

// streamsOf returns the storages of streams, all of which are of one pod.
func streamsOf(ctx context.Context, p *Pods, c *call) map[string]rest.Storage {
	s := &store{Pods: p}
	return stream.Streams{Open: func(context.Context, string, func(context.Context) error) (*stream.Stream, error) {
		return s.streamOf(ctx, c, "web", func() {}), nil
	}}.Storage()
}

func openLog(ctx context.Context, all map[string]rest.Storage, follow bool) error {
	log, err := all["pods/log"].(rest.GetterWithOptions).Get(ctx, "web", &core.PodLogOptions{Follow: follow})
	if err == nil {
		_, _, _, err = log.(rest.ResourceStreamer).InputStream(ctx, "", "")
	}
	return err
}

func openCommand(ctx context.Context, all map[string]rest.Storage) error {
	ctx = request.WithRequestInfo(request.WithUser(ctx, &user.DefaultInfo{}), &request.RequestInfo{Verb: "create"})
	got := &responded{}
	handler, err := all["pods/exec"].(rest.Connecter).Connect(ctx, "web", &core.PodExecOptions{}, got)
	if err != nil {
		return err
	}
	req := httptest.NewRequest(http.MethodPost, "/", nil)
	req.Header.Set("Upgrade", "SPDY/3.1")
	handler.ServeHTTP(httptest.NewRecorder(), req.WithContext(ctx))
	return got.err
}

// responded has the error of a response.
type responded struct{ err error }

// Object implements [rest.Responder].
func (*responded) Object(int, object.Object) {}

// Error implements [rest.Responder].
func (r *responded) Error(err error) { r.err = err }

// An error that a target begins and never ends holds no stream for ever either.
func TestRefusalsThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := onePart()
		p := answering(func(r *http.Request) *http.Response {
			from, to := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(r.Context().Err()) })
			return respond(http.StatusBadRequest, "text/plain", from)
		}, of)
		c, err := p.begin(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		defer c.end()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		all := streamsOf(ctx, p, c)
		for what, ask := range map[string]func() error{
			"a log":          func() error { return openLog(ctx, all, false) },
			"a followed log": func() error { return openLog(ctx, all, true) },
			"a command":      func() error { return openCommand(ctx, all) },
		} {
			refused := make(chan error, 1)
			go func() { refused <- ask() }()
			select {
			case err := <-refused:
				if err == nil {
					t.Errorf("%s is open", what)
				}
			case <-time.After(time.Hour):
				t.Fatalf("%s waits for ever", what)
			}
		}
	})
}

// The names of many pods are short, and the pods are not: what an answer takes in memory counts, not its bytes alone.
func TestLightAnswersWithManyItems(t *testing.T) {
	const many = 1 << 18
	pods := `{"apiVersion":"v1","kind":"PodList","metadata":{},"items":[` + strings.Repeat(`{},`, many) + `{}]}`
	wire := "k8s\x00\x0a\x0d\x0a\x02v1\x12\x07PodList\x12" + string(uvarint(2*many)) + strings.Repeat("\x12\x00", many)
	for name, c := range map[string]struct {
		code             int
		kind, path, body string
	}{
		"pods":                 {200, "application/json", "/pods", pods},
		"containers":           {200, "application/json", "/pods/web", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[` + strings.Repeat(`null,`, 1<<20) + `null]}}`},
		"a watch":              {200, "application/json", "/pods", `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","spec":{"containers":[` + strings.Repeat(`{},`, 1<<20) + `{}]}}}` + "\n"},
		"an error for a watch": {500, "application/json", "/pods", strings.Repeat("{} ", 30<<20)},
		"protobuf":             {200, "application/vnd.kubernetes.protobuf", "/pods", wire},
		"an error":             {500, "application/json", "/pods", pods},
		"an error in protobuf": {500, "application/vnd.kubernetes.protobuf", "/pods", wire},
		"an error in YAML":     {500, "application/yaml", "/pods", "apiVersion: v1\nkind: PodList\nitems:\n" + strings.Repeat("- {}\n", many)},
	} {
		t.Run(name, func(t *testing.T) {
			of := onePart()
			p := answering(func(*http.Request) *http.Response { return respond(c.code, c.kind, packets{strings.NewReader(c.body)}) }, of)
			call, err := p.begin(t.Context(), of)
			if err != nil {
				t.Fatal(err)
			}
			defer call.end()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			switch name {
			case "containers":
				_, err = call.get(t.Context(), "web")
			case "an error for a watch":
				_, err = call.pods.Watch(t.Context(), metav1.ListOptions{})
			case "a watch":
				var w watch.Interface
				if w, err = call.pods.Watch(t.Context(), metav1.ListOptions{}); err == nil {
					for e := range w.ResultChan() {
						if e.Type == watch.Added {
							t.Error("the event arrives")
						}
					}
					err = errors.New("the watch has ended")
				}
			default:
				_, err = call.list(t.Context(), metav1.ListOptions{}, func([]corev1.Pod) (int64, error) { return 0, nil })
			}
			runtime.ReadMemStats(&after)
			if err == nil || strings.Contains(err.Error(), "5000") {
				t.Errorf("got %v", err)
			}
			if is := strings.Contains(err.Error(), "JSON"); is != (name == "protobuf") {
				t.Errorf("got %v", err)
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 200 {
				t.Errorf("the answer has %d MiB, and took %d MiB of memory", len(c.body)>>20, took)
			}
			if p.limits.weights.Held() > heldByTenant {
				t.Errorf("%d bytes are held", p.limits.weights.Held())
			}
		})
	}
}

// packets reads what comes over a network.
type packets struct{ io.Reader }

func (r packets) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), 32<<10)]) }

func uvarint(n int) (out []byte) {
	for ; n >= 0x80; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(out, byte(n))
}

// The weight of an event stays until the client of the watch has it, also if the next event is read.
func TestEventsWeighUntilDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := onePart()
		from, to := io.Pipe()
		p := answering(func(*http.Request) *http.Response { return respond(http.StatusOK, "application/json", from) }, of)
		m := &merged{Pods: p, out: make(chan watch.Event), at: map[[2]string]uint64{}, stop: func() {}, subject: subject{
			watch: func(ctx context.Context, c *call, o metav1.ListOptions) (watch.Interface, error) {
				return c.pods.Watch(ctx, o)
			},
			shown: func(_ *part, o object.Object, _ string) object.Object { return o },
		}}
		ctx, cancel := context.WithCancel(t.Context())
		m.work.Go(func() { m.session(ctx, of, [2]string{of.Namespace, of.Key}) })
		held := func() int64 {
			synctest.Wait()
			return p.limits.weights.Held()
		}
		const large, lightChange = 1 << 20, 128 << 10
		for _, size := range []int{large, 10} {
			_, err := fmt.Fprintf(to, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","annotations":{"a":"%s"}}}}`+"\n", strings.Repeat("x", size))
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := held(); n < large-lightChange {
			t.Errorf("%d bytes are held while the client waits for the event", n)
		}
		<-m.out
		if n := held(); n >= large-lightChange {
			t.Errorf("%d bytes are held after the event was delivered", n)
		}
		<-m.out
		cancel()
		_ = to.Close()
		m.work.Wait()
		if n := held(); n != 0 {
			t.Errorf("%d bytes are held after the watch", n)
		}
	})
}

// The first events of a watch weigh until the client has all of them, or leaves.
func TestTheBeginningOfAWatchWeighsUntilDelivered(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ended := 0
			m := &merged{Pods: New(nil), out: make(chan watch.Event), subject: subject{
				list: func(context.Context, *internalversion.ListOptions) (object.Object, func(), error) {
					return &core.PodList{Items: make([]core.Pod, 2)}, func() { ended++ }, nil
				},
			}}
			ctx, cancel := context.WithCancel(t.Context())
			m.stop = cancel
			if err := m.initial(ctx, &internalversion.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			m.work.Go(func() { m.run(ctx, &workspace{}, nil) })
			<-m.out
			if synctest.Wait(); ended != 0 {
				t.Error("the weight is given back while the client waits for a pod")
			}
			if !leaves {
				<-m.out
				if synctest.Wait(); ended == 0 {
					t.Error("the weight stays after the client has all pods")
				}
			}
			cancel()
			if m.work.Wait(); ended == 0 {
				t.Error("the weight stays after the client has left")
			}
		})
	}
}

// A target that accepts a request for a log or a command and never answers gets no slot for a stream for ever. A followed
// log begins with its first line.
func TestLogsThatNeverBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := onePart()
		p := answering(func(*http.Request) *http.Response { return nil }, of)
		c, err := p.begin(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		defer c.end()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		opened := make(chan error, 1)
		all := streamsOf(ctx, p, c)
		open := func(follow bool) { opened <- openLog(ctx, all, follow) }
		go open(false)
		select {
		case err := <-opened:
			if err == nil || !strings.Contains(err.Error(), "does not answer") {
				t.Errorf("got %v", err)
			}
		case <-time.After(time.Hour):
			t.Fatal("it waits for ever")
		}
		go open(true)
		select {
		case err := <-opened:
			t.Errorf("a followed log ends: %v", err)
		case <-time.After(time.Hour):
		}
		select {
		case err := <-opened:
			if err == nil || !strings.Contains(err.Error(), "no line for 4h") {
				t.Errorf("got %v", err)
			}
		case <-time.After(24 * time.Hour):
			t.Fatal("a followed log waits for ever")
		}
		go func() { opened <- openCommand(ctx, all) }()
		select {
		case err := <-opened:
			if err == nil || !strings.Contains(err.Error(), "does not answer") {
				t.Errorf("got %v", err)
			}
		case <-time.After(time.Hour):
			t.Fatal("a command waits for ever")
		}
	})
}

// A physical cluster that refuses the server itself is no matter of the user's rights. The text says who can allow it.
func TestRefusedServer(t *testing.T) {
	c := &call{part: &part{Origin: shown.Origin{Location: "east"}, workspace: &workspace{}, target: &workload.SyncTarget{}}}
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		err := c.refused(t.Context(), respond(code, "application/json", strings.NewReader(`{"message":"secret"}`)))
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), `Location "east" does not let this server do that; ask an administrator of its compute workspace`) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: %v", code, err)
		}
	}
}
