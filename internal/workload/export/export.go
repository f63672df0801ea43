// Package export offers the APIs of workloads: SyncTargets and Locations to every user, and the kinds that run on
// physical clusters to the consumers of a compute workspace. It hides what the exports contain, whether one still
// exists, and how consumers get rid of finalizers and Assignments whose export is gone.
package export

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
)

func apiExports() schema.GroupVersionResource { return apis.GroupVersion.WithResource("apiexports") }

func apiBindings() schema.GroupVersionResource { return apis.GroupVersion.WithResource("apibindings") }

// Exports knows the exports of all compute workspaces. The cache that it embeds is filled with Run.
type Exports struct {
	*kcp.Kind[*apis.APIExport]
	server *kcp.Server
}

// New returns Exports with an empty cache.
func New(s *kcp.Server) (*Exports, error) {
	cfg, err := s.Own("*")
	if err != nil {
		return nil, err
	}
	all, err := client.New[*apis.APIExport, *apis.APIExportList](cfg, "*", apiExports())
	if err != nil {
		return nil, err
	}
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, workload.KubernetesExport).String()
	k := kcp.NewKind("apiexports", &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = named
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = named
			return all.Watch(ctx, o)
		},
	}, func(e *apis.APIExport) *apis.APIExport {
		return &apis.APIExport{ObjectMeta: metav1.ObjectMeta{Name: e.Name, UID: e.UID, ResourceVersion: e.ResourceVersion, DeletionTimestamp: e.DeletionTimestamp,
			Annotations: map[string]string{core.ClusterAnnotation: e.Annotations[core.ClusterAnnotation]}}}
	})
	return &Exports{k, s}, nil
}

// Exists reports whether a compute workspace has its export, and that is not being deleted. The cache may be late:
// only the server knows that there is none.
func (e *Exports) Exists(ctx context.Context, compute kcp.ClusterName) (bool, error) {
	if of := e.Get(kcp.Key{Cluster: compute, Name: workload.KubernetesExport}); of != nil && of.DeletionTimestamp == nil {
		return true, nil
	}
	home, err := e.server.Own(string(compute))
	if err != nil {
		return false, err
	}
	exports, err := client.New[*apis.APIExport, *apis.APIExportList](home, string(compute), apiExports())
	if err != nil {
		return false, err
	}
	of, err := exports.Get(ctx, workload.KubernetesExport, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && of.DeletionTimestamp == nil, err
}
