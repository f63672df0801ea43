package pods

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
)

// Resource is the resource that this package serves.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// MetricsResource is the resource of the usage of pods, which this package serves, too.
func MetricsResource() schema.GroupVersionResource {
	return metricsv1beta1.SchemeGroupVersion.WithResource("pods")
}

// sources are what the pods of a workspace are found from.
type sources struct {
	server  *kcp.Server
	view    func(home kcp.ClusterName, export string) (*rest.Config, error)
	targets *client.Client[*workload.SyncTarget, *workload.SyncTargetList]
}

// computeOf returns the compute workspace whose export gives pods to a workspace, empty if there is
// none.
func (s *sources) computeOf(c kcp.ClusterName) kcp.ClusterName {
	home, export, ok := s.server.Bound(c, Resource().GroupResource())
	if !ok || export != workload.KubernetesExport {
		return ""
	}
	return home
}

// keys returns the keys of the SyncTargets of a compute workspace. There are none if it does not exist any more, or
// without the export by which consumers have pods.
func (s *sources) keys(ctx context.Context, compute kcp.ClusterName) (map[string]bool, error) {
	keys := map[string]bool{}
	in, err := s.targets.In(string(compute))
	if err != nil {
		return nil, err
	}
	all, err := in.List(ctx, metav1.ListOptions{})
	if err == nil {
		err = s.exported(ctx, compute)
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // there is no view of that name, or no such cluster in it
		return keys, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range all.Items {
		keys[keyOf(compute, &all.Items[i])] = true
	}
	return keys, nil
}

// exported returns an error if the export of a compute workspace cannot be used.
func (s *sources) exported(ctx context.Context, compute kcp.ClusterName) error {
	cfg, err := s.view(compute, workload.KubernetesExport)
	if err != nil {
		return err
	}
	of, err := client.New[*workload.Assignment, *workload.AssignmentList](cfg, "*", workload.GroupVersion.WithResource("assignments"))
	if err != nil {
		return err
	}
	_, err = of.List(ctx, metav1.ListOptions{Limit: 1})
	return err
}
