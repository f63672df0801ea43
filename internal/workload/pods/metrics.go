package pods

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/metrics"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/answers"
)

// usages serves the usage of pods.
type usages struct {
	pods *Pods
	rest.TableConvertor
}

var _ interface {
	rest.Storage
	rest.Scoper
	rest.Lister
	rest.Getter
	rest.SingularNameProvider
} = &usages{}

// New implements [rest.Storage].
func (*usages) New() runtime.Object { return &metrics.PodMetrics{} }

// NewList implements [rest.Lister].
func (*usages) NewList() runtime.Object { return &metrics.PodMetricsList{} }

// Destroy implements [rest.Storage].
func (*usages) Destroy() {}

// NamespaceScoped implements [rest.Scoper].
func (*usages) NamespaceScoped() bool { return true }

// GetSingularName implements [rest.SingularNameProvider].
func (*usages) GetSingularName() string { return "pod" }

// List implements [rest.Lister].
func (u *usages) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	leave, err := u.pods.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, err
	}
	defer leave()
	w, err := u.pods.parts(ctx)
	if err != nil {
		return nil, err
	}
	which, kept := selects(o), u.pods.results(w)
	defer kcp.WhenServed(ctx, kept.End)
	out := &metrics.PodMetricsList{}
	var mu sync.Mutex
	failed := u.pods.each(ctx, w.parts, func(ctx context.Context, of *part) error {
		c, err := u.pods.beginFor(ctx, of, kept)
		if err != nil {
			return err
		}
		defer c.end()
		found, err := c.usage(ctx, metav1.ListOptions{LabelSelector: which.push.LabelSelector})
		if err != nil {
			return err
		}
		c.budget.Stay()
		mu.Lock()
		defer mu.Unlock()
		for i := range found {
			m, err := of.Usage(&found[i])
			if err != nil {
				return of.unreachable(ctx, err)
			}
			// The labels of the pod were matched by the physical cluster.
			if ok := which.Field.Empty() || which.Field.Matches(namesOf{m}); ok && which.matchesLocation(of.Location) {
				out.Items = append(out.Items, *m)
			}
		}
		return nil
	})
	u.pods.warn(ctx, w, failed, "pods")
	if len(w.parts) > 0 && len(failed) == len(w.parts) {
		return nil, apierrors.NewServiceUnavailable("no physical cluster of the workloads tells the usage of pods: ask its owner to install metrics-server, or try again if it does not answer now")
	}
	slices.SortFunc(out.Items, func(a, b metrics.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// Get implements [rest.Getter].
func (u *usages) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	leave, err := u.pods.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, err
	}
	defer leave()
	c, pod, err := u.pods.find(ctx, name)
	if err != nil {
		return nil, err
	}
	defer c.sent(ctx)
	c.budget.Release() // of the pod, the name is enough
	ctx, cancel := context.WithTimeout(ctx, u.pods.Deadline)
	defer cancel()
	found, err := c.usage(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	for i := range found {
		if found[i].Name == pod.Name {
			m, err := c.Usage(&found[i])
			if err != nil {
				return nil, err
			}
			m.Name = name
			return m, nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("pods"), name)
}

// usage asks the Metrics API of a target.
func (c *call) usage(ctx context.Context, o metav1.ListOptions) ([]metricsv1beta1.PodMetrics, error) {
	if !c.exists {
		return nil, nil
	}
	c.budget.Pages()
	through := answers.Limited{Through: c.link.Through, Budget: c.budget}
	client, err := metricsclient.NewForConfigAndClient(&clientrest.Config{Host: c.link.Server.String(), QPS: -1}, &http.Client{Transport: through})
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	list, err := client.PodMetricses(c.Physical).List(ctx, o)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err):
		return nil, &refusal{"the physical cluster of Location \"" + c.Location + "\" has no Metrics API"}
	case err != nil:
		return nil, c.unreachable(ctx, err)
	case len(list.Items) > mostPods:
		return nil, &refusal{"Location \"" + c.Location + "\" has too many pods of a namespace; their usage is not listed"}
	}
	weight := int64(0)
	for i := range list.Items {
		weight += 2 * answers.MemoryOf(&list.Items[i]) // as it is, and as the tenant sees it
	}
	if err := c.budget.Keep(weight); err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return list.Items, nil
}

// namesOf are the fields of a usage that can be selected.
type namesOf struct{ *metrics.PodMetrics }

// Has implements [fields.Fields].
func (namesOf) Has(field string) bool {
	return field == "metadata.name" || field == "metadata.namespace"
}

// Get implements [fields.Fields].
func (m namesOf) Get(field string) string {
	switch field {
	case "metadata.name":
		return m.Name
	case "metadata.namespace":
		return m.Namespace
	}
	return ""
}
