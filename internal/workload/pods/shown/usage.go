package shown

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Usage returns the usage of a pod as the tenant sees it.
func (o *Origin) Usage(m *metricsv1beta1.PodMetrics) (*metrics.PodMetrics, error) {
	out := &metrics.PodMetrics{}
	if err := metricsv1beta1.Convert_v1beta1_PodMetrics_To_metrics_PodMetrics(m, out, nil); err != nil {
		return nil, err
	}
	out.ObjectMeta = metav1.ObjectMeta{Name: m.Name, Namespace: o.Namespace, CreationTimestamp: m.CreationTimestamp, Labels: map[string]string{LocationLabel: o.Location}}
	return out, nil
}
