//go:build unix

package physical

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// TestReview compares answers of PlacementReviews with what then happens.
func TestReview(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "north", "west")
	w.compute(t, "compute", "east", "north")
	s := w.shop(t, "shop", "compute")
	s.place(t, `{"spec":{"tolerations":[{"key":"workload.kcp.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":1}],"strategy":{"divide":{"maxPerTarget":5}}}}`)
	for name, replicas := range map[string]int32{"one": 1, "few": 4, "many": 10, "all": 15} { // "all" fits three targets exactly
		s.create(t, name, replicas)
	}
	for _, name := range []string{"one", "few", "many"} {
		s.rolledOut(t, name)
	}
	t.Run("what another cluster would do happens", func(t *testing.T) { s.foreseesAddition(t) })
	for _, name := range []string{"one", "few", "many", "all"} {
		s.rolledOut(t, name)
	}
	t.Run("explain", func(t *testing.T) { s.explains(t) })
	t.Run("nobody else sees clusters", func(t *testing.T) { s.reviewsAsTenant(t) })
	t.Run("nothing is stored", func(t *testing.T) { s.storesNoReviews(t) })
	t.Run("what a cordon would do happens", func(t *testing.T) { s.foreseesCordon(t) })
	t.Run("what a loss would do happens", func(t *testing.T) { s.foreseesLoss(t) })
}

func reviews() schema.GroupVersionResource {
	return scheduling.GroupVersion.WithResource("placementreviews")
}

// ask creates a review.
func ask(t *testing.T, in dynamic.Interface, spec scheduling.PlacementReviewSpec) (*scheduling.PlacementReviewStatus, error) {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scheduling.GroupVersion.String(), "kind": "PlacementReview", "metadata": map[string]any{"name": "x"}, "spec": content,
		"status": map[string]any{"omitted": int64(7)}}} // what a client says about the status does not count
	o, err = in.Resource(reviews()).Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	got := &scheduling.PlacementReview{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, got); err != nil {
		t.Fatal(err)
	}
	return &got.Status, nil
}

// foreseen returns the replicas of each target at the end, by workload.
func foreseen(all *scheduling.PlacementReviewStatus) map[string]string {
	out := map[string]string{}
	for _, w := range all.Workloads {
		var parts []string
		for _, l := range w.Locations {
			name := l.Target
			if l.Added {
				name = "west" // the only cluster that tests add
			}
			if l.NextPhase != "" {
				parts = append(parts, fmt.Sprintf("%s %s %s", name, l.NextPhase, number(l.NextReplicas)))
			}
		}
		slices.Sort(parts)
		out[w.Name] = strings.Join(parts, ", ") + " " + w.Reason
	}
	return out
}

func number(n *int32) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// assignments returns the decisions about workloads, with names of clusters as the keys of targets.
func (s *tenant) assignments(t *testing.T) map[string]workload.AssignmentSpec {
	t.Helper()
	names := map[string]string{}
	targets, err := s.in(t, "compute").Resource(workload.GroupVersion.WithResource("synctargets")).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range targets.Items {
		key, _, _ := unstructured.NestedString(o.Object, "status", "key")
		names[key] = o.GetName()
	}
	list, err := s.dynamic.Resource(workload.GroupVersion.WithResource("assignments")).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]workload.AssignmentSpec{}
	for _, o := range list.Items {
		a := &workload.Assignment{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, a); err != nil {
			t.Fatal(err)
		}
		for i, p := range a.Spec.Targets {
			a.Spec.Targets[i].Key = names[p.Key]
		}
		out[a.Spec.Workload.Name] = a.Spec
	}
	return out
}

// actual returns the same of the Assignments.
func (s *tenant) actual(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, a := range s.assignments(t) {
		var parts []string
		for _, p := range a.Targets {
			parts = append(parts, fmt.Sprintf("%s %s %s", p.Key, p.Phase, number(p.Replicas)))
		}
		slices.Sort(parts)
		out[name] = strings.Join(parts, ", ") + " " + a.Reason
	}
	return out
}

func same(a, b map[string]string) error {
	if fmt.Sprint(a) != fmt.Sprint(b) {
		return fmt.Errorf("foreseen\n%v, and it is\n%v", a, b)
	}
	return nil
}

// explains expects that a review without assumptions says what is.
func (s *tenant) explains(t *testing.T) {
	got, err := ask(t, s.dynamic, scheduling.PlacementReviewSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := same(foreseen(got), s.actual(t)); err != nil || got.Omitted != 0 || got.Held {
		t.Errorf("%v, %+v", err, got)
	}
	if _, err := s.RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "none"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out := must(t, "workload", "explain", "deployment/one", "-w", ":root:shop")
	for _, want := range []string{`Deployment "one": Placement "default" applies; placed`, "it runs its part", "it would take replicas, others are enough", "east", "west"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for arg, want := range map[string]string{"deployment/nope": "does not exist", "nonsense": "write it as KIND/NAME", "thing/x": "no resource type", "po/one-abc": "write the workload of", "svc/nope": "does not exist"} {
		if out, err := kubectl(t, "workload", "explain", arg, "-w", ":root:shop"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("explain %s: %v\n%s", arg, err, out)
		}
	}
	if out := must(t, "workload", "explain", "deploy/one", "-w", ":root:shop"); !strings.Contains(out, "it runs its part") {
		t.Error(out)
	}
	if out := must(t, "workload", "explain", "role/none", "-w", ":root:shop"); !strings.Contains(out, "its kind is not one that physical clusters run") {
		t.Error(out)
	}
	if out, err := kubectl(t, "workload", "simulate", "-w", ":root:shop"); err == nil {
		t.Errorf("nothing to simulate:\n%s", out)
	}
	if out, err := kubectl(t, "workload", "simulate", "--down", "nope", "-w", ":root:shop"); err == nil || !strings.Contains(err.Error(), `there is no location "nope"`) {
		t.Errorf("a Location that does not exist: %v\n%s", err, out)
	}
}

// reviewsAsTenant asks as a user who may not list the SyncTargets.
func (s *tenant) reviewsAsTenant(t *testing.T) {
	s.grant(t, tenantAdmin().Name)
	ann, err := s.server.As("root:"+s.name, tenantAdmin())
	if err != nil {
		t.Fatal(err)
	}
	in := dynamicFor(t, ann)
	got, err := ask(t, in, scheduling.PlacementReviewSpec{Assume: scheduling.Assumptions{Cordoned: []string{"default"}}})
	if err != nil || len(got.Workloads) != 4 {
		t.Fatalf("%v, %v", got, err)
	}
	if text := fmt.Sprintf("%+v", got); strings.Contains(text, "east") || strings.Contains(text, "west") || strings.Contains(text, "north") {
		t.Errorf("the answer names a physical cluster: %s", text)
	}
	for _, name := range []string{"east", "nope"} { // no oracle for names
		_, err := ask(t, in, scheduling.PlacementReviewSpec{Assume: scheduling.Assumptions{DownTargets: []string{name}}})
		if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	plain, err := s.server.As("root:compute", tenantAdmin())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, dynamicFor(t, plain), scheduling.PlacementReviewSpec{}); err == nil {
		t.Error("a review in a workspace that the user may not enter")
	}
}

func (s *tenant) storesNoReviews(t *testing.T) {
	all := s.dynamic.Resource(reviews())
	if list, err := all.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%d reviews are stored, %v", len(list.Items), err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scheduling.GroupVersion.String(), "kind": "PlacementReview", "metadata": map[string]any{"name": "x"}}}
	if _, err := all.Apply(t.Context(), "x", o, metav1.ApplyOptions{FieldManager: "test"}); !apierrors.IsForbidden(err) {
		t.Errorf("apply: %v", err)
	}
	if list, err := all.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%d reviews are stored, %v", len(list.Items), err)
	}
}

// foreseesAddition registers the third cluster.
func (s *tenant) foreseesAddition(t *testing.T) {
	eventually(t, "a Deployment that two clusters do not take", func() error {
		if now := s.actual(t)["all"]; now != "east Active 5, north Active 5 NoFit" {
			return fmt.Errorf("it is %q", now)
		}
		return nil
	})
	got, err := ask(t, s.dynamic, scheduling.PlacementReviewSpec{Assume: scheduling.Assumptions{Added: []scheduling.AddedClusters{{Location: "default", Clusters: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, workspace := range []string{"compute", "shop"} {
		out := must(t, "workload", "simulate", "--add", "default", "-w", ":root:"+workspace)
		if !strings.Contains(out, "default/all: 5 replicas begin at default (added), they fit") || !strings.Contains(out, "3 workloads stay as they are") {
			t.Errorf("in %s:\n%s", workspace, out)
		}
	}
	must(t, "workload", "sync", "west", "--kubeconfig", s.clusters["west"].kubeconfig, "--labels", "region=west", "-w", ":root:compute")
	eventually(t, "what was foreseen", func() error { return same(foreseen(got), s.actual(t)) })
}

func (s *tenant) foreseesCordon(t *testing.T) {
	got, err := ask(t, s.dynamic, scheduling.PlacementReviewSpec{Assume: scheduling.Assumptions{CordonedTargets: []string{"west"}}})
	if err != nil {
		t.Fatal(err)
	}
	must(t, "workload", "cordon", "west", "-w", ":root:compute")
	eventually(t, "explanation of the cordon", func() error {
		out := must(t, "workload", "explain", "deployment/many", "-w", ":root:shop")
		if !strings.Contains(out, "Cordoned: it takes no new replicas") {
			return fmt.Errorf("%s", out)
		}
		return same(foreseen(got), s.actual(t))
	})
	must(t, "workload", "uncordon", "west", "-w", ":root:compute")
}

func (s *tenant) foreseesLoss(t *testing.T) {
	got, err := ask(t, s.dynamic, scheduling.PlacementReviewSpec{Assume: scheduling.Assumptions{DownTargets: []string{"east"}}})
	if err != nil {
		t.Fatal(err)
	}
	out := must(t, "workload", "simulate", "--down", "east", "-w", ":root:compute")
	for _, want := range []string{"default/many: ", "they fit", "default/all: ", "not fully placed: NoFit"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out := must(t, "workload", "simulate", "--down", "east", "-w", ":root:shop"); !strings.Contains(out, "default/many: ") || !strings.Contains(out, "they fit") {
		t.Errorf("in a consumer:\n%s", out)
	}
	if err := same(s.actual(t), s.actual(t)); err != nil || strings.Contains(fmt.Sprint(s.actual(t)), "Removing") {
		t.Errorf("a simulation changes something: %v", s.actual(t))
	}
	east := s.clusters["east"]
	east.signal(t, syscall.SIGSTOP)
	defer east.signal(t, syscall.SIGCONT)
	eventually(t, "what was foreseen", func() error { return same(foreseen(got), s.actual(t)) })
	// It stays so.
	now, err := ask(t, s.dynamic, scheduling.PlacementReviewSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := same(foreseen(now), s.actual(t)); err != nil {
		t.Error(err)
	}
	if out := must(t, "workload", "explain", "deployment/all", "-w", ":root:shop"); !strings.Contains(out, "Unreachable: it does not answer") || !strings.Contains(out, "NoFit") {
		t.Error(out)
	}
	all, err := ask(t, s.dynamic, scheduling.PlacementReviewSpec{Assume: scheduling.Assumptions{Down: []string{"default"}}})
	if err != nil || !all.Held || slices.ContainsFunc(all.Workloads, func(w scheduling.ReviewedWorkload) bool { return w.Moved > 0 }) {
		t.Errorf("all are lost: %+v, %v", all, err)
	}
}
