package kcp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
)

func Example() {
	ctx := context.Background()
	srv := &kcp.Server{}
	if err := srv.Start(ctx); err != nil {
		log.Fatal(err)
	}
	cfg, err := srv.Cluster(ctx, "team-a") // an ordinary *rest.Config
	if err != nil {
		log.Fatal(err)
	}
	hello := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}
	made, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps("default").Create(ctx, hello, metav1.CreateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(made.Name, "in", made.Annotations["kcp.io/cluster"])
	if err := srv.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: hello in team-a
}

func start(t *testing.T, srv *kcp.Server) *kcp.Server {
	t.Helper()
	srv.NoSync = true
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv
}

func cluster(t *testing.T, srv *kcp.Server, name string) *kubernetes.Clientset {
	t.Helper()
	cfg, err := srv.Cluster(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return clients(t, cfg)
}

func clients(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Two servers in one process share no data, even in clusters with the same name.
func TestTwoServers(t *testing.T) {
	a, b := start(t, &kcp.Server{}), start(t, &kcp.Server{})
	for i, srv := range []*kcp.Server{a, b} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("only-in-", i)}}
		if _, err := cluster(t, srv, "same").CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := cluster(t, b, "same").CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, ns := range list.Items {
		names = append(names, ns.Name)
	}
	if !slices.Contains(names, "only-in-1") || slices.Contains(names, "only-in-0") {
		t.Errorf("the second server has namespaces %q", names)
	}
}

// A server that starts again in the same directory has the data that was written before.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		srv := &kcp.Server{Dir: dir, NoSync: true}
		if err := srv.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		maps := cluster(t, srv, "kept").CoreV1().ConfigMaps("default")
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("start-", i)}}
		if _, err := maps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		list, err := maps.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		} else if n := len(slices.DeleteFunc(list.Items, func(m corev1.ConfigMap) bool { return !strings.HasPrefix(m.Name, "start-") })); n != i+1 {
			t.Errorf("after start %d there are %d config maps", i, n)
		}
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A closed server leaves no goroutines, even after several starts and with open watches
// whose events are not read.
func TestNoGoroutineIsLeft(t *testing.T) {
	var before map[string]int
	for i := range 3 {
		srv := &kcp.Server{NoSync: true, Operation: kcp.DefaultOperation()}
		srv.Operation.Requests.ShutdownWatchTerminationGracePeriod = time.Millisecond
		if err := srv.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		maps := cluster(t, srv, "watched").CoreV1().ConfigMaps("")
		w, err := maps.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			if _, err := cluster(t, srv, "watched").CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("unread-", n)}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
		for range w.ResultChan() { //nolint:revive // it must end
		}
		left := goroutines()
		if i == 0 {
			before = left // libraries start goroutines of their own with the first server
			continue
		}
		// Goroutines may end a moment after Close.
		deadline := time.Now().Add(20 * time.Second)
		for len(more(left, before)) > 0 && time.Now().Before(deadline) {
			runtime.Gosched()
			left = goroutines()
		}
		if leaked := more(left, before); len(leaked) > 0 {
			t.Fatalf("after another server was closed there are more goroutines from:\n%s", strings.Join(leaked, "\n"))
		}
		before = left // goroutines of the first server that ended late are not counted
	}
}

// goroutines returns the number of goroutines of the process by the place that started them.
func goroutines() map[string]int {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	count := map[string]int{}
	for g := range strings.SplitSeq(string(stacks), "\n\n") {
		if _, by, ok := strings.Cut(g, "created by "); ok {
			by, _, _ = strings.Cut(by, " in goroutine")
			if !strings.Contains(by, "testing.") {
				count[by]++
			}
		}
	}
	return count
}

// more returns the places with more goroutines than before, with both counts.
func more(now, before map[string]int) []string {
	var of []string
	for by, n := range now {
		if n > before[by] {
			of = append(of, fmt.Sprintf("%s: %d, before %d", by, n, before[by]))
		}
	}
	slices.Sort(of)
	return of
}

// An embedding program chooses the built-in groups.
func TestGroups(t *testing.T) {
	srv := start(t, &kcp.Server{Groups: []string{"core", "coordination.k8s.io"}})
	groups, err := cluster(t, srv, "few").Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range groups.Groups {
		names = append(names, g.Name)
	}
	slices.Sort(names)
	if got, want := strings.Join(names, " "), " apis.kcp.io cache.kcp.io coordination.k8s.io core.kcp.io tenancy.kcp.io topology.kcp.io"; got != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	none := &kcp.Server{Groups: []string{"core", "nonsense.k8s.io"}, NoSync: true}
	if err := none.Start(t.Context()); err == nil || !strings.Contains(err.Error(), `"nonsense.k8s.io"`) {
		t.Errorf("a group that does not exist: %v", err)
	}
}

// Clients from As have only the rights of their user.
func TestAs(t *testing.T) {
	srv := start(t, &kcp.Server{})
	cluster(t, srv, "guarded")
	cfg, err := srv.As("guarded", &user.DefaultInfo{Name: "mallory", Groups: []string{user.AllAuthenticated}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients(t, cfg).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a stranger lists secrets: %v", err)
	}
	for _, bad := range []string{"", "UPPER", "a/b", "..", "root:"} {
		if _, err := srv.As(bad, &user.DefaultInfo{}); err == nil {
			t.Errorf("cluster %q is accepted", bad)
		}
	}
	if _, err := srv.Cluster(t.Context(), "system:admin"); err == nil {
		t.Error("a cluster of the server's own can be made")
	}
}

// Methods of a server that is not started return an error that says so.
func TestNotStarted(t *testing.T) {
	srv := &kcp.Server{}
	_, made := srv.Cluster(t.Context(), "early")
	_, as := srv.As("early", &user.DefaultInfo{})
	for name, err := range map[string]error{"Cluster": made, "As": as, "Remove": srv.Remove(t.Context(), "early")} {
		if err == nil || !strings.Contains(err.Error(), "call Start first") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if srv.Failed() != nil {
		t.Error("a server that is not started may fail")
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
}

// With Listen clients reach the server over TLS, with the credentials in Dir.
func TestListen(t *testing.T) {
	srv := start(t, &kcp.Server{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	for name, status := range map[string]int{"shard-base": http.StatusOK, "base": http.StatusForbidden} {
		cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: filepath.Join(srv.Dir, "admin.kubeconfig")},
			&clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Host != srv.URL() {
			t.Errorf("context %s is for %s, want %s", name, cfg.Host, srv.URL())
		}
		var got int
		clients(t, cfg).RESTClient().Get().AbsPath("/version").Do(t.Context()).StatusCode(&got)
		if got != status {
			t.Errorf("context %s: GET /version is %d, want %d", name, got, status)
		}
	}
	taken := &kcp.Server{Listen: strings.TrimPrefix(srv.URL(), "https://"), NoSync: true}
	if err := taken.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "choose another") {
		t.Errorf("a port that is taken: %v", err)
	}
	if err := srv.Start(t.Context()); err == nil {
		t.Error("a server starts twice")
	}
}

// Remove deletes everything: a new cluster of the same name is empty.
func TestRemove(t *testing.T) {
	srv := start(t, &kcp.Server{})
	for range 2 {
		maps := cluster(t, srv, "again").CoreV1().ConfigMaps("default")
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "once"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := srv.Remove(t.Context(), "again"); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.Remove(t.Context(), "root"); err == nil {
		t.Error("the root workspace can be removed")
	}
}

// Authorizers of the embedding program may allow requests that RBAC does not allow, in
// clusters that exist.
func TestAuthorizers(t *testing.T) {
	readers := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "reader" && a.IsReadOnly() {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	srv := start(t, &kcp.Server{Extensions: []kcp.Extension{{Authorizers: []authorizer.Authorizer{readers}}}})
	cluster(t, srv, "library")
	as := func(at string) *kubernetes.Clientset {
		cfg, err := srv.As(at, &user.DefaultInfo{Name: "reader", Groups: []string{user.AllAuthenticated}})
		if err != nil {
			t.Fatal(err)
		}
		return clients(t, cfg)
	}
	if _, err := as("library").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a reader reads: %v", err)
	}
	if err := as("library").CoreV1().ConfigMaps("default").Delete(t.Context(), "x", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a reader deletes: %v", err)
	}
	for _, at := range []string{"nosuchlibrary", "*", "system:admin"} {
		if _, err := as(at).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a reader reads in %s: %v", at, err)
		}
	}
}

// BenchmarkClusters creates many logical clusters with a namespace each, and reports the
// cost of one. Run each size alone: the memory of a closed server is freed late.
func BenchmarkClusters(b *testing.B) {
	sizes := []int{1_000, 10_000}
	if testing.Short() {
		sizes = []int{50}
	}
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				srv := &kcp.Server{NoSync: true}
				if err := srv.Start(b.Context()); err != nil {
					b.Fatal(err)
				}
				heap, running := live(), runtime.NumGoroutine()
				begun := time.Now()
				for i := range n {
					if _, err := srv.Cluster(b.Context(), fmt.Sprint("c", i)); err != nil {
						b.Fatal(err)
					}
				}
				took := time.Since(begun)
				caughtUp(b, srv)
				b.ReportMetric(float64(took.Microseconds())/float64(n), "µs/cluster")
				b.ReportMetric(float64(live()-heap)/float64(n), "heap-B/cluster")
				b.ReportMetric(float64(runtime.NumGoroutine()-running)/float64(n), "goroutines/cluster")
				if err := srv.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// caughtUp lists all clusters, so that all caches are current.
func caughtUp(b *testing.B, srv *kcp.Server) {
	b.Helper()
	cfg, err := srv.As("*", &user.DefaultInfo{Name: "benchmark", Groups: []string{user.SystemPrivilegedGroup}})
	if err != nil {
		b.Fatal(err)
	}
	all, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	_, errNamespaces := all.CoreV1().Namespaces().List(b.Context(), metav1.ListOptions{})
	_, errAccounts := all.CoreV1().ServiceAccounts("").List(b.Context(), metav1.ListOptions{})
	_, errMaps := all.CoreV1().ConfigMaps("").List(b.Context(), metav1.ListOptions{})
	if err := errors.Join(errNamespaces, errAccounts, errMaps); err != nil {
		b.Fatal(err)
	}
}

// live returns the number of live heap bytes.
func live() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
