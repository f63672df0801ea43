//go:build unix

package physical

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/test/stock"
)

// A process is a server as a process of its own.
type process struct {
	*stock.Process
	binary, dir string
	args        []string
	port        int
	config      *rest.Config // of its administrator
}

// kcpProgram returns the program kcp, which "make programs" builds.
func kcpProgram(t testing.TB) string {
	t.Helper()
	if file, err := filepath.Abs("../../bin/kcp"); err == nil {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file := filepath.Join(t.TempDir(), "kcp")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", file, "../../cmd/kcp").CombinedOutput(); err != nil {
		t.Fatalf("build kcp: %v\n%s", err, out)
	}
	return file
}

// startProcess starts a server and waits until it is ready.
func startProcess(t testing.TB, name string, args ...string) *process {
	t.Helper()
	ports, err := stock.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{binary: kcpProgram(t), dir: filepath.Join(t.TempDir(), name), args: args, port: ports[0]}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	t.Cleanup(func() { p.Stop() })
	return p
}

func (p *process) start(t testing.TB) {
	t.Helper()
	var err error
	argv := append([]string{p.binary, "start", "--root-directory=" + p.dir, "--secure-port=" + strconv.Itoa(p.port)}, p.args...)
	if p.Process, err = stock.Launch(p.dir, "kcp", argv...); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is ready", func() error {
		var err error
		if p.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig")); err != nil {
			return err
		}
		p.config.QPS = -1
		root, err := rest.HTTPClientFor(p.config)
		if err != nil {
			return err
		}
		defer root.CloseIdleConnections()
		resp, err := root.Get(fmt.Sprintf("https://127.0.0.1:%d/readyz", p.port))
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", resp.Status)
		}
		return nil
	})
}

// at returns a client for a workspace of the server.
func (p *process) at(t testing.TB, path string) *dynamic.DynamicClient {
	t.Helper()
	d, err := dynamic.NewForConfig(client.Cluster(p.config, path))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// rests returns the resident memory once it does not fall any more.
func (p *process) rests(t testing.TB) float64 {
	t.Helper()
	lowest, since := 0.0, time.Now()
	for end := time.Now().Add(patience); time.Since(since) < 12*time.Second && time.Now().Before(end); <-time.After(time.Second) {
		now, err := p.Memory()
		if err != nil {
			t.Fatal(err)
		}
		if lowest == 0 || now < lowest*0.99 {
			lowest, since = now, time.Now()
		}
	}
	return lowest
}

// A farm has logical clusters of a server that play physical clusters: they serve Deployments, and a loop
// says that these are available.
type farm struct {
	*process
	kinds *dynamic.DynamicClient // of the view that has the Deployments of all of them
	seen  chan string            // the names of Deployments as they appear
}

var (
	workspacesOf  = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	exportsOf     = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apiexports"}
	bindingsOf    = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	deploymentsOf = appsv1.SchemeGroupVersion.WithResource("deployments")
)

func object(version, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}}
}

// newFarm starts the server.
func newFarm(t testing.TB) *farm {
	t.Helper()
	f := &farm{process: startProcess(t, "farm"), seen: make(chan string, 10_000)}
	create := metav1.CreateOptions{}
	if _, err := f.at(t, "root").Resource(workspacesOf).Create(t.Context(), object("tenancy.kcp.io/v1alpha1", "Workspace", "kinds", map[string]any{}), create); err != nil {
		t.Fatal(err)
	}
	native := map[string]any{"native": map[string]any{}}
	kinds := []any{map[string]any{"group": "apps", "name": "deployments", "storage": native}}
	e, err := f.at(t, "root:kinds").Resource(exportsOf).Create(t.Context(), object("apis.kcp.io/v1alpha2", "APIExport", "kubernetes", map[string]any{"resources": kinds}), create)
	if err != nil {
		t.Fatal(err)
	}
	view := rest.CopyConfig(f.config)
	view.Host = fmt.Sprintf("https://127.0.0.1:%d/services/apiexport/%s/kubernetes", f.port, e.GetAnnotations()[core.ClusterAnnotation])
	if f.kinds, err = dynamic.NewForConfig(client.Cluster(view, "*")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.run(ctx, t, view) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return f
}

// run makes all Deployments available, until ctx ends.
func (f *farm) run(ctx context.Context, t testing.TB, view *rest.Config) {
	changed := make(chan *unstructured.Unstructured)
	var controllers sync.WaitGroup
	defer controllers.Wait()
	defer close(changed)
	for range 8 {
		controllers.Go(func() {
			for o := range changed {
				if err := available(ctx, view, o); err != nil && ctx.Err() == nil && ignoreMissing(err) != nil {
					t.Errorf("status of %s: %v", o.GetName(), err)
				}
			}
		})
	}
	for ctx.Err() == nil {
		changes, err := f.kinds.Resource(deploymentsOf).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			select { // the view is not there yet
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		for e := range changes.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok || o.GetKind() != "Deployment" {
				continue
			}
			if e.Type == "ADDED" {
				f.seen <- o.GetName()
			}
			changed <- o
		}
	}
}

// available sets the status of a Deployment as its controllers would.
func available(ctx context.Context, view *rest.Config, o *unstructured.Unstructured) error {
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	if observed == o.GetGeneration() || o.GetDeletionTimestamp() != nil {
		return nil
	}
	replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"observedGeneration": o.GetGeneration(), "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas}})
	if err != nil {
		return err
	}
	in, err := dynamic.NewForConfig(client.Cluster(view, o.GetAnnotations()[core.ClusterAnnotation]))
	if err != nil {
		return err
	}
	_, err = in.Resource(deploymentsOf).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// cluster makes a logical cluster that plays a physical one, and returns its kubeconfig.
func (f *farm) cluster(ctx context.Context, name string) ([]byte, error) {
	root, err := dynamic.NewForConfig(client.Cluster(f.config, "root"))
	if err != nil {
		return nil, err
	}
	create := metav1.CreateOptions{}
	if _, err := root.Resource(workspacesOf).Create(ctx, object("tenancy.kcp.io/v1alpha1", "Workspace", name, map[string]any{}), create); err != nil {
		return nil, err
	}
	own, err := dynamic.NewForConfig(client.Cluster(f.config, "root:"+name))
	if err != nil {
		return nil, err
	}
	reference := map[string]any{"reference": map[string]any{"export": map[string]any{"path": "root:kinds", "name": "kubernetes"}}}
	if _, err := own.Resource(bindingsOf).Create(ctx, object("apis.kcp.io/v1alpha2", "APIBinding", "kubernetes", reference), create); err != nil {
		return nil, err
	}
	return kubeconfigOf(client.Cluster(f.config, "root:"+name))
}

// kubeconfigOf returns a kubeconfig without references to files.
func kubeconfigOf(of *rest.Config) ([]byte, error) {
	of = rest.CopyConfig(of)
	if err := rest.LoadTLSFiles(of); err != nil {
		return nil, err
	}
	return clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: of.Host, CertificateAuthorityData: of.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": {Token: of.BearerToken, ClientCertificateData: of.CertData, ClientKeyData: of.KeyData}},
	})
}

// revisions returns the revision of each Deployment, and of the namespaces where there are any.
func (f *farm) revisions(t testing.TB) map[string]string {
	t.Helper()
	all, clusters := map[string]string{}, map[string]bool{}
	add := func(d dynamic.Interface, of schema.GroupVersionResource) {
		objects, err := d.Resource(of).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects.Items {
			at := o.GetAnnotations()[core.ClusterAnnotation]
			clusters[at] = true
			all[of.Resource+" "+at+" "+o.GetNamespace()+"/"+o.GetName()] = o.GetResourceVersion()
		}
	}
	add(f.kinds, deploymentsOf)
	for _, at := range slices.Collect(maps.Keys(clusters)) {
		add(f.at(t, at), corev1.SchemeGroupVersion.WithResource("namespaces"))
	}
	return all
}

// side calls do for 0 to n-1, with some workers, and returns their errors.
func side(n int, do func(int) error) error {
	next, failed := make(chan int), make([]error, n)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range next {
				failed[i] = do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return errors.Join(failed...)
}

// percentile returns a percentile of durations in milliseconds.
func percentile(took []time.Duration, p int) float64 {
	took = slices.Sorted(slices.Values(took))
	return float64(took[min(len(took)-1, len(took)*p/100)].Microseconds()) / 1000
}
