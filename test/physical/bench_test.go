//go:build unix

package physical

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkCreate measures the time from the creation of a Deployment in a workspace until the physical
// cluster sends its object to a watch.
func BenchmarkCreate(b *testing.B) {
	w := newWorld(b, "east")
	w.compute(b, "compute", "east")
	s := w.shop(b, "shop", "compute")
	s.create(b, "first", 1) // makes the namespace
	s.rolledOut(b, "first")
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	changes, err := w.clusters["east"].AppsV1().Deployments("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	seen := make(chan string, 1000)
	var watching sync.WaitGroup
	watching.Go(func() {
		for e := range changes.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type == "ADDED" {
				seen <- d.Name
			}
		}
	})
	defer watching.Wait()
	defer changes.Stop()
	<-seen // the first
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		name, began := fmt.Sprintf("web-%d", n), time.Now()
		s.create(b, name, 1)
		for got := ""; got != name; {
			got = <-seen
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
