package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
)

// The view of a fleet ends with its export, which a user may delete, alone or with the compute workspace. The
// consumers keep their bindings and objects. So the server then removes the finalizers, Assignments and TargetStatuses
// in the workspaces of the consumers themselves. Otherwise, they would block the deletion of these objects for ever.

type exportKind = kcp.Kind[*apis.APIExport]

// sweepKey is the key of the work that looks for consumers whose export was deleted while no server led.
var sweepKey = kcp.Key{Cluster: root, Name: "sweep"}

func apiExports() schema.GroupVersionResource { return apis.GroupVersion.WithResource("apiexports") }

func apiBindings() schema.GroupVersionResource { return apis.GroupVersion.WithResource("apibindings") }

// exportsOf returns a cache of the exports of all compute workspaces.
func exportsOf(s *kcp.Server) (*exportKind, error) {
	cfg, err := s.Own("*")
	if err != nil {
		return nil, err
	}
	all, err := client.New[*apis.APIExport, *apis.APIExportList](cfg, "*", apiExports())
	if err != nil {
		return nil, err
	}
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, workload.KubernetesExport).String()
	return kcp.NewKind("apiexports", &cache.ListWatch{
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
			Annotations: map[string]string{clusterAnnotation: e.Annotations[clusterAnnotation]}}}
	}), nil
}

// exportChanged wakes the loops that depend on the export of a compute workspace.
func (m *manager) exportChanged() kcp.Source {
	return m.exports.Wakes(func(e *apis.APIExport) (keys []kcp.Key) {
		m.mu.Lock()
		wake := m.lead
		m.mu.Unlock()
		if wake != nil {
			wake(kcp.KeyOf(e))
		}
		for _, t := range m.targets.List(kcp.KeyOf(e).Cluster) {
			keys = append(keys, kcp.KeyOf(t))
		}
		return keys
	})
}

// exported reports whether a compute workspace has its export, and that is not being deleted. The cache may be late:
// only the server knows that there is none.
func (m *manager) exported(ctx context.Context, compute kcp.ClusterName) (bool, error) {
	if e := m.exports.Get(kcp.Key{Cluster: compute, Name: workload.KubernetesExport}); e != nil && e.DeletionTimestamp == nil {
		return true, nil
	}
	home, err := m.server.Own(string(compute))
	if err != nil {
		return false, err
	}
	exports, err := client.New[*apis.APIExport, *apis.APIExportList](home, string(compute), apiExports())
	if err != nil {
		return false, err
	}
	e, err := exports.Get(ctx, workload.KubernetesExport, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && e.DeletionTimestamp == nil, err
}

// bindings calls each with the APIBindings of consumers.
func (m *manager) bindings(ctx context.Context, selector labels.Selector, each func(*apis.APIBinding)) error {
	cfg, err := m.server.Own("*")
	if err != nil {
		return err
	}
	all, err := client.New[*apis.APIBinding, *apis.APIBindingList](cfg, "*", apiBindings())
	if err != nil {
		return err
	}
	o := metav1.ListOptions{LabelSelector: selector.String(), Limit: 500}
	for {
		page, err := all.List(ctx, o)
		if err != nil {
			return err
		}
		for i := range page.Items {
			b := &page.Items[i]
			if b.Spec.Reference.Export != nil && b.Spec.Reference.Export.Name == workload.KubernetesExport && slices.ContainsFunc(b.Status.BoundResources, func(r apis.BoundResource) bool { return resourceOf(r) == assignments().GroupResource() }) {
				each(b)
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return nil
		}
	}
}

func resourceOf(r apis.BoundResource) schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// sweep frees the consumers whose export is gone.
func (m *manager) sweep(ctx context.Context) error {
	computes := map[kcp.ClusterName]bool{}
	err := m.bindings(ctx, labels.Everything(), func(b *apis.APIBinding) { computes[kcp.ClusterName(b.Status.APIExportClusterName)] = true })
	var failed []error
	for compute := range computes {
		failed = append(failed, m.free(ctx, compute))
	}
	return errors.Join(append(failed, err)...)
}

// free removes what a fleet left in its consumers, if its export is gone or is being deleted.
func (m *manager) free(ctx context.Context, compute kcp.ClusterName) error {
	if compute == "" {
		return nil
	}
	if exported, err := m.exported(ctx, compute); exported || err != nil {
		return err
	}
	var consumers []*apis.APIBinding
	value := apis.ExportLabelValue(string(compute), workload.KubernetesExport)
	if err := m.bindings(ctx, labels.SelectorFromSet(labels.Set{apis.ExportLabel: value}), func(b *apis.APIBinding) { consumers = append(consumers, b) }); err != nil {
		return err
	}
	var failed []error
	freed := false
	for _, b := range consumers { // no consumer waits for another one
		some, err := m.freeConsumer(ctx, b)
		freed = freed || some
		if err != nil {
			failed = append(failed, fmt.Errorf("free %s of the compute workspace %s: %w", kcp.KeyOf(b).Cluster, compute, err))
		}
	}
	if len(failed) == 0 && freed {
		return kcp.After(soon) // a write of the scheduler may have come after the list
	}
	return errors.Join(failed...)
}

// freeConsumer removes the finalizers, then the TargetStatuses, then the Assignments from a consumer. An attempt
// that is interrupted leaves Assignments, which start a sweep. It reports whether there were any.
func (m *manager) freeConsumer(ctx context.Context, b *apis.APIBinding) (some bool, err error) {
	at := string(kcp.KeyOf(b).Cluster)
	cfg, err := m.server.Own(at)
	if err != nil {
		return false, err
	}
	in, err := metadata.NewForConfig(client.Cluster(cfg, at))
	if err != nil {
		return false, err
	}
	own := []schema.GroupVersionResource{targetStatuses(), assignments()}
	for _, r := range b.Status.BoundResources {
		if slices.ContainsFunc(own, func(of schema.GroupVersionResource) bool { return of.GroupResource() == resourceOf(r) }) {
			continue
		}
		for _, version := range r.StorageVersions {
			of := resourceOf(r).WithVersion(version)
			err := eachOf(ctx, in, of, func(o *metav1.PartialObjectMetadata) error {
				if !slices.Contains(o.Finalizers, workload.PlacedFinalizer) {
					return nil
				}
				some = true
				return unfinalize(ctx, in.Resource(of).Namespace(o.Namespace), o)
			})
			if err != nil {
				return some, err
			}
		}
	}
	for _, of := range own {
		err := eachOf(ctx, in, of, func(o *metav1.PartialObjectMetadata) error {
			some = true
			return ignoreGone(in.Resource(of).Namespace(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(o.UID))}))
		})
		if err != nil {
			return some, err
		}
	}
	return some, nil
}

// eachOf calls do with all objects of a resource in a consumer. It continues after errors, which it returns.
func eachOf(ctx context.Context, in metadata.Interface, of schema.GroupVersionResource, do func(*metav1.PartialObjectMetadata) error) error {
	o := metav1.ListOptions{Limit: 500}
	var failed error
	for {
		page, err := in.Resource(of).List(ctx, o)
		if err != nil {
			return errors.Join(failed, ignoreGone(err)) // the consumer does not serve this version
		}
		for i := range page.Items {
			if err := do(&page.Items[i]); err != nil {
				failed = err // one is enough: there may be many
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return failed
		}
	}
}

func unfinalize(ctx context.Context, in metadata.ResourceInterface, o *metav1.PartialObjectMetadata) error {
	left := slices.DeleteFunc(slices.Clone(o.Finalizers), func(of string) bool { return of == workload.PlacedFinalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion, "finalizers": left}})
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return ignoreGone(err)
}

// lose makes a fleet without its export decide nothing. It reaches no consumer.
func (f *fleet) lose() {
	f.mu.Lock()
	was := f.lost
	f.ending, f.lost = true, true
	f.mu.Unlock()
	if !was {
		f.reviewProfiles()
	}
}
