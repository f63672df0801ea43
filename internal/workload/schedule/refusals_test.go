package schedule

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
)

// decisions returns the parts of the next decision about a workload.
func decisions(t *testing.T, scheduler *Scheduler, resource, name string) (all []string) {
	t.Helper()
	id := idOf(resource, name)
	snap, err := scheduler.Snapshot(t.Context(), Subject{scheduler.consumers.Kind(id.GroupResource), id, scheduler.consumers.Workload(id), scheduler.consumers.Assignment(id)}, &scheduling.Placement{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range snap.Targets { // the inventory has no Locations here
		snap.Targets[i].Location = "default"
	}
	d := place.Decide(snap)
	scheduler.learn(id, snap, d)
	for _, p := range d.Targets {
		n := int32(-1)
		if p.Replicas != nil {
			n = *p.Replicas
		}
		all = append(all, fmt.Sprint(p.Key, " ", p.Phase, " ", n, " ", p.Reason))
	}
	return all
}

func ready(keys ...string) (all []place.Target) {
	for _, key := range keys {
		all = append(all, place.Target{Key: key, Location: "default", Ready: true})
	}
	return all
}

// A part that a full target does not create goes elsewhere, replacements first, and so does what begins soon after.
// Replicas that run at a full target stay there.
func TestFullTargets(t *testing.T) {
	web, runs := idOf("deployments", "web"), idOf("deployments", "runs")
	s := store{targets: ready("east", "west"), objects: map[string][]unstructured.Unstructured{
		"deployments": {object("Deployment", "web", map[string]any{"replicas": int64(10)}), object("Deployment", "runs", map[string]any{"replicas": int64(4)})}, "statefulsets": {object("StatefulSet", "db", nil)}}}
	half := func(key string, n int32) workload.AssignedTarget {
		return workload.AssignedTarget{Key: key, Location: "default", Phase: workload.Active, Replicas: &n}
	}
	full := reported(web, "east", "u", nil)
	full.Spec.Reason = workload.Full
	s.reports.Items = append(s.reports.Items, full, reported(web, "west", "u", new(int32(5))), reported(runs, "east", "u", new(int32(2))), reported(runs, "west", "u", new(int32(2))))
	s.assignments.Items = append(s.assignments.Items, at(web, half("east", 5), half("west", 5)), at(runs, half("east", 2), half("west", 2)))
	scheduler := s.open(t)
	if before := decisions(t, s.open(t), "statefulsets", "db"); len(before) != 1 {
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
		if diff := cmp.Diff(c.want, decisions(t, scheduler, c.resource, c.name)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// A workload that a target rejects, or whose kind it does not serve, goes elsewhere. An object
// that exists at a target stays there.
func TestRejections(t *testing.T) {
	ids := map[string]engine.ID{}
	s := store{targets: ready("east", "west"), objects: map[string][]unstructured.Unstructured{}}
	for name, c := range map[string]struct {
		reason     string
		generation int64 // of the copy
		refused    int64 // generation; that of all workloads is 3
		known      []string
	}{
		"invalid":   {reason: "Invalid", refused: 3},
		"forbidden": {reason: "Forbidden", refused: 3},
		"unserved":  {reason: workload.NotServed, refused: 2},
		"updated":   {reason: "Invalid", generation: 3, refused: 3},
		"foreign":   {reason: "Conflict", refused: 3},
		"changed":   {reason: "Invalid", refused: 2},
		"old-agent": {reason: workload.NotServed},
		"twice":     {reason: "Invalid", refused: 3, known: []string{"west", "deleted"}},
	} {
		id := idOf("statefulsets", name)
		ids[name] = id
		r := reported(id, "east", "u", nil)
		r.Spec.Reason, r.Spec.TargetGeneration, r.Spec.RefusedGeneration = c.reason, c.generation, c.refused
		a := at(id, workload.AssignedTarget{Key: "east", Location: "default", Phase: workload.Active, Replicas: new(int32(1))})
		if c.known != nil {
			a.Spec.Rejections = &workload.Rejections{Generation: 3, Keys: c.known}
		}
		o := object("StatefulSet", name, nil)
		o.SetGeneration(3)
		s.objects["statefulsets"] = append(s.objects["statefulsets"], o)
		s.reports.Items, s.assignments.Items = append(s.reports.Items, r), append(s.assignments.Items, a)
	}
	scheduler := s.open(t)
	leaves, stays, waits := "east Removing -1 ", "east Active 1 ", "east Evicting 1 "
	for name, want := range map[string]string{"invalid": leaves + "Rejected", "forbidden": leaves + "Rejected", "unserved": leaves + "NotServed",
		"updated": stays, "foreign": stays, "changed": stays, "old-agent": stays, "twice": waits + "Rejected"} {
		if diff := cmp.Diff([]string{want}, decisions(t, scheduler, "statefulsets", name)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for name, want := range map[string]*workload.Rejections{"invalid": {Generation: 3, Keys: []string{"east"}}, "twice": {Generation: 3, Keys: []string{"west", "east"}}, "unserved": nil, "updated": nil, "changed": nil} {
		id := ids[name]
		snap, err := scheduler.Snapshot(t.Context(), Subject{scheduler.consumers.Kind(id.GroupResource), id, scheduler.consumers.Workload(id), scheduler.consumers.Assignment(id)}, &scheduling.Placement{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, rejected(scheduler.consumers.Workload(id), scheduler.consumers.Assignment(id), snap)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Refusals count for a minute, for one workspace and, if a kind is not served, for that kind. One workload finds out
// whether the target still refuses. Their number is bounded.
func TestRefusals(t *testing.T) {
	var r refusals
	began := time.Unix(1_000_000, 0)
	engines, fans := schema.GroupResource{Group: "example.com", Resource: "engines"}, schema.GroupResource{Group: "example.com", Resource: "fans"}
	until := func(cluster kcp.ClusterName, kind schema.GroupResource, want place.Refusal) time.Time {
		t.Helper()
		all := ready("east", "west")
		r.mark(cluster, kind, all)
		if all[0].Refuses != want || all[1].Refuses != "" {
			t.Errorf("%s in %s: %q and %q, want %q", kind, cluster, all[0].Refuses, all[1].Refuses, want)
		}
		return all[0].RefusesUntil
	}
	full, unserved := refusal{cluster: "shop", target: "east"}, refusal{"shop", "east", engines}
	first, second := idOf("deployments", "first"), idOf("deployments", "second")
	r.add(full, first, began)
	if got := until("shop", engines, place.Full); !got.Equal(began.Add(remembered)) {
		t.Errorf("full until %v", got)
	}
	until("other", engines, "")
	r.add(unserved, first, began.Add(time.Second))
	until("shop", engines, place.NotServed)
	until("shop", fans, place.Full)
	r.try(full, first, began.Add(time.Hour))
	if got := until("shop", fans, place.Full); !got.Equal(began.Add(time.Hour + remembered)) {
		t.Errorf("full until %v for others than the one that tries", got)
	}
	r.accepted(full, second)
	r.add(full, second, began.Add(time.Hour)) // an old report
	until("shop", fans, place.Full)
	r.accepted(full, first)
	until("shop", fans, "")
	r.try(full, first, began) // nothing is known
	until("shop", fans, "")
	for i := range 10 * mostRefusals {
		r.add(refusal{cluster: kcp.ClusterName(fmt.Sprint(i)), target: "east"}, first, began.Add(time.Duration(i)*remembered/mostRefusals))
	}
	if len(r.all) > 3*mostRefusals {
		t.Errorf("%d refusals", len(r.all))
	}
}
