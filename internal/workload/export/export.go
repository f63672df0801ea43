// Package export offers the APIs of workloads: SyncTargets and Locations to every user, and the kinds that run on
// physical clusters to the consumers of a compute workspace. It hides what the exports contain, whether one still
// exists, what its deletion waits for, and how consumers get rid of finalizers and Assignments whose export is gone.
package export

import (
	"context"
	"slices"

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
	"github.com/unforked/kcp/internal/workload/objects"
)

func apiExports() schema.GroupVersionResource { return apis.GroupVersion.WithResource("apiexports") }

func apiBindings() schema.GroupVersionResource { return apis.GroupVersion.WithResource("apibindings") }

func named() string {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, workload.KubernetesExport).String()
}

// Exports knows the exports of all compute workspaces. The cache that it embeds is filled with Run.
type Exports struct {
	*kcp.Kind[*apis.APIExport]
	server *kcp.Server
}

// New returns Exports with an empty cache.
func New(s *kcp.Server) (*Exports, error) {
	found := &Exports{server: s}
	all, err := found.in("*")
	if err != nil {
		return nil, err
	}
	named := named()
	found.Kind = kcp.NewKind("apiexports", &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = named
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = named
			return all.Watch(ctx, o)
		},
	}, func(e *apis.APIExport) *apis.APIExport {
		return &apis.APIExport{ObjectMeta: metav1.ObjectMeta{Name: e.Name, UID: e.UID, ResourceVersion: e.ResourceVersion, DeletionTimestamp: e.DeletionTimestamp, Finalizers: e.Finalizers,
			Annotations: map[string]string{core.ClusterAnnotation: e.Annotations[core.ClusterAnnotation]}}}
	})
	return found, nil
}

// Exists reports whether a compute workspace has its export, and the server reaches consumers through it.
func (e *Exports) Exists(ctx context.Context, compute kcp.ClusterName) (bool, error) {
	of, err := e.Find(ctx, compute)
	return Serves(of), err
}

// Serves reports whether the server reaches consumers through an export, which may be nil. One that is being deleted
// serves until the physical clusters have removed the copies of all workloads.
func Serves(e *apis.APIExport) bool { return e != nil && (e.DeletionTimestamp == nil || held(e)) }

// Ending reports whether an export, which may be nil, is being deleted and waits for the physical clusters.
func Ending(e *apis.APIExport) bool { return e != nil && e.DeletionTimestamp != nil && held(e) }

func held(e *apis.APIExport) bool { return slices.Contains(e.Finalizers, workload.InUseFinalizer) }

// Find returns the export of a compute workspace, nil if there is none. The cache may be late: only the server knows
// that there is none, or that it is being deleted.
func (e *Exports) Find(ctx context.Context, compute kcp.ClusterName) (*apis.APIExport, error) {
	if of := e.Get(kcp.Key{Cluster: compute, Name: workload.KubernetesExport}); of != nil && of.DeletionTimestamp == nil {
		return of, nil
	}
	in, err := e.in(compute)
	if err != nil {
		return nil, err
	}
	of, err := in.Get(ctx, workload.KubernetesExport, metav1.GetOptions{})
	if err != nil {
		return nil, objects.IgnoreGone(err)
	}
	return of, nil
}

// in returns a client for the exports of a logical cluster, or of all ("*").
func (e *Exports) in(c kcp.ClusterName) (*client.Client[*apis.APIExport, *apis.APIExportList], error) {
	cfg, err := e.server.Own(string(c))
	if err != nil {
		return nil, err
	}
	return client.New[*apis.APIExport, *apis.APIExportList](cfg, string(c), apiExports())
}
