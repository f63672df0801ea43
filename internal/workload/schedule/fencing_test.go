package schedule

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/place"
)

// A workload counts as stopped by its agent only as the agent has reported. A Placement or a grace period that changed
// while the agent is cut off does not count.
func TestStopsWithin(t *testing.T) {
	db := idOf("statefulsets", "db")
	for name, c := range map[string]struct {
		uid     string
		reports map[string]*int64
		want    time.Duration
	}{
		"no report":                    {"u", nil, 0},
		"the agent does not stop it":   {"u", map[string]*int64{"east": nil}, 0},
		"the agent stops it":           {"u", map[string]*int64{"east": new(int64(300))}, 6 * time.Minute},
		"one of two agents stops it":   {"u", map[string]*int64{"east": new(int64(300)), "west": nil}, 0},
		"the longer one of two counts": {"u", map[string]*int64{"east": new(int64(30)), "west": new(int64(60))}, 2 * time.Minute},
		"a report of an older one":     {"v", map[string]*int64{"east": new(int64(300))}, 0},
	} {
		s := store{targets: []place.Target{{Key: "east"}, {Key: "west"}}, objects: map[string][]unstructured.Unstructured{"statefulsets": {object("StatefulSet", "db", nil)}}}
		for target, seconds := range c.reports {
			r := reported(db, target, c.uid, nil)
			r.Spec.StopsWithinSeconds = seconds
			s.reports.Items = append(s.reports.Items, r)
		}
		s.assignments.Items = append(s.assignments.Items, at(db, workload.AssignedTarget{Key: "east", Phase: workload.Removing}, workload.AssignedTarget{Key: "west", Phase: workload.Active}))
		scheduler := s.open(t)
		scheduler.options.Stop = time.Minute
		if got := scheduler.stopsWithin(scheduler.consumers.Workload(db), scheduler.consumers.Assignment(db)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
