package server_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/server"
)

// BenchmarkAdmission creates config maps: without webhooks and policies, beside a webhook that does
// not match, and with ten policies that allow them.
func BenchmarkAdmission(b *testing.B) {
	for _, c := range []struct {
		name   string
		having func(context.Context, kubernetes.Interface) error
	}{
		{"none", func(context.Context, kubernetes.Interface) error { return nil }},
		{"webhook", havingWebhook},
		{"policies", havingPolicies},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := start(b, b.TempDir())
			defer s.Close()
			kube, err := kubernetes.NewForConfig(s.InProcess("root", server.System()))
			if err != nil {
				b.Fatal(err)
			}
			if err := c.having(b.Context(), kube); err != nil {
				b.Fatal(err)
			}
			var n atomic.Int64
			cpu := processTime()
			b.SetParallelism(4)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if err := configMapIn(kube, "default", fmt.Sprint("x", n.Add(1))); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((processTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

func havingWebhook(ctx context.Context, kube kubernetes.Interface) error {
	none := admissionregistrationv1.SideEffectClassNone
	_, err := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "secrets"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "a.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://a.invalid")}, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"}, Rules: []admissionregistrationv1.RuleWithOperations{matching("", "secrets", admissionregistrationv1.Create)},
		}},
	}, metav1.CreateOptions{})
	return err
}

func havingPolicies(ctx context.Context, kube kubernetes.Interface) error {
	for i := range 10 {
		policy, binding := policyThat(fmt.Sprint("p", i), "object.metadata.name.size() < 100")
		if _, err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
