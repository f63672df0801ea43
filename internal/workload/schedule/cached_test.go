package schedule

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A store is what a server has. It is the transport of clients, for which nothing ever changes.
type store struct {
	assignments workload.AssignmentList
	reports     workload.TargetStatusList
	objects     map[string][]unstructured.Unstructured // by resource
	targets     []place.Target
}

// RoundTrip answers lists, and watches without events.
func (s store) RoundTrip(r *http.Request) (*http.Response, error) {
	kind, items := "List", any([]any{})
	switch resource := path.Base(r.URL.Path); resource {
	case "assignments":
		kind, items = "AssignmentList", s.assignments.Items
	case "targetstatuses":
		kind, items = "TargetStatusList", s.reports.Items
	case "placements":
		kind = "PlacementList"
	case "resourceprofiles":
		kind = "ResourceProfileList"
	case "synctargets":
		var all []workload.SyncTarget
		for _, of := range s.targets {
			all = append(all, workload.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: of.Key, Annotations: map[string]string{core.ClusterAnnotation: "compute"}}})
		}
		kind, items = "SyncTargetList", all
	default:
		items = s.objects[resource]
	}
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	if r.URL.Query().Has("watch") {
		body, end := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = end.Close() })
		answer.Body = body
		return answer, nil
	}
	group, version := path.Split(path.Dir(r.URL.Path))
	text, err := json.Marshal(map[string]any{"apiVersion": path.Join(path.Base(group), version), "kind": kind, "metadata": map[string]any{"resourceVersion": "1"}, "items": items})
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return answer, err
}

// open returns a scheduler with full caches, whose loops do not run.
func (s store) open(t *testing.T) *Scheduler {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	t.Cleanup(func() { cancel(); work.Wait() })
	at := &rest.Config{Host: "https://server", Transport: s, QPS: -1}
	c, err := consumers.New(consumers.Options{Compute: "compute", Consumer: "*", Home: at, View: at})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctx, &work, func() {})
	c.Desired("east").Found() // so that the caches of objects are filled
	in, err := client.New[*workload.SyncTarget, *workload.SyncTargetList](at, "compute", workload.GroupVersion.WithResource("synctargets"))
	if err != nil {
		t.Fatal(err)
	}
	targets := objects.KindOf("synctargets", in)
	work.Go(func() { targets.Run(ctx) })
	if !objects.Await(t.Context(), c.Settled(), targets.Ready()) {
		t.Fatal("the caches do not fill")
	}
	as := map[string]place.Target{}
	for _, of := range s.targets {
		as[engine.TargetKey("compute", of.Key, "")] = of
	}
	known := inventory.New(inventory.Options{Compute: "compute", Targets: targets,
		Locations: kcp.NewKind[*scheduling.Location]("locations", nil, nil), Health: func(*workload.SyncTarget, *place.Target) {}})
	known.Learn()
	known.Assume(func(w *inventory.Target) { w.Target = as[w.Key] })
	return New(Options{Consumers: c, Inventory: known})
}

// object returns an object in the namespace "default" of the logical cluster "shop", with the UID "u".
func object(kind, name string, spec map[string]any) unstructured.Unstructured {
	return unstructured.Unstructured{Object: map[string]any{"kind": kind, "spec": spec, "metadata": map[string]any{
		"name": name, "namespace": "default", "uid": "u", "annotations": map[string]any{core.ClusterAnnotation: "shop"}}}}
}

func idOf(resource, name string) engine.ID {
	i := slices.IndexFunc(profile.Shipped(), func(p profile.Profile) bool { return p.Resource == resource })
	return engine.ID{GroupResource: profile.Shipped()[i].GroupResource(), Key: kcp.Key{Cluster: "shop", Namespace: "default", Name: name}}
}

// at returns an Assignment of an object.
func at(id engine.ID, targets ...workload.AssignedTarget) workload.Assignment {
	a := workload.Assignment{Spec: workload.AssignmentSpec{Targets: targets, Workload: reference(id, "u")}}
	a.Name, a.Namespace, a.UID = engine.AssignmentName(id.GroupResource, id.Key.Name), id.Key.Namespace, "a"
	a.Annotations = map[string]string{core.ClusterAnnotation: string(id.Key.Cluster)}
	return a
}

func reference(id engine.ID, uid string) workload.WorkloadReference {
	return workload.WorkloadReference{Group: id.Group, Resource: id.Resource, Kind: "X", Name: id.Key.Name, UID: uid}
}

// reported returns the report of a target about an object.
func reported(id engine.ID, target, uid string, replicas *int32) workload.TargetStatus {
	s := workload.TargetStatus{Spec: workload.TargetStatusSpec{Key: target, Workload: reference(id, uid), Replicas: replicas}}
	s.Name, s.Namespace = engine.StatusName(id.GroupResource, id.Key.Name, target), id.Key.Namespace
	s.Annotations = map[string]string{core.ClusterAnnotation: string(id.Key.Cluster)}
	return s
}
