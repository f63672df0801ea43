//go:build unix

package physical

import (
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
)

// followsLabels expects that a Deployment moves when the labels of its namespace select another Placement, and that
// all its replicas are available meanwhile.
func (s *tenant) followsLabels(t *testing.T) {
	labelled := s.shop(t, "labelled", "compute")
	locations := s.in(t, "compute").Resource(scheduling.GroupVersion.WithResource("locations"))
	all := labelled.dynamic.Resource(placements())
	for _, region := range []string{"east", "west"} {
		of := map[string]any{"matchLabels": map[string]any{"region": region}}
		l := object("scheduling.kcp.io/v1alpha1", "Location", region, map[string]any{"instanceSelector": of})
		l.SetLabels(map[string]string{"region": region})
		p := object("scheduling.kcp.io/v1alpha1", "Placement", region, map[string]any{"locationSelectors": []any{of}, "namespaceSelector": of})
		if _, err := locations.Create(t.Context(), l, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := all.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	labelled.place(t, `{"spec":{"namespaceSelector":{"matchExpressions":[{"key":"region","operator":"NotIn","values":["east","west"]}]}}}`)
	labelled.create(t, "moving", 4)
	labelled.rolledOut(t, "moving")
	labelled.split(t, "moving", "east 2/2, west 2/2")
	changes, err := labelled.dynamic.Resource(deploymentsOf).Namespace("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for e := range changes.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			if n, _, _ := unstructured.NestedInt64(o.Object, "status", "availableReplicas"); n < 4 {
				t.Errorf("%d replicas are available", n)
			}
		}
	})
	step := func(labels, want, review string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{"region":%s}}}`, labels)
		if _, err := labelled.CoreV1().Namespaces().Patch(t.Context(), "default", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		labelled.split(t, "moving", want)
		got, err := ask(t, labelled.dynamic, scheduling.PlacementReviewSpec{})
		if err != nil || len(got.Workloads) != 1 || got.Workloads[0].Placement != review || got.Workloads[0].Moved != 0 {
			t.Errorf("the review says %+v, %v; want that the Placement %s moves nothing", got, err, review)
		}
	}
	step(`"east"`, "east 4/4", "east")
	step(`"west"`, "west 4/4", "west")
	s.clusters["east"].lacks(t, "moving")
	step(`"north"`, "west 4/4", "default")
	changes.Stop()
	watching.Wait()
	labelled.remove(t, "moving")
	for _, region := range []string{"east", "west"} {
		if err := locations.Delete(t.Context(), region, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
