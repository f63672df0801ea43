package kinds_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkDeployments compares requests for bound Deployments with those for config maps, which
// every cluster has.
func BenchmarkDeployments(b *testing.B) {
	c := consumer(b, provider(b, "deployments.apps"))
	web, maps := typed(b, c).AppsV1().Deployments("default"), typed(b, c).CoreV1().ConfigMaps("default")
	const many = 500
	for i := range many {
		if _, err := web.Create(b.Context(), deployment(fmt.Sprint("web-", i)), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		if _, err := maps.Create(b.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i)}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	made := 0
	for _, of := range []struct {
		name string
		do   func(name string) error
	}{
		{"create", func(name string) error {
			return second(web.Create(b.Context(), deployment(name), metav1.CreateOptions{}))
		}},
		{"create-configmap", func(name string) error {
			return second(maps.Create(b.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
		}},
		{"get", func(string) error { return second(web.Get(b.Context(), "web-1", metav1.GetOptions{})) }},
		{"get-configmap", func(string) error { return second(maps.Get(b.Context(), "web-1", metav1.GetOptions{})) }},
		{"status", func(name string) error {
			return second(web.Patch(b.Context(), "web-1", types.MergePatchType, fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Available","status":"True","reason":%q}]}}`, name), metav1.PatchOptions{}, "status"))
		}},
		{"list-500", func(string) error { return second(web.List(b.Context(), metav1.ListOptions{Limit: many})) }},
		{"list-configmaps-500", func(string) error { return second(maps.List(b.Context(), metav1.ListOptions{Limit: many})) }},
	} {
		b.Run(of.name, func(b *testing.B) {
			for b.Loop() {
				made++
				if err := of.do(fmt.Sprint("made-", made)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
