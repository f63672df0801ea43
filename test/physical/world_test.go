//go:build unix

// Package physical tests workloads on physical clusters against real control planes: etcd,
// kube-apiserver and kube-controller-manager, unchanged. No container runs: a loop of the test makes
// pods ready.
package physical

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/polymorphichelpers"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/cli"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/test/stock"
)

// patience is how long the tests wait for something that happens in a second.
const patience = time.Minute

// A cluster is a physical cluster.
type cluster struct {
	*stock.ControlPlane
	*kubernetes.Clientset
	kubeconfig string // a file
	kubelet    int32  // port; 0 until it is known
}

// A world has physical clusters and a server.
type world struct {
	dir      string
	clusters map[string]*cluster
	server   *kcp.Server
	config   *rest.Config
	view     *syncer.View
	life     time.Duration // of the certificates of agents; zero is the default
	listen   string        // the address of the server; empty before its first start

	evictions place.Rate // zero is the default
	objects   int        // the maximum in a physical cluster; zero is the default
}

// kube returns the program of control planes, which "make programs" builds.
func kube(t testing.TB) string {
	t.Helper()
	if file, err := filepath.Abs("../../bin/kube"); err == nil {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file := filepath.Join(t.TempDir(), "kube")
	build := exec.CommandContext(t.Context(), "go", "-C", "../tools", "build",
		"-ldflags", "-X k8s.io/component-base/version.gitVersion="+kcp.KubernetesVersion, "-o", file, "./cmd/kube")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kube: %v\n%s", err, out)
	}
	return file
}

// newWorld starts physical clusters and a server that may reach them.
func newWorld(t testing.TB, names ...string) *world {
	w := &world{dir: t.TempDir(), clusters: map[string]*cluster{}}
	binary := kube(t)
	for _, name := range names {
		w.clusters[name] = w.startCluster(t, binary, name)
	}
	w.startServer(t)
	t.Cleanup(func() { w.stopServer(t) })
	return w
}

func (w *world) startCluster(t testing.TB, binary, name string) *cluster {
	c := &cluster{ControlPlane: &stock.ControlPlane{Binary: binary, Dir: filepath.Join(w.dir, name)}, kubeconfig: filepath.Join(w.dir, name+".kubeconfig")}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.StartControllers(); err != nil {
		t.Fatal(err)
	}
	stop, err := c.StartKubelet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	ctx, cancel := context.WithCancel(context.Background())
	var pods sync.WaitGroup
	pods.Go(func() {
		if err := c.RunPods(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); pods.Wait() })
	admin := c.Config(stock.AdminToken)
	admin.QPS = -1
	if c.Clientset, err = kubernetes.NewForConfig(admin); err != nil {
		t.Fatal(err)
	}
	writeKubeconfig(t, c.kubeconfig, c.Config(stock.UserToken))
	return c
}

// writeKubeconfig writes a kubeconfig with a token.
func writeKubeconfig(t testing.TB, file string, of *rest.Config) {
	t.Helper()
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: of.Host, CertificateAuthority: of.CAFile}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": {Token: of.BearerToken}},
	}, file)
	if err != nil {
		t.Fatal(err)
	}
}

// startServer starts a server on the data of the world. Its probes are quick.
func (w *world) startServer(t testing.TB) {
	t.Helper()
	w.view = &syncer.View{Life: w.life}
	w.server = &kcp.Server{
		Dir: filepath.Join(w.dir, "kcp"), Listen: cmp.Or(w.listen, "127.0.0.1:0"), NoSync: true, EgressAllow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Extensions: []kcp.Extension{fleet.Extension(fleet.Options{Renew: 300 * time.Millisecond, Expire: 3 * time.Second, Stop: 5 * time.Second, Autoscale: time.Second, Streams: time.Second, Evictions: w.evictions, Objects: w.objects, View: w.view})},
	}
	if err := w.server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.listen = strings.TrimPrefix(w.server.URL(), "https://") // agents find it there after a restart
	var err error
	if w.config, err = clientcmd.BuildConfigFromFlags("", w.server.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	w.config.QPS = -1
	t.Setenv("KUBECONFIG", w.server.Kubeconfig)
}

func (w *world) stopServer(t testing.TB) {
	if err := w.server.Close(); err != nil {
		t.Error(err)
	}
}

// kubectl runs "kubectl kcp" with arguments, and returns what it prints.
func kubectl(t testing.TB, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := cli.KCP(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// must runs "kubectl kcp" and fails the test if it fails.
func must(t testing.TB, args ...string) string {
	t.Helper()
	out, err := kubectl(t, args...)
	if err != nil {
		t.Fatalf("kubectl kcp %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// eventually waits until what returns no error.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	within(t, patience, what, check)
}

// within waits until what returns no error, for something that takes longer than a second.
func within(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	err := errors.New("not tried")
	for end := time.Now().Add(limit); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// compute makes a compute workspace with physical clusters.
func (w *world) compute(t testing.TB, name string, clusters ...string) {
	t.Helper()
	must(t, "ws", "create", ":root:"+name)
	for _, c := range clusters {
		must(t, "workload", "sync", c, "--kubeconfig", w.clusters[c].kubeconfig, "--labels", "region="+c, "-w", ":root:"+name)
	}
}

// in returns a client for the workspace root:<name>.
func (w *world) in(t testing.TB, name string) dynamic.Interface {
	t.Helper()
	d, err := dynamic.NewForConfig(client.Cluster(w.config, "root:"+name))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// shop makes a workspace that runs its workloads in compute.
func (w *world) shop(t testing.TB, name, compute string) *tenant {
	t.Helper()
	must(t, "ws", "create", ":root:"+name)
	must(t, "bind", "compute", ":root:"+compute, "-w", ":root:"+name)
	return w.enter(t, name)
}

// enter returns a workspace.
func (w *world) enter(t testing.TB, name string) *tenant {
	t.Helper()
	typed, err := kubernetes.NewForConfig(client.Cluster(w.config, "root:"+name))
	if err != nil {
		t.Fatal(err)
	}
	return &tenant{world: w, name: name, Clientset: typed, dynamic: w.in(t, name)}
}

// A tenant is a workspace with workloads.
type tenant struct {
	*world
	*kubernetes.Clientset
	name    string
	dynamic dynamic.Interface
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1"}}}},
	}}
}

func (s *tenant) create(t testing.TB, name string, replicas int32) {
	t.Helper()
	if _, err := s.AppsV1().Deployments("default").Create(t.Context(), deployment(name, replicas), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// patch changes a Deployment.
func (s *tenant) patch(t testing.TB, name, patch string) {
	t.Helper()
	if _, err := s.AppsV1().Deployments("default").Patch(t.Context(), name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// rolledOut waits until kubectl rollout status would end.
func (s *tenant) rolledOut(t testing.TB, name string) {
	t.Helper()
	eventually(t, "rollout of "+name, func() error {
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return rollout(d)
	})
}

// rollout returns an error with what kubectl rollout status prints, unless it would end without one.
func rollout(d *appsv1.Deployment) error {
	d.APIVersion, d.Kind = "apps/v1", "Deployment"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	if err != nil {
		return err
	}
	text, done, err := (&polymorphichelpers.DeploymentStatusViewer{}).Status(&unstructured.Unstructured{Object: content}, 0)
	if err == nil && !done {
		err = errors.New(text)
	}
	return err
}

// split waits until "kubectl kcp workload get" ends with a text.
func (s *tenant) split(t testing.TB, name, want string) {
	t.Helper()
	eventually(t, "split of "+name, func() error {
		out, err := kubectl(t, "workload", "get", "deployment/"+name, "-w", ":root:"+s.name)
		if err == nil && !strings.Contains(out, name+": "+want+"\n") {
			err = fmt.Errorf("want %q, got\n%s", want, out)
		}
		return err
	})
}

// copies returns the Deployments with a name at a physical cluster.
func (c *cluster) copies(ctx context.Context, name string) ([]appsv1.Deployment, error) {
	list, err := c.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(d appsv1.Deployment) bool { return d.Name != name }), nil
}

// only returns the one Deployment with a name at a physical cluster.
func (c *cluster) only(t testing.TB, name string) *appsv1.Deployment {
	t.Helper()
	all, err := c.copies(t.Context(), name)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d Deployments %s, %v; want one", len(all), name, err)
	}
	return &all[0]
}

// lacks fails the test if the physical cluster has a Deployment with a name.
func (c *cluster) lacks(t testing.TB, name string) {
	t.Helper()
	if all, err := c.copies(t.Context(), name); err != nil || len(all) > 0 {
		t.Errorf("%d Deployments %s, %v; want none", len(all), name, err)
	}
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// isLong reports whether make physical runs the tests. make check runs a part of them.
func isLong() bool { return os.Getenv("PHYSICAL") == "long" }

// long skips a test that is not in make check.
func long(t *testing.T) {
	t.Helper()
	if !isLong() {
		t.Skip("make physical runs it")
	}
}
