package server_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/unforked/kcp/internal/server"
)

// BenchmarkQuota creates config maps without a quota, with one, and with a write of the
// quota's status before each creation, as the admission plugin of Kubernetes makes for each
// batch of concurrent requests.
func BenchmarkQuota(b *testing.B) {
	for _, kind := range []string{"none", "quota", "status"} {
		b.Run(kind, func(b *testing.B) {
			s := start(b, b.TempDir())
			defer s.Close()
			kube, err := kubernetes.NewForConfig(s.InProcess("root", server.System()))
			if err != nil {
				b.Fatal(err)
			}
			quotas := kube.CoreV1().ResourceQuotas("default")
			if kind == "quota" {
				if _, err := quotas.Create(b.Context(), quotaOf("q", "count/configmaps", "100000000"), metav1.CreateOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			if kind == "status" { // of nothing that is created here
				if _, err := quotas.Create(b.Context(), quotaOf("q", "pods", "1"), metav1.CreateOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			var n atomic.Int64
			var one sync.Mutex // concurrent writes would conflict
			count := func(i int64) error {
				one.Lock()
				defer one.Unlock()
				return retry.RetryOnConflict(retry.DefaultRetry, func() error { // with the loop of the server
					q, err := quotas.Get(b.Context(), "q", metav1.GetOptions{})
					if err != nil {
						return err
					}
					q.Status.Used = quotaOf("", "count/configmaps", fmt.Sprint(i)).Spec.Hard
					_, err = quotas.UpdateStatus(b.Context(), q, metav1.UpdateOptions{})
					return err
				})
			}
			cpu := processTime()
			b.SetParallelism(4)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					i := n.Add(1)
					if kind == "status" {
						if err := count(i); err != nil {
							b.Error(err)
							return
						}
					}
					if err := configMapIn(kube, "default", fmt.Sprint("x", i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((processTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}
