package pods

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// An Area is where the pods of a namespace may run.
type Area struct {
	Cluster, Compute kcp.ClusterName
	Namespace        string
	Assignments      []workload.Assignment // of the namespace
	Targets          []workload.SyncTarget // that the Assignments name
}

// A Measurement is what targets tell about pods of one namespace.
type Measurement struct {
	Pods []*corev1.Pod
	// Usage is that of the pods whose target knows it.
	Usage []metricsv1beta1.PodMetrics
	// Unanswered are the keys of the targets whose pods are missing.
	Unanswered []string
	// Unmeasured says why no target knows the usage of its pods; nil if one does.
	Unmeasured error
}

// Measure asks the targets of an area for the pods that a selector selects, and for their usage. It does not
// wait for a target longer than the deadline.
func (p *Pods) Measure(ctx context.Context, a Area, selector labels.Selector) (*Measurement, error) {
	leave, err := p.limits.enter(reading(a.Cluster))
	if err != nil {
		return nil, err
	}
	defer leave()
	w := &workspace{cluster: a.Cluster, compute: a.Compute, namespace: a.Namespace, repeated: map[[2]string]bool{}, uids: map[[3]string]types.UID{}}
	w.find(a.Assignments, a.Targets)
	out := &Measurement{}
	o := metav1.ListOptions{LabelSelector: selector.String()}
	var mu sync.Mutex
	measured := 0
	s := &store{Pods: p}
	failed := s.each(ctx, w.parts, func(ctx context.Context, of *part) error {
		c, err := p.begin(ctx, of, true)
		if err != nil {
			return err
		}
		defer c.end()
		found, _, err := c.list(ctx, o)
		if err != nil {
			return err
		}
		usage, unmeasured := c.usage(ctx, o)
		names := map[string]string{} // in the workspace, by those at the target
		mu.Lock()
		defer mu.Unlock()
		for i := range found {
			one, there := &found[i], found[i].Name
			of.show(one)
			names[there] = one.Name
			out.Pods = append(out.Pods, one)
		}
		for _, u := range usage {
			if name := names[u.Name]; name != "" {
				u.Name, u.Namespace = name, of.namespace
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
		out.Unanswered, out.Unmeasured = append(out.Unanswered, of.key), err
	}
	switch {
	case measured > 0:
		out.Unmeasured = nil
	case out.Unmeasured == nil:
		out.Unmeasured = apierrors.NewServiceUnavailable("no physical cluster runs the pods")
	}
	return out, nil
}
