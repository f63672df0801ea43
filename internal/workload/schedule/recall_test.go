package schedule

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/place"
)

// An Assignment that is lost is made anew from the reports of the targets. The scheduler does not take a
// workload that runs for a new one.
func TestRecalled(t *testing.T) {
	web, db, twice, claim, fresh := idOf("deployments", "web"), idOf("statefulsets", "db"), idOf("statefulsets", "twice"), idOf("persistentvolumeclaims", "data"), idOf("deployments", "fresh")
	s := store{targets: []place.Target{{Key: "east"}, {Key: "west"}}, objects: map[string][]unstructured.Unstructured{
		"deployments":            {object("Deployment", "web", map[string]any{"replicas": int64(5)}), object("Deployment", "fresh", nil)},
		"statefulsets":           {object("StatefulSet", "db", nil), object("StatefulSet", "twice", nil)},
		"persistentvolumeclaims": {object("PersistentVolumeClaim", "data", nil)},
	}}
	s.reports.Items = append(s.reports.Items,
		reported(web, "west", "u", new(int32(3))), reported(web, "east", "u", new(int32(2))), reported(web, "gone", "u", new(int32(1))),
		reported(db, "west", "u", nil), reported(twice, "east", "u", nil), reported(twice, "west", "u", nil),
		reported(claim, "west", "u", nil), reported(fresh, "west", "of an older one", nil))
	scheduler := s.open(t)
	got := map[string][]string{}
	for name, id := range map[string]struct{ resource, name string }{"divided": {"deployments", "web"}, "at one target": {"statefulsets", "db"},
		"at one target, but two report": {"statefulsets", "twice"}, "data": {"persistentvolumeclaims", "data"}, "new": {"deployments", "fresh"}} {
		a := scheduler.decisionOf(idOf(id.resource, id.name))
		if a == nil {
			got[name] = nil
			continue
		}
		if stored(a) || a.Spec.Workload.UID != "u" {
			t.Errorf("%s: %+v", name, a)
		}
		for _, p := range a.Spec.Targets {
			n := int32(-1)
			if p.Replicas != nil {
				n = *p.Replicas
			}
			got[name] = append(got[name], fmt.Sprint(p.Key, " ", p.Phase, " ", n))
		}
	}
	want := map[string][]string{"divided": {"east Active 2", "west Active 3"}, "at one target": {"west Active -1"},
		"at one target, but two report": {"east Removing -1", "west Removing -1"}, "data": {"west Active -1"}, "new": nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	k := scheduler.consumers.Kind(web.GroupResource)
	pod := map[string]any{"volumes": []any{map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "data"}}}}
	user := object("Deployment", "user", map[string]any{"template": map[string]any{"spec": pod}})
	if target, has := scheduler.volumeAt(idOf("deployments", "user"), k, &user, nil); !has || target != "west" {
		t.Errorf("the data are at %q, %v", target, has)
	}
	var none *workload.Assignment
	if stored(none) {
		t.Error("there is none")
	}
}
