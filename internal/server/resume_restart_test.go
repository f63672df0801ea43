package server_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// A mirror holds the state that a client of one resource has received, and signals changes.
type mirror struct {
	cache.Store
	changed chan struct{}
}

func newMirror() *mirror {
	return &mirror{cache.NewStore(cache.MetaNamespaceKeyFunc), make(chan struct{}, 1)}
}

func (m *mirror) tell(err error) error {
	select {
	case m.changed <- struct{}{}:
	default:
	}
	return err
}

func (m *mirror) Add(o any) error    { return m.tell(m.Store.Add(o)) }
func (m *mirror) Update(o any) error { return m.tell(m.Store.Update(o)) }
func (m *mirror) Delete(o any) error { return m.tell(m.Store.Delete(o)) }
func (m *mirror) Replace(all []any, version string) error {
	return m.tell(m.Store.Replace(all, version))
}

// await waits until the mirror has an object, or no longer has it.
func (m *mirror) await(t *testing.T, name string, there bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if _, has, err := m.GetByKey("default/" + name); err == nil && has == there {
			return
		}
		select {
		case <-m.changed:
		case <-ctx.Done():
			t.Fatalf("of %s: there is %v", name, m.ListKeys())
		}
	}
}

// asks counts requests for full lists.
type asks struct {
	http.RoundTripper
	lists *atomic.Int64
}

func (a asks) RoundTrip(req *http.Request) (*http.Response, error) {
	if q := req.URL.Query(); req.Method == http.MethodGet && (q.Get("watch") == "" || q.Get("sendInitialEvents") == "true") {
		a.lists.Add(1)
	}
	return a.RoundTripper.RoundTrip(req)
}

// A client that watches a quiet resource resumes after a restart without a list, despite
// other writes and compaction.
func TestWatchesOfAStoppedServer(t *testing.T) {
	t.Parallel()
	dir, name, other := t.TempDir(), cluster.NewName(), cluster.NewName()
	kubeconfig, tokens := filepath.Join(dir, "admin.kubeconfig"), filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("masters-token,master,master,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	authentication := authn.DefaultOptions()
	authentication.TokenFile.TokenFile = tokens
	var address atomic.Pointer[string] // nil while no server runs
	begin := func() (*server.Server, string) {
		t.Helper()
		l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
		s := must(server.New(t.Context(), server.Config{
			Dir: dir, NoSync: true, Listener: l, ExternalURL: "https://" + l.Addr().String(), Kubeconfig: kubeconfig,
			Access: server.Access{Authentication: authentication},
			Kinds:  []*apiextensionsv1.CustomResourceDefinition{widgetDefinition()},
		}))(t)
		return s, l.Addr().String()
	}
	s, listens := begin()
	stop := sync.OnceFunc(func() { s.Close() })
	defer func() { stop() }()
	for _, c := range []cluster.Name{name, other} {
		if err := s.MakeCluster(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	kinds := map[schema.GroupVersionResource]string{core("configmaps"): "ConfigMap", core("events"): "Event", widgets: "Widget"}
	each := func(c cluster.Name, object string, verb func(dynamic.ResourceInterface, *unstructured.Unstructured) error) {
		t.Helper()
		in := must(dynamic.NewForConfig(s.InProcess(string(c), server.System())))(t)
		for r, kind := range kinds {
			o := &unstructured.Unstructured{Object: map[string]any{}}
			if kind == "Event" {
				o.Object["involvedObject"] = map[string]any{"namespace": "default"}
			}
			o.SetAPIVersion(r.GroupVersion().String())
			o.SetKind(kind)
			o.SetNamespace("default")
			o.SetName(object)
			if err := verb(in.Resource(r).Namespace("default"), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	create := func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := r.Create(t.Context(), o, metav1.CreateOptions{})
		return err
	}
	remove := func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		return r.Delete(t.Context(), o.GetName(), metav1.DeleteOptions{})
	}

	admin := must(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	address.Store(new(listens))
	config := &rest.Config{
		Host: "https://" + listens + "/clusters/" + string(name), BearerToken: "masters-token", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if to := address.Load(); to != nil {
				return new(net.Dialer).DialContext(ctx, network, *to)
			}
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		},
	}
	var lists atomic.Int64
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return asks{rt, &lists} })
	mirrors, end := mirrored(t, config, kinds)
	defer end()
	all := func(name string, there bool) {
		t.Helper()
		for _, m := range mirrors {
			m.await(t, name, there)
		}
	}
	each(name, "first", create)
	all("first", true)
	for i := range 100 {
		each(other, fmt.Sprint("busy", i), create)
	}
	list := func(r dynamic.ResourceInterface, _ *unstructured.Unstructured) error { // so that no cache is behind
		_, err := r.List(t.Context(), metav1.ListOptions{})
		return err
	}
	each(other, "", list)
	newest := must(s.Store().RawClient().Get(t.Context(), "x"))(t)
	if err := s.Store().Feed().WaitFor(t.Context(), newest.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store().RawClient().Compact(t.Context(), newest.Header.Revision); err != nil {
		t.Fatal(err)
	}
	asked := lists.Load()
	address.Store(nil)
	stop()

	s, listens = begin()
	stop = sync.OnceFunc(func() { s.Close() })
	each(name, "first", remove)
	each(name, "second", create)
	address.Store(new(listens))
	all("second", true)
	all("first", false)
	if now := lists.Load(); now != asked {
		t.Errorf("clients asked %d times for everything there is after the restart", now-asked)
	}
}

// mirrored watches resources with reflectors until the returned function is called.
func mirrored(t *testing.T, config *rest.Config, kinds map[schema.GroupVersionResource]string) ([]*mirror, func()) {
	t.Helper()
	client := must(dynamic.NewForConfig(config))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all []*mirror
	var running sync.WaitGroup
	for r := range kinds {
		m := newMirror()
		all = append(all, m)
		in := client.Resource(r).Namespace(corev1.NamespaceAll)
		from := &cache.ListWatch{
			ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return in.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return in.Watch(ctx, o) },
		}
		reflector := cache.NewReflectorWithOptions(from, &unstructured.Unstructured{}, m, cache.ReflectorOptions{Name: r.Resource})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
	return all, func() { cancel(); running.Wait() }
}
