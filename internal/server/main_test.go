package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// patience is the time limit for expected events.
const patience = 2 * time.Minute

// shared is the server of most tests. It has a listener, for tests that use credentials.
var shared = sync.OnceValues(func() (*running, error) {
	dir, err := os.MkdirTemp("", "kcp-server-test-")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &running{dir: dir, url: "https://" + listener.Addr().String()}
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("nobodys-token,nobody,nobody\nalices-token,alice,alice\n"+
		"liars-token,liar,liar,\"system:kcp:initializer:root:web,system:kcp:terminator:root:web,honest\"\n"), 0o600); err != nil {
		return nil, err
	}
	authentication := authn.DefaultOptions()
	authentication.TokenFile.TokenFile = tokens
	r.Server, err = server.New(context.Background(), server.Config{
		Dir: dir, NoSync: true, Listener: listener, ExternalURL: r.url, Kubeconfig: kubeconfig,
		Access: server.Access{Authentication: authentication},
		Rules:  []admit.Rule{{Name: "hold", Validate: r.holdBack}}, RightsEvery: 500 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	admin, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	r.ca = admin.CAData
	return r, nil
})

type running struct {
	*server.Server
	dir, url string
	ca       []byte
	holds    sync.Map // pauses by cluster and object name
	// transports are the transports of visitors, by HTTP/1.1 or not.
	transports sync.Map
}

// A pause blocks the creation of an object after admission.
type pause struct {
	reached chan struct{} // closed by the request
	release chan struct{} // closed by the test
}

// hold blocks the creation of an object in the tenant's cluster.
func (c *tenant) hold(name string) pause {
	h := pause{make(chan struct{}), make(chan struct{})}
	c.server.holds.Store(string(c.name)+"/"+name, h)
	return h
}

// holdBack is the last admission rule. It blocks the requests of hold.
func (r *running) holdBack(ctx context.Context, a admit.Request) error {
	found, ok := r.holds.LoadAndDelete(string(a.Cluster) + "/" + a.GetName())
	if !ok || a.GetOperation() != admission.Create {
		return nil
	}
	h := found.(pause)
	close(h.reached)
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// panics is a log writer that collects reports of panics. No request or object may cause a
// panic, even a recovered one.
type panics struct {
	mu   sync.Mutex
	seen []string
}

var ofPanic = regexp.MustCompile(`panic: |Observed a panic|panic'd`)

func (p *panics) Write(b []byte) (int, error) {
	if ofPanic.Match(b) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen = append(p.seen, string(b))
	}
	return os.Stderr.Write(b)
}

func TestMain(m *testing.M) {
	etcdtest.Main()
	quickReload()
	logged := &panics{}
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(logged))))
	code := m.Run()
	if s, err := shared(); err == nil {
		s.transports.Range(func(_, made any) bool { made.(func() *http.Transport)().CloseIdleConnections(); return true })
		s.Close()
		_ = os.RemoveAll(s.dir)
	}
	if len(logged.seen) > 0 {
		fmt.Printf("FAIL: the server panicked:\n%s", strings.Join(logged.seen, ""))
		code = 1
	}
	os.Exit(code)
}

// size returns the size of a test: check in make check, nightly in make nightly.
func size(check, nightly int) int {
	if os.Getenv("NIGHTLY") != "" {
		return nightly
	}
	return check
}

// leftOut reports whether make check leaves out a request of a large set: it sends one of 20.
func leftOut() bool { return rand.IntN(size(20, 1)) > 0 }

// A tenant is a logical cluster for one test.
type tenant struct {
	t      *testing.T
	server *running
	name   cluster.Name
	kube   kubernetes.Interface // acts as the system
	any    dynamic.Interface
}

// newTenant returns a new logical cluster of the shared server.
func newTenant(t *testing.T) *tenant {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s.tenant(t)
}

// tenant returns a new logical cluster.
func (r *running) tenant(t *testing.T) *tenant {
	t.Helper()
	c := &tenant{t: t, server: r, name: cluster.NewName()}
	if err := r.MakeCluster(t.Context(), c.name); err != nil {
		t.Fatal(err)
	}
	c.kube = must(kubernetes.NewForConfig(c.config()))(t)
	c.any = must(dynamic.NewForConfig(c.config()))(t)
	return c
}

// must returns a function that returns v, or fails the test with err.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// config returns a configuration for the system in the tenant's cluster.
func (c *tenant) config() *rest.Config { return c.server.InProcess(string(c.name), server.System()) }

// withToken returns a configuration for the network with a token.
func (c *tenant) withToken(token string) *rest.Config {
	return &rest.Config{
		Host: c.server.url + "/clusters/" + string(c.name), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.server.ca},
	}
}

// namespace creates a namespace.
func (c *tenant) namespace(name string) {
	c.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.kube.CoreV1().Namespaces().Create(c.t.Context(), ns, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func core(resource string) schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource(resource)
}

// await returns an object as soon as it is as wanted; nil means a missing object. On a
// timeout it logs the last state.
func (c *tenant) await(r schema.GroupVersionResource, namespace, name string, wanted func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	client := c.any.Resource(r).Namespace(namespace)
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	var seen []*unstructured.Unstructured
	is := func(o *unstructured.Unstructured) bool { seen = append(seen, o); return wanted(o) }
	for ctx.Err() == nil {
		list, err := client.List(ctx, only)
		if apierrors.IsNotFound(err) && is(nil) {
			return nil // the logical cluster is deleted, too
		}
		if err != nil {
			c.t.Fatal(err)
		}
		var o *unstructured.Unstructured
		if len(list.Items) > 0 {
			o = &list.Items[0]
		}
		if is(o) {
			return o
		}
		from := only
		from.ResourceVersion = list.GetResourceVersion()
		w, err := client.Watch(ctx, from)
		if apierrors.IsNotFound(err) && is(nil) {
			return nil // the logical cluster is deleted, too
		}
		if err != nil {
			c.t.Fatal(err)
		}
		if o, ok := untilWanted(w, is); ok {
			return o
		}
	}
	text := make([]string, len(seen))
	for i, o := range seen {
		text[i] = "nothing\n"
		if o != nil {
			y, _ := yaml.Marshal(o) // empty if it cannot be encoded
			text[i] = string(y)
		}
	}
	c.t.Fatalf("%s %s/%s did not become as wanted. It was:\n%s", r.Resource, namespace, name, strings.Join(text, "---\n"))
	return nil
}

func untilWanted(w watch.Interface, is func(*unstructured.Unstructured) bool) (*unstructured.Unstructured, bool) {
	defer w.Stop()
	for e := range w.ResultChan() {
		o, ok := e.Object.(*unstructured.Unstructured)
		switch {
		case !ok || e.Type == watch.Error:
			return nil, false
		case e.Type == watch.Deleted:
			o = nil
		}
		if is(o) {
			return o, true
		}
	}
	return nil, false
}

// there and gone are conditions for await.
func there(o *unstructured.Unstructured) bool { return o != nil }
func gone(o *unstructured.Unstructured) bool  { return o == nil }

// text returns a field of an object as text.
func text(o *unstructured.Unstructured, path ...string) string {
	if o == nil {
		return ""
	}
	v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	return fmt.Sprint(v)
}
