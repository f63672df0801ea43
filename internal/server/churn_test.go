package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// churnVariable is the environment variable with the settings of a churning process.
const churnVariable = "KCP_TEST_CHURN"

// churnLives is the environment variable with the number of kills. The default is small.
const churnLives = "KCP_CHURN_LIVES"

func lives(short int) int {
	if n, err := strconv.Atoi(os.Getenv(churnLives)); err == nil {
		return n
	}
	return short
}

// A churn is the configuration of a churning process.
type churn struct {
	Dir  string
	Etcd []string // nil for an embedded one
	Name string   // prefix of the names of its workspaces
}

func (c churn) start() (*running, error) {
	s, err := server.New(context.Background(), server.Config{Dir: c.Dir, NoSync: true, Etcd: etcd.Config{Servers: c.Etcd}, ExternalURL: "https://kcp"})
	return &running{Server: s, dir: c.Dir, url: "https://kcp"}, err
}

// TestChurn is the process that [TestWorkspacesAreWholeOrGoneAfterKills] kills. Many clients
// create and delete workspaces, some of which have an initializer and a terminator. It prints
// each acknowledged step.
func TestChurn(t *testing.T) {
	text := os.Getenv(churnVariable)
	if text == "" {
		t.Skip("only in a process of its own")
	}
	var c churn
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	s := must(c.start())(t)
	root := at(t, s, cluster.Root, server.System())
	if err := root.churnType(); err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	working.Go(func() { root.prepareAndClearUp(t.Context()) })
	for client := range 6 {
		working.Go(func() {
			for i := 0; ; i++ {
				root.churnOne(fmt.Sprintf("%s-%d-%d", c.Name, client, i))
			}
		})
	}
	working.Wait()
}

// churnOne creates a workspace, and may delete it or create one below it.
func (c *tenant) churnOne(name string) {
	ws := workspace(name)
	if rand.IntN(2) == 0 {
		_ = unstructured.SetNestedStringMap(ws.Object, map[string]string{"name": churnKind, "path": "root"}, "spec", "type") // a map of strings cannot fail
	}
	made, err := c.any.Resource(workspaces).Create(c.t.Context(), ws, metav1.CreateOptions{})
	if err != nil {
		return // not acknowledged
	}
	fmt.Println("churned made", name)
	if rand.IntN(3) == 0 { // one below, which is deleted with it
		below := must(dynamic.NewForConfig(c.server.InProcess(text(made, "spec", "cluster"), server.System())))(c.t)
		_, _ = below.Resource(workspaces).Create(c.t.Context(), workspace("below"), metav1.CreateOptions{}) // it may fail
	}
	if rand.IntN(2) == 0 {
		fmt.Println("churned deleting", name)
		if c.any.Resource(workspaces).Delete(c.t.Context(), name, metav1.DeleteOptions{}) == nil {
			fmt.Println("churned deleted", name)
		}
	}
}

// churnKind is the type of workspaces with an initializer and a terminator.
const churnKind = "churned"

// churnType creates the type unless it exists.
func (c *tenant) churnType() error {
	kind := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "WorkspaceType", "metadata": map[string]any{"name": churnKind},
		"spec": map[string]any{"initializer": true, "terminator": true, "extend": map[string]any{"with": []any{map[string]any{"name": "universal", "path": "root"}}}},
	}}
	_, err := c.any.Resource(workspaceTypes).Create(c.t.Context(), kind, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// prepareAndClearUp runs the initializer and the terminator of the type until ctx ends.
func (c *tenant) prepareAndClearUp(ctx context.Context) {
	id := "root:" + churnKind
	var views sync.WaitGroup
	for field, v := range map[string]*viewer{"initializers": c.initializing(id, server.System()), "terminators": c.terminating(id, server.System())} {
		views.Go(func() {
			for ctx.Err() == nil {
				v.finishAll(ctx, field, id)
			}
		})
	}
	views.Wait()
}

// finishAll finishes in all current clusters of a view, and in later ones until its watch
// ends.
func (v *viewer) finishAll(ctx context.Context, field, id string) {
	all := v.clusters("*")
	list, err := all.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range list.Items {
		_ = finish(ctx, v.clusters(string(cluster.Of(&list.Items[i]))), field, id) // failures are retried after the next list
	}
	w, err := all.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if l, ok := e.Object.(*unstructured.Unstructured); ok {
			if err := finish(ctx, v.clusters(string(cluster.Of(l))), field, id); err != nil && !apierrors.IsNotFound(err) {
				return // list again
			}
		}
	}
}

// A churning is a running process with its output.
type churning struct {
	cmd  *exec.Cmd
	said *bufio.Scanner
	log  *churned
}

// churned holds the last acknowledged step of workspaces by name: made, deleting, deleted.
type churned struct {
	mu sync.Mutex
	of map[string]string
	n  int
}

func begin(t *testing.T, c churn, log *churned) *churning {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChurn$", "-test.v")
	cmd.Env = append(os.Environ(), churnVariable+"="+string(must(json.Marshal(c))(t)))
	out := must(cmd.StdoutPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &churning{cmd, bufio.NewScanner(out), log}
}

// hears reads n more steps from the output, or all until its end. It reports whether there
// were n.
func (c *churning) hears(n int) bool {
	for n > 0 && c.said.Scan() {
		line, ok := strings.CutPrefix(c.said.Text(), "churned ")
		what, name, whole := strings.Cut(line, " ")
		if !ok || !whole {
			continue
		}
		n--
		c.log.mu.Lock()
		c.log.of[name] = what
		c.log.n++
		c.log.mu.Unlock()
	}
	return n <= 0
}

// kill kills the process and reads its remaining output.
func (c *churning) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	c.hears(1 << 30)
	_ = c.cmd.Wait() // returns the signal as an error
}

// wholeOrGone waits until the server has finished all work. It checks that no acknowledged
// step is lost, that nothing else is left, and that every workspace is complete.
func wholeOrGone(t *testing.T, s *running, log *churned) {
	t.Helper()
	root := at(t, s, cluster.Root, server.System())
	ctx, done := context.WithCancel(t.Context())
	var views sync.WaitGroup
	views.Go(func() { root.prepareAndClearUp(ctx) })
	defer views.Wait()
	defer done()

	clusters := map[string]string{"": ""} // clusters by name, with a description of their content
	for _, ws := range must(root.any.Resource(workspaces).List(t.Context(), metav1.ListOptions{}))(t).Items {
		name := ws.GetName()
		o := root.await(workspaces, "", name, func(o *unstructured.Unstructured) bool {
			return o == nil || o.GetDeletionTimestamp() == nil && text(o, "status", "phase") == "Ready"
		})
		if o == nil {
			if log.of[name] == "made" {
				t.Errorf("%s is gone, and nobody deleted it", name)
			}
			continue
		}
		if log.of[name] == "deleted" {
			t.Errorf("%s is there, and was deleted", name)
		}
		c := text(o, "spec", "cluster")
		clusters[c] = text(o, "spec", "type", "name")
		in := at(t, s, cluster.Name(c), server.System())
		for _, below := range must(in.any.Resource(workspaces).List(t.Context(), metav1.ListOptions{}))(t).Items {
			b := in.in(workspaces, below.GetName(), "Ready")
			clusters[text(b, "spec", "cluster")] = "universal"
			clusters[c] += " and below"
		}
		delete(log.of, name)
	}
	for name, what := range log.of {
		if what == "made" {
			t.Errorf("%s is not there", name)
		}
	}
	compareClusters(t, s, clusters)
}

// compareClusters checks that clusters of equal content have equal keys, and that no other
// clusters exist.
func compareClusters(t *testing.T, s *running, clusters map[string]string) {
	t.Helper()
	resp := must(s.Store().RawClient().Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithKeysOnly()))(t)
	keys := map[string][]string{}
	for _, kv := range resp.Kvs {
		parts := strings.Split(string(kv.Key), "/")
		if len(parts) < 8 || cluster.Name(parts[6]) == cluster.Root || cluster.Name(parts[6]).System() {
			continue
		}
		c := parts[6]
		if parts[2] == "s" && parts[4] == "names" {
			continue // guards names, where a loop made a binding
		}
		parts[6] = "…"
		for _, export := range []string{"tenancy.kcp.io", "topology.kcp.io"} {
			if last := len(parts) - 1; parts[last] == apisv1alpha2.DefaultBindingName(c, "root", export) {
				parts[last] = export + "-…"
			}
		}
		keys[c] = append(keys[c], strings.Join(parts, "/"))
	}
	delete(clusters, "")
	examples := map[string]string{}
	for _, c := range slices.Sorted(maps.Keys(keys)) {
		kind, there := clusters[c]
		if !there {
			t.Errorf("cluster %s belongs to no workspace, and has %v", c, keys[c])
			continue
		}
		example, known := examples[kind]
		if !known {
			examples[kind] = c
		} else if !slices.Equal(keys[c], keys[example]) {
			t.Errorf("%s has %v\n%s has %v", c, keys[c], example, keys[example])
		}
		delete(clusters, c)
	}
	for c := range clusters {
		t.Errorf("there is nothing of cluster %s", c)
	}
	if len(examples) == 0 {
		t.Error("no workspace was left to compare")
	}
}

func TestWorkspacesAreWholeOrGoneAfterKills(t *testing.T) {
	t.Parallel()
	c, log := churn{Dir: t.TempDir()}, &churned{of: map[string]string{}}
	for life := range lives(2) {
		c.Name = fmt.Sprint("a", life)
		p := begin(t, c, log)
		p.hears(20 + rand.IntN(100))
		p.kill(t)
		s := must(c.start())(t)
		wholeOrGone(t, s, log)
		s.Close()
	}
	if log.n == 0 {
		t.Error("nothing was acknowledged")
	}
}

// One of two processes on one etcd is suspended and continues with outdated data. Then both
// are killed.
func TestWorkspacesAreWholeOrGoneAfterAPause(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, etcdtest.Options{Steady: true})
	log := &churned{of: map[string]string{}}
	for life := range lives(1) {
		var both []*churning
		for i := range 2 {
			both = append(both, begin(t, churn{Dir: t.TempDir(), Etcd: etcd.Servers(), Name: fmt.Sprintf("b%d-%d", life, i)}, log))
		}
		stopped, other := both[0], both[1]
		if !stopped.hears(10+rand.IntN(30)) || !other.hears(10) {
			t.Fatal("a process ended by itself")
		}
		if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if !other.hears(30 + rand.IntN(100)) {
			t.Error("the other process ended by itself")
		}
		if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if !stopped.hears(10 + rand.IntN(30)) {
			t.Error("the process did not go on")
		}
		for _, p := range both {
			p.kill(t)
		}
		s := must(churn{Dir: t.TempDir(), Etcd: etcd.Servers()}.start())(t)
		wholeOrGone(t, s, log)
		s.Close()
	}
}
