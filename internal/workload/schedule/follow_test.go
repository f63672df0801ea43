package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
)

func phases(of workload.AssignmentSpec) (all []string) {
	for _, t := range of.Targets {
		all = append(all, fmt.Sprint(t.Key, " ", t.Phase, " ", t.Reason))
	}
	return all
}

// A physical cluster that is removed and does not answer keeps neither its volume claims nor the Services of its
// workloads. Otherwise, its SyncTarget would never go, and what uses the claims would never move.
func TestDeadTargetsHoldNothing(t *testing.T) {
	claim, service, web := idOf("persistentvolumeclaims", "data"), idOf("services", "web"), idOf("deployments", "web")
	pod := map[string]any{"volumes": []any{map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "data"}}}}
	user := object("Deployment", "web", map[string]any{"template": map[string]any{"spec": pod}})
	part := func(key string, phase workload.AssignmentPhase) workload.AssignedTarget {
		return workload.AssignedTarget{Key: key, Phase: phase}
	}
	s := store{objects: map[string][]unstructured.Unstructured{"deployments": {user},
		"persistentvolumeclaims": {object("PersistentVolumeClaim", "data", nil)}, "services": {object("Service", "web", nil)}}}
	s.assignments.Items = append(s.assignments.Items, at(claim, part("east", workload.Active)), at(service, part("east", workload.Active)),
		at(web, part("east", workload.Evicting), part("west", workload.Active)))
	s.reports.Items = append(s.reports.Items, reported(claim, "east", "u", nil), reported(service, "east", "u", nil), reported(web, "east", "u", nil))
	west, lost := place.Target{Key: "west"}, time.Now()
	for name, c := range map[string]struct {
		east           place.Target
		data           string
		claim, service []string
	}{
		"deleted, and answers":         {place.Target{Deleting: true}, "east", nil, []string{"east Active ", "west Active "}},
		"does not answer":              {place.Target{Unreachable: lost}, "east", nil, []string{"east Active ", "west Active "}},
		"deleted, its agent is silent": {place.Target{Deleting: true, AgentLost: true}, "east", nil, []string{"east Active ", "west Active "}},
		"deleted, does not answer":     {place.Target{Deleting: true, Unreachable: lost}, "", []string{"east Removing Orphaned", "west Active "}, []string{"east Removing Moved", "west Active "}},
	} {
		c.east.Key = "east"
		s.targets = []place.Target{c.east, west}
		scheduler := s.open(t)
		w := scheduler.consumers.Workload(claim)
		next, has := scheduler.volume(claim, w, scheduler.consumers.Assignment(claim), nil)
		if diff := cmp.Diff(c.claim, phases(next)); diff != "" || has != (c.claim != nil) {
			t.Errorf("%s: the claim: %v %s", name, has, diff)
		}
		followed, _ := scheduler.following(service, scheduler.consumers.Workload(service), scheduler.consumers.Assignment(service), nil)
		if diff := cmp.Diff(c.service, phases(followed)); diff != "" {
			t.Errorf("%s: the Service: %s", name, diff)
		}
		if !has {
			continue
		}
		// The decision is stored, and the target answers again before its SyncTarget is gone: it keeps the data.
		then := s
		then.assignments.Items = append(then.assignments.Items[:0:0], at(claim, next.Targets[0]), s.assignments.Items[2])
		then.targets = []place.Target{{Key: "east", Deleting: true}, west}
		scheduler = then.open(t)
		if at, _ := scheduler.volumeAt(web, scheduler.consumers.Kind(web.GroupResource), &user, nil); at != c.data {
			t.Errorf("%s: the data are at %q", name, at)
		}
		next, _ = scheduler.volume(claim, w, scheduler.consumers.Assignment(claim), nil)
		if diff := cmp.Diff(c.claim, phases(next)); diff != "" {
			t.Errorf("%s, and is back: %s", name, diff)
		}
	}
}

// An Assignment of a kind without a profile counts: what follows workloads stays.
func TestUnknownKindsHaveFollowers(t *testing.T) {
	db := engine.ID{GroupResource: schema.GroupResource{Group: "example.com", Resource: "databases"}, Key: kcp.Key{Cluster: "shop", Namespace: "default", Name: "db"}}
	var s store
	s.assignments.Items = append(s.assignments.Items, at(db, workload.AssignedTarget{Key: "east", Location: "default", Phase: workload.Active}))
	if got := s.open(t).spanned(db.Key); !slices.Equal(got, []span{{"east", "default"}}) {
		t.Errorf("the namespace has workloads at %v", got)
	}
}
