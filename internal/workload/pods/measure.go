package pods

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/answers"
)

// An Area is where the pods of a namespace may run.
type Area struct {
	Cluster, Compute kcp.ClusterName
	Namespace        string
	Assignments      []workload.Assignment // of the namespace
	Targets          []workload.SyncTarget // that the Assignments name
}

// A Measurement is what targets report about pods of one namespace.
type Measurement struct {
	// Pods have what decisions about their number need.
	Pods []*corev1.Pod
	// Usage is that of the pods whose target knows it.
	Usage []metricsv1beta1.PodMetrics
	// Unanswered are the keys of the targets whose pods are missing.
	Unanswered []string
	// Unmeasured says why no target knows the usage of its pods; nil if one does.
	Unmeasured error
}

// MostMeasured is the maximum of pods of a [Measurement].
const MostMeasured = 2 * mostPods

// Measure asks the targets of an area for the pods that a selector selects, and for their usage. It does not
// wait for a target longer than the deadline. The caller limits how often it is called at the same time.
func (p *Pods) Measure(ctx context.Context, a Area, selector labels.Selector) (*Measurement, error) {
	w := &workspace{cluster: a.Cluster, compute: a.Compute, namespace: a.Namespace}
	w.find(a.Assignments, a.Targets)
	out := &Measurement{}
	o := metav1.ListOptions{LabelSelector: selector.String()}
	var mu sync.Mutex
	measured := 0
	kept := p.results(w)
	defer kept.End()
	failed := p.each(ctx, w.parts, func(ctx context.Context, of *part) error {
		c, err := p.beginFor(ctx, of, kept)
		if err != nil {
			return err
		}
		defer c.end()
		var found []*corev1.Pod
		names := map[string]string{} // in the workspace, by those at the target
		_, err = c.list(ctx, o, func(page []corev1.Pod) (weight int64, err error) {
			all, weight := of.count(page, names)
			found = append(found, all...)
			return weight, nil
		})
		if err != nil {
			return err
		}
		usage, unmeasured := c.usage(ctx, o)
		mu.Lock()
		defer mu.Unlock()
		if len(out.Pods)+len(found) > MostMeasured {
			return &refusal{fmt.Sprintf("more than %d pods are selected", MostMeasured)}
		}
		c.budget.Stay()
		out.Pods = append(out.Pods, found...)
		for _, u := range usage {
			if name := names[u.Name]; name != "" {
				u.Name, u.Namespace = name, of.Namespace
				out.Usage = append(out.Usage, u)
			}
		}
		if unmeasured == nil {
			measured++
		} else {
			out.Unmeasured = unmeasured
		}
		return nil
	})
	for of, err := range failed {
		out.Unanswered, out.Unmeasured = append(out.Unanswered, of.Key), err
	}
	switch {
	case measured > 0:
		out.Unmeasured = nil
	case out.Unmeasured == nil:
		out.Unmeasured = apierrors.NewServiceUnavailable("no physical cluster runs the pods")
	}
	return out, nil
}

// count returns what decisions need of some pods, and its weight. It adds their names in the workspace by those at the
// target.
func (p *part) count(page []corev1.Pod, names map[string]string) (all []*corev1.Pod, weight int64) {
	for i := range page {
		there := page[i].Name
		p.Show(&page[i])
		names[there] = page[i].Name
		one := Counted(&page[i])
		all = append(all, one)
		weight += answers.MemoryOf(one)
	}
	return all, weight
}

// Counted returns a pod with what decisions about the number of pods need: its labels, its requests, and whether it
// is ready.
func Counted(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels, DeletionTimestamp: p.DeletionTimestamp},
		Spec:       corev1.PodSpec{Containers: requests(p.Spec.Containers), InitContainers: requests(p.Spec.InitContainers), Resources: p.Spec.Resources},
		Status:     corev1.PodStatus{Phase: p.Status.Phase, StartTime: p.Status.StartTime},
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	return out
}

func requests(of []corev1.Container) (all []corev1.Container) {
	for _, c := range of {
		all = append(all, corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return all
}
