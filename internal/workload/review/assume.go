package review

import (
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
)

// mostAdded is the maximum of targets that a review adds.
const mostAdded = 64

// shownTargets say what a user sees of targets.
type shownTargets struct {
	byKey map[string]string // their names; nil if the user sees none
	added map[string]bool   // the keys of those that do not exist
	all   bool              // targets without a part have names, too
}

// assume changes what the scheduler sees to what a user assumes.
func (s *session) assume(q question) (shownTargets, error) {
	shown := shownTargets{all: len(q.Workloads) > 0 && len(q.Workloads) <= mostDetailed}
	names, err := s.lose(q)
	if err != nil {
		return shown, err
	}
	if q.named {
		shown.byKey = names
	}
	shown.added, err = s.add(q.Assume.Added)
	return shown, err
}

// lose assumes that targets are lost or cordoned. It returns the names of the targets by their keys.
func (s *session) lose(q question) (map[string]string, error) {
	known := map[string]bool{}
	names := map[string]string{}
	for _, t := range s.targets.List(s.compute) {
		names[engine.TargetKey(string(s.compute), t.Name, string(t.UID))] = t.Name
		known["target "+t.Name] = true
	}
	s.inventory.Assume(func(w *inventory.Target) {
		at := func(all []string) bool {
			return slices.ContainsFunc(w.Locations, func(l inventory.Location) bool { return slices.Contains(all, l.Name) })
		}
		for _, l := range w.Locations {
			known["location "+l.Name] = true
		}
		if at(q.Assume.Down) || slices.Contains(q.Assume.DownTargets, names[w.Key]) {
			w.Unreachable = assumedLoss()
			if w.AgentLost = false; w.Leased {
				w.LeaseEnd = w.Unreachable
			}
		}
		if at(q.Assume.Cordoned) || slices.Contains(q.Assume.CordonedTargets, names[w.Key]) {
			w.Unschedulable = true
		}
	})
	for kind, all := range map[string][]string{"location ": slices.Concat(q.Assume.Down, q.Assume.Cordoned), "target ": slices.Concat(q.Assume.DownTargets, q.Assume.CordonedTargets)} {
		for _, name := range all {
			if !known[kind+name] {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.assume: there is no %s%q with a physical cluster", kind, name))
			}
		}
	}
	return names, nil
}

// add assumes that there are more targets. It returns their keys. The rules of the schema have not been checked yet:
// reviews are answered before.
func (s *session) add(all []scheduling.AddedClusters) (map[string]bool, error) {
	added := map[string]bool{}
	for _, a := range all {
		if a.Clusters < 1 || int(a.Clusters) > mostAdded-len(added) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.assume.added: invalid number of clusters in location %q: all numbers must be positive, and their sum %d at most", a.Location, mostAdded))
		}
		keys := s.inventory.Add(a.Location, int(a.Clusters))
		if len(keys) == 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.assume.added: there is no location %q", a.Location))
		}
		for _, key := range keys {
			added[key] = true
		}
	}
	return added, nil
}

// assumedLoss is when targets that are assumed to be down stopped answering: longer ago than any
// toleration that ends.
func assumedLoss() time.Time { return time.Unix(0, 0) }

// held reports whether no target is given up because it does not answer.
func (s *session) held() bool {
	_, held, _ := s.inventory.For(&scheduling.Placement{})
	return held
}
