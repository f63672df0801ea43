package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/server"
)

// Options for headers, watches, profiles and event lifetimes take effect.
func TestLimits(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.CorsAllowedOriginList = []string{`^https://console\.example\.com$`}
	o.Requests.HSTSDirectives = []string{"max-age=3600", "includeSubDomains"}
	o.Requests.MinRequestTimeout = 1
	o.Profiling.EnableProfiling = false
	o.EventTTL = 77 * time.Second
	o.ProfilerAddress = freeAddress(t)
	s := operate(t, t.TempDir(), o)

	resp := s.do(t, http.MethodGet, "/clusters/root/version", http.Header{"Origin": {"https://console.example.com"}})
	if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "https://console.example.com" {
		t.Errorf("CORS header %q", got)
	}
	if got := resp.Header.Get("Strict-Transport-Security"); got != "max-age=3600; includeSubDomains" {
		t.Errorf("HSTS header %q", got)
	}
	resp = s.do(t, http.MethodGet, "/clusters/root/version", http.Header{"Origin": {"https://console.example.com.evil.example"}})
	if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("CORS header for another origin %q", got)
	}
	asShard := http.Header{"Authorization": {"Bearer " + shardAdmin(t, s)}}
	if resp := s.do(t, http.MethodGet, "/debug/pprof/", asShard); resp.StatusCode != http.StatusNotFound {
		t.Errorf("profiles that are switched off: %s", resp.Status)
	}
	req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+o.ProfilerAddress+"/debug/pprof/cmdline", nil))(t)
	profiler := &http.Transport{}
	t.Cleanup(profiler.CloseIdleConnections)
	if resp, err := profiler.RoundTrip(req); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("--profiler-address: %v, %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}

	root := s.client(t, "root", "")
	for kind, watch := range map[string]string{"config maps": "/api/v1/configmaps", "workspaces": "/apis/tenancy.kcp.io/v1alpha1/workspaces"} {
		stream := must(root.RESTClient().Get().AbsPath(watch).Param("watch", "1").Stream(t.Context()))(t)
		if _, err := io.Copy(io.Discard, stream); err != nil {
			t.Errorf("a watch of %s did not end by itself: %v", kind, err)
		}
		_ = stream.Close()
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}
	if _, err := root.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stored := must(s.Store().RawClient().Get(t.Context(), "/registry/n/core/events/-/root/default/e"))(t)
	if len(stored.Kvs) != 1 {
		t.Fatal("the event is not stored")
	}
	lease := must(s.Store().RawClient().TimeToLive(t.Context(), leaseOf(stored.Kvs[0].Lease)))(t)
	if lease.GrantedTTL < 77 || lease.GrantedTTL > 77+120 { // leases are shared for up to two minutes
		t.Errorf("events are kept for %d s", lease.GrantedTTL)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// holding starts a server in which writes of config maps named held* wait until they are
// released or time out.
func holding(t *testing.T, o server.Operation, rules ...admit.Rule) (s *server.Server, reached chan string, release chan struct{}) {
	t.Helper()
	reached, release = make(chan string, 10), make(chan struct{})
	hold := admit.Rule{Name: "hold", Validate: func(ctx context.Context, r admit.Request) error {
		if r.GetKind().Kind != "ConfigMap" || !strings.HasPrefix(r.GetName(), "held") {
			return nil
		}
		reached <- r.GetName()
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	s = must(server.New(t.Context(), server.Config{Dir: t.TempDir(), NoSync: true, Operation: o, Rules: append(rules, hold)}))(t)
	t.Cleanup(s.Close)
	return s, reached, release
}

// The limits of requests in flight are divided among the priority levels. A request above the
// limit of its level waits in a queue, and is refused after some time.
func TestRequestsInFlight(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.MaxRequestsInFlight, o.Requests.MaxMutatingRequestsInFlight = 1, 1 // one seat per level
	s, reached, release := holding(t, o)
	users := kubeAs(t, s, "system:kcp:admin")
	done := make(chan error, 1)
	go func() {
		_, err := users.CoreV1().ConfigMaps("default").Create(t.Context(), named("held"), metav1.CreateOptions{})
		done <- err
	}()
	<-reached
	held, refused := 1, false
	for ; !refused && held < cap(reached); held++ { // after some seconds, the level may borrow seats
		more := users.CoreV1().RESTClient().Post().Namespace("default").Resource("configmaps").Body(named(fmt.Sprint("held-", held)))
		answers := make(chan error, 1)
		go func() { answers <- more.Timeout(4 * time.Second).MaxRetries(0).Do(t.Context()).Error() }()
		select {
		case <-reached:
		case err := <-answers:
			if refused = apierrors.IsTooManyRequests(err); !refused {
				t.Fatalf("a further request of the level: %v", err)
			}
		}
	}
	if !refused {
		t.Errorf("the level has %d requests in flight", held)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "ahead"}}
	if _, err := users.CoordinationV1().Leases("default").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Errorf("a lease beside it: %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Errorf("the first request: %v", err)
	}
}

// deletecollection deletes the configured number of objects in parallel, of built-in and
// custom kinds.
func TestDeleteCollectionWorkers(t *testing.T) {
	t.Parallel()
	const workers = 3
	o := server.DefaultOperation()
	o.DeleteCollectionWorkers = workers
	reached, release := make(chan struct{}, 2*workers), make(chan struct{}, 2*workers)
	hold := admit.Rule{Name: "hold", Validate: func(ctx context.Context, r admit.Request) error {
		if r.GetOperation() != admission.Delete || r.GetNamespace() != "default" {
			return nil
		}
		reached <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	s := must(server.New(t.Context(), server.Config{
		Dir: t.TempDir(), NoSync: true, Operation: o, Rules: []admit.Rule{hold}, Kinds: []*apiextensionsv1.CustomResourceDefinition{widgetDefinition()},
	}))(t)
	t.Cleanup(s.Close)
	client := must(dynamic.NewForConfig(s.InProcess("root", server.System())))(t)
	for _, kind := range []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("ConfigMap"), {Group: "example.com", Version: "v1", Kind: "Widget"}} {
		of := client.Resource(kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s")).Namespace("default")
		for n := range workers {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(kind)
			u.SetName(fmt.Sprint("many-", n))
			u.SetLabels(map[string]string{"many": "true"})
			must(of.Create(t.Context(), u, metav1.CreateOptions{}))(t)
		}
		many := metav1.ListOptions{LabelSelector: "many=true"}
		done := make(chan error, 1)
		go func() { done <- of.DeleteCollection(t.Context(), metav1.DeleteOptions{}, many) }()
		for n := range workers {
			select {
			case <-reached:
			case <-time.After(patience):
				t.Fatalf("%s: %d are deleted at once", kind.Kind, n)
			}
		}
		for range workers {
			release <- struct{}{}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if left := must(of.List(t.Context(), many))(t); len(left.Items) > 0 {
			t.Errorf("%s: %d are left", kind.Kind, len(left.Items))
		}
	}
}

func TestRequestTimeout(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.RequestTimeout = 500 * time.Millisecond
	s, _, _ := holding(t, o)
	_, err := kubeAs(t, s, "system:kcp:admin").CoreV1().ConfigMaps("default").Create(t.Context(), named("held"), metav1.CreateOptions{})
	if err == nil { // the request is held until it times out
		t.Error("a request may take longer than it may")
	}
}

// A server that is shutting down reports not ready during the delay, but serves requests.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.ShutdownDelayDuration = 5 * time.Second
	s := operate(t, t.TempDir(), o)
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	eventually(t, "the server is not ready", func() bool {
		return s.do(t, http.MethodGet, "/readyz", nil).StatusCode == http.StatusInternalServerError
	})
	if resp := s.do(t, http.MethodGet, "/livez", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("livez: %s", resp.Status)
	}
	if _, err := s.client(t, "root", "").CoreV1().ConfigMaps("default").Create(t.Context(), named("late"), metav1.CreateOptions{}); err != nil {
		t.Errorf("a write during the delay: %v", err)
	}
	<-closed
}

// Admission plugins can be enabled and disabled by name. The plugins that protect
// clusters cannot be disabled. Unknown plugins cannot be enabled.
func TestPlugins(t *testing.T) {
	t.Parallel()
	no := admit.Rule{Name: "example.com/No", Validate: func(_ context.Context, r admit.Request) error {
		if r.GetKind().Kind == "ConfigMap" && r.GetName() == "refused" {
			return errors.New("refused by the rule")
		}
		return nil
	}}
	o := server.DefaultOperation()
	o.Plugins.Disable = []string{"example.com/No", "PodSecurity", "apis.kcp.io/ReservedMetadata"}
	o.Plugins.Enable = []string{"WorkspaceNamespaceLifecycle", "NamespaceLifecycle", "NodeRestriction", "MutatingAdmissionWebhook",
		"apis.kcp.io/MutatingWebhook", "apis.kcp.io/PermissionClaims", "kcp.io/PathAnnotation", "tenancy.kcp.io/Shard"} // in force under other names
	s, _, _ := holding(t, o, no)
	if _, err := kubeAs(t, s, "system:kcp:admin").CoreV1().ConfigMaps("default").Create(t.Context(), named("refused"), metav1.CreateOptions{}); err != nil {
		t.Errorf("a rule that is off: %v", err)
	}
	for want, p := range map[string]admit.Plugins{
		`no admission plugin "Unheard"`:                      {Enable: []string{"Unheard"}},
		`both name "example.com/No"`:                         {Enable: []string{"example.com/No"}, Disable: []string{"example.com/No"}},
		`"EventRateLimit" is not served`:                     {Enable: []string{"EventRateLimit"}},
		"cannot be disabled":                                 {Disable: []string{"WorkspaceNamespaceLifecycle"}},
		`"apis.kcp.io/ValidatingWebhook" is always in force`: {Disable: []string{"apis.kcp.io/ValidatingWebhook"}},
		`"apis.kcp.io/ReservedMetadata" is not served`:       {Enable: []string{"apis.kcp.io/ReservedMetadata"}},
	} {
		o := server.DefaultOperation()
		o.Plugins = p
		s, err := server.New(t.Context(), server.Config{Dir: t.TempDir(), NoSync: true, Operation: o, Rules: []admit.Rule{no}})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "-admission-plugins") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func leaseOf(id int64) clientv3.LeaseID { return clientv3.LeaseID(id) }

// kubeAs returns a client in root for a user in a group.
func kubeAs(t *testing.T, s *server.Server, group string) kubernetes.Interface {
	t.Helper()
	return must(kubernetes.NewForConfig(s.InProcess("root", &user.DefaultInfo{Name: "someone", Groups: []string{group, user.AllAuthenticated}})))(t)
}

func named(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
