//go:build unix

package physical

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/test/stock"
)

const (
	// perCompute is the number of physical clusters in one compute workspace.
	perCompute = 350
	// measured is how many Deployments are created one after the other.
	measured = 100
)

// A yard is a server with compute workspaces whose physical clusters are those of a farm.
type yard struct {
	*process
	farm      *farm
	targets   int
	computes  []string
	consumers []*kubernetes.Clientset
}

// newYard starts the servers and registers n physical clusters.
func newYard(t testing.TB, n int) *yard {
	t.Helper()
	f := newFarm(t)
	kubeconfigs := make([][]byte, n)
	err := side(n, func(i int) (err error) {
		kubeconfigs[i], err = f.cluster(t.Context(), fmt.Sprintf("t%d", i))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	y := &yard{process: startProcess(t, "kcp", "--tenant-egress-allow-cidrs=127.0.0.1/32"), farm: f, targets: n}
	t.Setenv("KUBECONFIG", filepath.Join(y.dir, "admin.kubeconfig"))
	for at := 0; at < n; at += perCompute {
		y.compute(t, kubeconfigs[at:min(n, at+perCompute)])
	}
	return y
}

// compute makes a compute workspace with physical clusters, which are not ready yet.
func (y *yard) compute(t testing.TB, kubeconfigs [][]byte) {
	t.Helper()
	name := fmt.Sprintf("compute%d", len(y.computes))
	y.computes = append(y.computes, name)
	must(t, "ws", "create", ":root:"+name)
	first := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(first, kubeconfigs[0], 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "workload", "sync", "t0", "--kubeconfig", first, "-w", ":root:"+name) // the API, the Location, the namespace
	at := client.Cluster(y.config, "root:"+name)
	typed, err := kubernetes.NewForConfig(at)
	if err != nil {
		t.Fatal(err)
	}
	targets := y.at(t, "root:"+name).Resource(synctargets())
	err = side(len(kubeconfigs), func(i int) error {
		if i == 0 {
			return nil
		}
		name := fmt.Sprintf("t%d", i)
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{workload.KubeconfigKey: kubeconfigs[i]}}
		if _, err := typed.CoreV1().Secrets(workload.TargetsNamespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			return err
		}
		ref := map[string]any{"namespace": workload.TargetsNamespace, "name": name}
		_, err := targets.Create(t.Context(), object("workload.kcp.io/v1alpha1", "SyncTarget", name, map[string]any{"push": map[string]any{"kubeconfigSecretRef": ref}}), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ready waits until all physical clusters are ready.
func (y *yard) ready(t testing.TB) {
	t.Helper()
	for _, name := range y.computes {
		eventually(t, "all targets are ready", func() error {
			list, err := y.at(t, "root:"+name).Resource(synctargets()).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, o := range list.Items {
				if !strings.Contains(fmt.Sprint(o.Object["status"]), "lastSyncerHeartbeatTime") {
					return fmt.Errorf("%s is not ready: %v", o.GetName(), o.Object["status"])
				}
			}
			return nil
		})
	}
}

// consume makes a consumer of each compute workspace. The first Deployment of each makes the caches.
func (y *yard) consume(t testing.TB) {
	t.Helper()
	for i, name := range y.computes {
		shop := fmt.Sprintf("shop%d", i)
		must(t, "ws", "create", ":root:"+shop)
		must(t, "bind", "compute", ":root:"+name, "-w", ":root:"+shop)
		typed, err := kubernetes.NewForConfig(client.Cluster(y.config, "root:"+shop))
		if err != nil {
			t.Fatal(err)
		}
		y.consumers = append(y.consumers, typed)
		y.create(t, fmt.Sprintf("first-%d", i), i)
	}
}

// create creates a Deployment with one replica, and waits until a physical cluster has it.
func (y *yard) create(t testing.TB, name string, consumer int) time.Duration {
	t.Helper()
	began := time.Now()
	if err := y.submit(t.Context(), name, consumer); err != nil {
		t.Fatal(err)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case got := <-y.farm.seen:
			if got == name {
				return time.Since(began)
			}
		case <-limit.C:
			t.Fatalf("no physical cluster has %s", name)
		}
	}
}

func (y *yard) submit(ctx context.Context, name string, consumer int) error {
	in := y.consumers[consumer%len(y.consumers)]
	_, err := in.AppsV1().Deployments("default").Create(ctx, deployment(name, 1), metav1.CreateOptions{})
	return err
}

// decided returns the decisions about workloads so far.
func (y *yard) decided(t testing.TB) (all []workload.Assignment) {
	t.Helper()
	for i := range y.computes {
		c, err := client.New[*workload.Assignment, *workload.AssignmentList](client.Cluster(y.config, fmt.Sprintf("root:shop%d", i)), fmt.Sprintf("root:shop%d", i), workload.GroupVersion.WithResource("assignments"))
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list.Items...)
	}
	return all
}

// BenchmarkTargets measures a server with 10, 100 and 1,000 physical clusters: its memory for an idle one
// and for a workload, the time from the creation of a Deployment to its object in a physical cluster, before
// and after a burst of Deployments, decisions in the burst, replicas that move when a cluster is drained, and
// the objects that a restart changes. The clusters are logical clusters of another server on the same machine.
// With 1,000 clusters the burst has 10,000 Deployments, else 500.
func BenchmarkTargets(b *testing.B) {
	for _, size := range []struct{ targets, burst int }{{10, 500}, {100, 500}, {1000, 10_000}} {
		b.Run(fmt.Sprint(size.targets), func(b *testing.B) {
			if size.targets > 100 && !isLong() {
				b.Skip("make physical runs it")
			}
			for b.Loop() {
				measureTargets(b, size.targets, size.burst)
			}
		})
	}
}

func measureTargets(b *testing.B, n, burst int) {
	began := time.Now()
	y := newYard(b, n)
	y.ready(b)
	b.ReportMetric(time.Since(began).Seconds(), "registered-s")
	idle := y.rests(b)
	y.consume(b)
	y.measureOnes(b, "empty")
	before := y.rests(b)
	y.measureBurst(b, burst)
	b.ReportMetric((y.rests(b)-before)/float64(burst)/1024, "KiB/workload")
	y.measureOnes(b, "full")
	b.ReportMetric(idle/(1<<20), "idle-MiB")
	y.measureDrain(b)
	y.measureRestart(b)
}

// measureOnes creates Deployments one after the other.
func (y *yard) measureOnes(b *testing.B, name string) {
	b.Helper()
	var took []time.Duration
	for i := range measured {
		at := time.Now()
		took = append(took, y.create(b, fmt.Sprintf("%s-%d", name, i), i))
		if took[i] > 300*time.Millisecond {
			b.Logf("%s %s-%d took %v", at.Format("15:04:05.000"), name, i, took[i])
		}
	}
	b.ReportMetric(percentile(took, 50), name+"-p50-ms")
	b.ReportMetric(percentile(took, 99), name+"-p99-ms")
}

// measureBurst creates Deployments at once.
func (y *yard) measureBurst(b *testing.B, burst int) {
	b.Helper()
	had, began := len(y.decided(b)), time.Now()
	var creating sync.WaitGroup
	var failed error
	creating.Go(func() {
		failed = side(burst, func(i int) error { return y.submit(b.Context(), fmt.Sprintf("burst-%d", i), i) })
	})
	var decided time.Duration
	arrived := 0
	for arrived < burst || decided == 0 {
		select {
		case <-y.farm.seen:
			arrived++
		case <-time.After(20 * time.Millisecond):
		}
		if decided == 0 && arrived%(burst/10) == 0 && len(y.decided(b))-had >= burst {
			decided = time.Since(began)
		}
		if time.Since(began) > time.Duration(burst)*patience/100 {
			b.Fatalf("%d of %d objects arrived", arrived, burst)
		}
	}
	creating.Wait()
	if failed != nil {
		b.Fatal(failed)
	}
	b.ReportMetric(float64(burst)/decided.Seconds(), "decisions/s")
	b.ReportMetric(float64(burst)/time.Since(began).Seconds(), "objects/s")
}

// measureDrain drains one physical cluster, and counts the replicas that are elsewhere then.
func (y *yard) measureDrain(b *testing.B) {
	b.Helper()
	place := func() map[string]string {
		at := map[string]string{}
		for _, a := range y.decided(b) {
			for _, t := range a.Spec.Targets {
				if t.Phase != workload.Removing {
					at[a.Annotations["kcp.io/cluster"]+"/"+a.Name] += t.Key + " "
				}
			}
		}
		return at
	}
	before := place()
	targets, err := y.at(b, "root:"+y.computes[0]).Resource(synctargets()).Get(b.Context(), "t1", metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	key := fmt.Sprint(targets.Object["status"].(map[string]any)["key"])
	least := 0
	for _, at := range before {
		if strings.Contains(at, key) {
			least++
		}
	}
	must(b, "workload", "drain", "t1", "-w", ":root:"+y.computes[0])
	moved := 0
	for of, at := range place() {
		if strings.TrimSpace(at) != strings.TrimSpace(before[of]) {
			moved++
		}
	}
	if moved != least {
		b.Errorf("%d replicas moved, %d had to", moved, least)
	}
	b.ReportMetric(float64(moved), "moved")
}

// measureRestart restarts the server, and counts the objects in physical clusters that changed.
func (y *yard) measureRestart(b *testing.B) {
	b.Helper()
	before := y.farm.revisions(b)
	y.Stop()
	began := time.Now()
	y.start(b)
	for i := range y.consumers {
		y.create(b, fmt.Sprintf("late-%d", i), i) // the server has looked at everything when they run
	}
	b.ReportMetric(time.Since(began).Seconds(), "restarted-s")
	y.ready(b)
	after, writes := y.farm.revisions(b), 0
	maps.DeleteFunc(after, func(of, _ string) bool { return strings.Contains(of, "/late-") })
	for of, revision := range before {
		if after[of] != revision {
			writes++
		}
	}
	if writes > 0 {
		b.Errorf("%d objects changed", writes)
	}
	b.ReportMetric(float64(writes), "writes-after-restart")
}

// BenchmarkAgent measures an agent with 200 workloads: its memory, and its processor time while nothing
// changes.
func BenchmarkAgent(b *testing.B) {
	for b.Loop() {
		measureAgent(b)
	}
}

func measureAgent(b *testing.B) {
	const workloads = 200
	f := newFarm(b)
	kubeconfig, err := f.cluster(b.Context(), "east")
	if err != nil {
		b.Fatal(err)
	}
	y := &yard{process: startProcess(b, "kcp"), farm: f, computes: []string{"compute0"}}
	b.Setenv("KUBECONFIG", filepath.Join(y.dir, "admin.kubeconfig"))
	must(b, "ws", "create", ":root:compute0")
	agent := y.startAgent(b, kubeconfig)
	y.ready(b)
	y.consume(b)
	for i := range workloads - 1 {
		if err := y.submit(b.Context(), fmt.Sprintf("web-%d", i), 0); err != nil {
			b.Fatal(err)
		}
	}
	for range workloads - 1 {
		<-f.seen
	}
	for _, of := range []struct {
		name string
		*process
	}{{"agent", agent}, {"server", y.process}} {
		b.ReportMetric(of.rests(b)/(1<<20), of.name+"-MiB")
	}
	before, err := agent.CPU()
	if err != nil {
		b.Fatal(err)
	}
	const idle = 30 * time.Second
	<-time.After(idle)
	after, err := agent.CPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric((after-before).Seconds()/idle.Seconds()*1000, "agent-mCPU")
}

// startAgent starts the agent of a physical cluster with its manifest.
func (y *yard) startAgent(t testing.TB, kubeconfig []byte) *process {
	t.Helper()
	p := &process{binary: kcpProgram(t), dir: t.TempDir()}
	bootstrap, physical := filepath.Join(p.dir, "bootstrap"), filepath.Join(p.dir, "physical")
	err := errors.Join(os.WriteFile(bootstrap, y.bootstrap(t, "t0"), 0o600), os.WriteFile(physical, kubeconfig, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if p.Process, err = stock.Launch(p.dir, "agent", p.binary, "agent", "--bootstrap-kubeconfig", bootstrap, "--kubeconfig", physical, "--namespace", "default"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop() })
	return p
}
