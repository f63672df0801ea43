package schedule

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/place"
)

// A part that a full target does not create goes elsewhere, replacements first, and so does what begins soon after.
// Replicas that run at a full target stay there.
func TestFullTargets(t *testing.T) {
	web, runs := idOf("deployments", "web"), idOf("deployments", "runs")
	s := store{targets: []place.Target{{Key: "east", Location: "default", Ready: true}, {Key: "west", Location: "default", Ready: true}}, objects: map[string][]unstructured.Unstructured{
		"deployments": {object("Deployment", "web", map[string]any{"replicas": int64(10)}), object("Deployment", "runs", map[string]any{"replicas": int64(4)})}, "statefulsets": {object("StatefulSet", "db", nil)}}}
	half := func(key string, n int32) workload.AssignedTarget {
		return workload.AssignedTarget{Key: key, Location: "default", Phase: workload.Active, Replicas: &n}
	}
	full := reported(web, "east", "u", nil)
	full.Spec.Reason = workload.Full
	s.reports.Items = append(s.reports.Items, full, reported(web, "west", "u", new(int32(5))), reported(runs, "east", "u", new(int32(2))), reported(runs, "west", "u", new(int32(2))))
	s.assignments.Items = append(s.assignments.Items, at(web, half("east", 5), half("west", 5)), at(runs, half("east", 2), half("west", 2)))
	scheduler := s.open(t)
	decided := func(scheduler *Scheduler, resource, name string) (all []string) {
		t.Helper()
		id := idOf(resource, name)
		snap, err := scheduler.Snapshot(t.Context(), Subject{scheduler.consumers.Kind(id.GroupResource), id, scheduler.consumers.Workload(id), scheduler.consumers.Assignment(id)}, &scheduling.Placement{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range snap.Targets { // the inventory has no Locations here
			snap.Targets[i].Location = "default"
		}
		for _, p := range place.Decide(snap).Targets {
			all = append(all, fmt.Sprint(p.Key, " ", p.Phase, " ", *p.Replicas, " ", p.Reason))
		}
		return all
	}
	if before := decided(s.open(t), "statefulsets", "db"); len(before) != 1 {
		t.Errorf("without a refusal: %v", before)
	}
	for _, c := range []struct {
		resource, name string
		want           []string
	}{
		{"deployments", "web", []string{"east Evicting 5 Full", "west Active 10 "}},
		{"deployments", "runs", []string{"east Active 2 ", "west Active 2 "}},
		{"statefulsets", "db", []string{"west Active 1 "}},
	} {
		if diff := cmp.Diff(c.want, decided(scheduler, c.resource, c.name)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// Refusals count for a minute and for one workspace, and their number is bounded.
func TestRefusals(t *testing.T) {
	var r refusals
	began := time.Unix(1_000_000, 0)
	targets := func(cluster kcp.ClusterName) []place.Target {
		all := []place.Target{{Key: "east"}, {Key: "west"}}
		r.mark(cluster, all)
		return all
	}
	r.add("shop", "east", began)
	if all := targets("shop"); !all[0].Full.Equal(began.Add(remembered)) || !all[1].Full.IsZero() {
		t.Errorf("full: %v, %v", all[0].Full, all[1].Full)
	}
	if all := targets("other"); !all[0].Full.IsZero() {
		t.Errorf("full for another workspace: %v", all[0].Full)
	}
	for i := range 10 * mostRefusals {
		r.add(kcp.ClusterName(fmt.Sprint(i)), "east", began.Add(time.Duration(i)*remembered/mostRefusals))
	}
	if len(r.all) > 2*mostRefusals {
		t.Errorf("%d refusals", len(r.all))
	}
}
