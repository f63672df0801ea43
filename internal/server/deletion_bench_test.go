package server_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// BenchmarkDeleteTree deletes a workspace with a thousand or more descendants, and reports
// the time and the remaining keys.
func BenchmarkDeleteTree(b *testing.B) {
	for _, shape := range []struct{ branches, leaves int }{{10, 100}, {1, 3000}} {
		b.Run(fmt.Sprintf("%dx%d", shape.branches, shape.leaves), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				deleteTree(b, shape.branches, shape.leaves)
				b.StartTimer()
			}
		})
	}
}

func deleteTree(b *testing.B, branches, leaves int) {
	s := start(b, b.TempDir())
	defer s.Close()
	warm(b, s)
	before, heap := counts(b, s), liveHeap()
	total := plant(b, s, "top", branches, leaves)
	full := liveHeap()
	cpu := processTime()
	b.StartTimer()
	began := time.Now()
	root := s.InProcess(string(cluster.Root), server.System())
	any, err := dynamic.NewForConfig(root)
	if err != nil {
		b.Fatal(err)
	}
	if err := any.Resource(workspaces).Delete(b.Context(), "top", metav1.DeleteOptions{}); err != nil {
		b.Fatal(err)
	}
	whenFewer(b, s, ownClusters+1)
	b.StopTimer()
	each := float64(total) / 1000
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000/float64(total), "ms/workspace")
	b.ReportMetric((processTime()-cpu).Seconds()/each, "cpu-ms/workspace")
	b.ReportMetric(float64(full-heap)/float64(total)/1024, "KB-heap-before")
	if p := os.Getenv("HP"); p != "" {
		f, _ := os.Create(p)
		_ = pprof.WriteHeapProfile(f)
		_ = f.Close()
	}
	b.ReportMetric(float64(liveHeap()-heap)/float64(total)/1024, "KB-heap-left")
	if d := differences(before, counts(b, s)); d != "" {
		b.Errorf("left in etcd:\n%s", d)
	}
}

// warm creates and deletes a workspace, so that all caches exist.
func warm(b *testing.B, s *running) {
	plant(b, s, "warm", 1, 1)
	if err := s.Remove(b.Context(), top(b, s, "warm")); err != nil {
		b.Fatal(err)
	}
}

func top(b *testing.B, s *running, name string) cluster.Name {
	any, err := dynamic.NewForConfig(s.InProcess(string(cluster.Root), server.System()))
	if err != nil {
		b.Fatal(err)
	}
	ws, err := any.Resource(workspaces).Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return clusterOf(ws)
}

// plant creates a tree with eight clients, and returns the number of its workspaces.
func plant(b *testing.B, s *running, name string, branches, leaves int) int {
	create := func(in cluster.Name, name string) cluster.Name {
		any, err := dynamic.NewForConfig(s.InProcess(string(in), server.System()))
		if err != nil {
			b.Error(err)
			return ""
		}
		ws, err := any.Resource(workspaces).Create(b.Context(), workspace(name), metav1.CreateOptions{})
		if err != nil {
			b.Error(err)
			return ""
		}
		return clusterOf(ws)
	}
	above := create(cluster.Root, name)
	var all sync.WaitGroup
	turn := make(chan struct{}, 8)
	for i := range branches {
		all.Go(func() {
			in := create(above, fmt.Sprintf("b%d", i))
			for j := range leaves {
				turn <- struct{}{}
				create(in, fmt.Sprintf("l%d", j))
				<-turn
			}
		})
	}
	all.Wait()
	return 1 + branches + branches*leaves
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// processTime returns the processor time of this process.
func processTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for this process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
