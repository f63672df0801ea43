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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// BenchmarkPods measures requests for the pods of a workspace that runs in two physical clusters.
func BenchmarkPods(b *testing.B) {
	w := newWorld(b, "east", "west")
	w.compute(b, "compute", "east", "west")
	s := w.shop(b, "shop", "compute")
	s.create(b, "web", 100)
	s.rolledOut(b, "web")
	all, err := s.CoreV1().Pods("default").List(b.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 100 {
		b.Fatalf("%d pods, %v", len(all.Items), err)
	}
	measure := func(name string, do func() error) {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if err := do(); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
	measure("list of 100", func() error { _, err := s.CoreV1().Pods("default").List(b.Context(), metav1.ListOptions{}); return err })
	measure("get", func() error {
		_, err := s.CoreV1().Pods("default").Get(b.Context(), all.Items[0].Name, metav1.GetOptions{})
		return err
	})
	measure("log", func() error {
		_, err := s.CoreV1().Pods("default").GetLogs(all.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(b.Context())
		return err
	})
	measure("review", func() error {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "scheduling.kcp.io/v1alpha1", "kind": "PlacementReview", "metadata": map[string]any{"name": "x"}}}
		_, err := s.dynamic.Resource(reviews()).Create(b.Context(), o, metav1.CreateOptions{})
		return err
	})
}
