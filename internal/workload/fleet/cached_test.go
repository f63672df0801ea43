package fleet

import (
	"context"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A store is what the caches of a fleet have.
type store struct {
	assignments workload.AssignmentList
	reports     workload.TargetStatusList
	objects     map[string][]unstructured.Unstructured // by resource
	targets     []place.Target
}

// open returns a fleet without a server, with full caches.
func (s store) open(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{manager: &manager{}, spans: map[string][]span{}, expected: map[string][]expectation{}}
	f.placements = filled[*scheduling.Placement](&scheduling.PlacementList{})
	f.assignments = filled[*workload.Assignment](&s.assignments)
	f.reports = filled[*workload.TargetStatus](&s.reports)
	if err := f.index(); err != nil {
		t.Fatal(err)
	}
	f.kinds.fleet = f
	for _, p := range profile.Shipped() {
		k := &kind{Profile: p, objects: filled[*unstructured.Unstructured](&unstructured.UnstructuredList{Items: s.objects[p.Resource]})}
		for index, values := range map[string]func(*unstructured.Unstructured) []string{
			byRef: func(o *unstructured.Unstructured) (keys []string) {
				for _, id := range refsOf(k, o) {
					keys = append(keys, refKey(id))
				}
				return keys
			},
			byNamespace: func(o *unstructured.Unstructured) []string { return []string{namespaceKey(kcp.KeyOf(o))} },
		} {
			if err := k.objects.Index(index, values); err != nil {
				t.Fatal(err)
			}
		}
		f.kinds.kinds = append(f.kinds.kinds, k)
		run(t, k.objects)
	}
	run(t, f.placements)
	run(t, f.assignments)
	run(t, f.reports)
	var targets workload.SyncTargetList
	as := map[string]place.Target{}
	for _, of := range s.targets {
		as[engine.TargetKey("compute", of.Key, "")] = of
		targets.Items = append(targets.Items, workload.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: of.Key, Annotations: map[string]string{clusterAnnotation: "compute"}}})
	}
	f.compute, f.manager.targets, f.manager.locations = "compute", filled[*workload.SyncTarget](&targets), filled[*scheduling.Location](&scheduling.LocationList{})
	f.inventory = inventory.New(inventory.Options{Compute: f.compute, Targets: f.manager.targets, Locations: f.manager.locations, Health: f.options.health})
	run(t, f.manager.targets)
	f.inventory.Learn()
	f.inventory.Assume(func(w *inventory.Target) { w.Target = as[w.Key] })
	return f
}

// filled returns a cache for the objects of a list.
func filled[T interface {
	runtime.Object
	metav1.Object
}](list runtime.Object) *kcp.Kind[T] {
	return kcp.NewKind[T]("objects", &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list, nil },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return watch.NewFake(), nil
		},
	}, nil)
}

// run fills a cache, and waits until it is full.
func run(t *testing.T, k interface {
	Run(context.Context)
	Ready() <-chan struct{}
}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { k.Run(ctx) })
	t.Cleanup(func() { cancel(); ended.Wait() })
	select {
	case <-k.Ready():
	case <-t.Context().Done():
	}
}

// object returns an object in the namespace "default" of the logical cluster "shop", with the UID "u".
func object(kind, name string, spec map[string]any) unstructured.Unstructured {
	return unstructured.Unstructured{Object: map[string]any{"kind": kind, "spec": spec, "metadata": map[string]any{
		"name": name, "namespace": "default", "uid": "u", "annotations": map[string]any{clusterAnnotation: "shop"}}}}
}

func idOf(resource, name string) engine.ID {
	i := slices.IndexFunc(profile.Shipped(), func(p profile.Profile) bool { return p.Resource == resource })
	return engine.ID{GroupResource: profile.Shipped()[i].GroupResource(), Key: kcp.Key{Cluster: "shop", Namespace: "default", Name: name}}
}

// at returns an Assignment of an object.
func at(id engine.ID, targets ...workload.AssignedTarget) workload.Assignment {
	a := workload.Assignment{Spec: workload.AssignmentSpec{Targets: targets, Workload: reference(id, "u")}}
	a.Name, a.Namespace, a.UID = engine.AssignmentName(id.GroupResource, id.Key.Name), id.Key.Namespace, "a"
	a.Annotations = map[string]string{clusterAnnotation: string(id.Key.Cluster)}
	return a
}

func reference(id engine.ID, uid string) workload.WorkloadReference {
	return workload.WorkloadReference{Group: id.Group, Resource: id.Resource, Kind: "X", Name: id.Key.Name, UID: uid}
}

// reported returns the report of a target about an object.
func reported(id engine.ID, target, uid string, replicas *int32) workload.TargetStatus {
	s := workload.TargetStatus{Spec: workload.TargetStatusSpec{Key: target, Workload: reference(id, uid), Replicas: replicas}}
	s.Name, s.Namespace = engine.StatusName(id.GroupResource, id.Key.Name, target), id.Key.Namespace
	s.Annotations = map[string]string{clusterAnnotation: string(id.Key.Cluster)}
	return s
}
