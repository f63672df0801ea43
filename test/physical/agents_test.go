//go:build unix

package physical

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/internal/cli"
	"github.com/unforked/kcp/internal/workload/agent"
)

// BenchmarkAgents measures what agents cost a server that they are connected to: memory, goroutines and processor time
// for an idle one, and memory for a workload. The physical clusters are logical clusters of another server. The
// agents run in this process.
func BenchmarkAgents(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			if n > 10 && !isLong() {
				b.Skip("make physical runs it")
			}
			for b.Loop() {
				measureAgents(b, n)
			}
		})
	}
}

func measureAgents(b *testing.B, n int) {
	f := newFarm(b)
	y := &yard{process: startProcess(b, "kcp"), farm: f, computes: []string{"compute0"}}
	b.Setenv("KUBECONFIG", filepath.Join(y.dir, "admin.kubeconfig"))
	must(b, "ws", "create", ":root:compute0")
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	b.Cleanup(func() { cancel(); running.Wait() })
	start := func(i int) {
		physical, err := f.cluster(b.Context(), fmt.Sprint("t", i))
		if err != nil {
			b.Fatal(err)
		}
		o := agent.Options{Bootstrap: y.bootstrap(b, fmt.Sprint("t", i)), Namespace: "default", Replica: "one"}
		if o.Physical, err = clientcmd.RESTConfigFromKubeConfig(physical); err != nil {
			b.Fatal(err)
		}
		running.Go(func() {
			if err := agent.Run(ctx, o); err != nil {
				b.Error(err)
			}
		})
	}
	start(0)
	y.ready(b)
	y.consume(b) // the first workload makes the caches, and the server then looks at all kinds
	one := y.costs(b)
	for i := 1; i < n; i++ {
		start(i)
	}
	y.ready(b)
	all := y.costs(b)
	b.ReportMetric(one.resident/(1<<20), "one-MiB")
	b.ReportMetric((all.resident-one.resident)/float64(n-1)/1024, "KiB/agent")
	b.ReportMetric((all.live-one.live)/float64(n-1)/1024, "live-KiB/agent")
	b.ReportMetric((all.stacks-one.stacks)/float64(n-1)/1024, "stack-KiB/agent")
	b.ReportMetric((all.goroutines-one.goroutines)/float64(n-1), "goroutines/agent")
	b.ReportMetric((all.processor-one.processor)/float64(n-1), "mCPU/agent")
	const workloads = 500
	for i := range workloads {
		if err := y.submit(b.Context(), fmt.Sprintf("web-%d", i), 0); err != nil {
			b.Fatal(err)
		}
	}
	for range workloads {
		<-f.seen
	}
	y.quiet(b)
	full := y.costs(b)
	b.ReportMetric((full.resident-all.resident)/workloads/1024, "KiB/workload")
	b.ReportMetric((full.live-all.live)/workloads/1024, "live-KiB/workload")
	b.ReportMetric(full.processor, "full-mCPU")
}

// bootstrap registers a physical cluster in pull mode, and returns the kubeconfig for the first connection of its agent.
func (y *yard) bootstrap(t testing.TB, target string) []byte {
	t.Helper()
	var manifest struct{ Items []corev1.Secret }
	var out, notes bytes.Buffer
	cmd := cli.KCP(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &notes})
	cmd.SetArgs([]string{"workload", "sync", target, "--mode", "Pull", "--image", "kcp:test", "-o", "yaml", "-w", ":root:" + y.computes[0]})
	if err := errors.Join(cmd.ExecuteContext(t.Context()), yaml.Unmarshal(out.Bytes(), &manifest)); err != nil {
		t.Fatalf("%v\n%s", err, notes.String())
	}
	i := slices.IndexFunc(manifest.Items, func(s corev1.Secret) bool { return s.Kind == "Secret" })
	if i < 0 {
		t.Fatal("the manifest has no Secret")
	}
	return manifest.Items[i].Data["kubeconfig"]
}

// costs are what a server uses.
type costs struct {
	resident, live, stacks float64 // bytes
	goroutines             float64
	processor              float64 // thousandths of a processor
}

// costs measures for half a minute.
func (y *yard) costs(b *testing.B) costs {
	b.Helper()
	c := costs{resident: y.rests(b)}
	before, err := y.CPU()
	if err != nil {
		b.Fatal(err)
	}
	const idle = 30 * time.Second
	<-time.After(idle)
	after, err := y.CPU()
	if err != nil {
		b.Fatal(err)
	}
	c.processor = (after - before).Seconds() / idle.Seconds() * 1000
	c.live = y.profile(b, "heap?gc=1&debug=1", `# HeapAlloc = (\d+)`)
	c.stacks = y.profile(b, "heap?debug=1", `# Stack = (\d+)`)
	c.goroutines = y.profile(b, "goroutine?debug=1", `total (\d+)`)
	return c
}

// profile returns a number in a profile of the server.
func (y *yard) profile(b *testing.B, path, number string) float64 {
	b.Helper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: filepath.Join(y.dir, "admin.kubeconfig")},
		&clientcmd.ConfigOverrides{CurrentContext: "shard-base"}).ClientConfig() // profiles are for operators
	if err != nil {
		b.Fatal(err)
	}
	root, err := rest.HTTPClientFor(config)
	if err != nil {
		b.Fatal(err)
	}
	defer root.CloseIdleConnections()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/debug/pprof/%s", y.port, path), nil)
	if err != nil {
		b.Fatal(err)
	}
	resp, err := root.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	found := regexp.MustCompile(number).FindSubmatch(text)
	if found == nil {
		b.Fatalf("%s: %.200s", resp.Status, text)
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// quiet waits until the statuses of all workloads are written.
func (y *yard) quiet(b *testing.B) {
	b.Helper()
	eventually(b, "all workloads are available", func() error {
		list, err := y.at(b, "root:shop0").Resource(deploymentsOf).List(b.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			if n, _, _ := unstructured.NestedInt64(o.Object, "status", "availableReplicas"); n == 0 {
				return fmt.Errorf("%s has the status %v", o.GetName(), o.Object["status"])
			}
		}
		return nil
	})
}
