//go:build unix

package physical

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestThirdCluster registers a third physical cluster while Deployments run at two, and removes it again.
func TestThirdCluster(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "north", "west")
	w.compute(t, "compute", "east", "west")
	s := w.shop(t, "shop", "compute")
	for name, replicas := range map[string]int32{"still": 6, "one": 1, "few": 4, "pair": 4, "many": 10} {
		s.create(t, name, replicas)
	}
	s.complete(t, patience)
	t.Run("nothing moves", func(t *testing.T) { s.registersThird(t) })
	t.Run("more replicas", func(t *testing.T) { s.scalesUp(t) })
	t.Run("fewer replicas", func(t *testing.T) { s.scalesDown(t) })
	t.Run("an update", func(t *testing.T) { s.updatesThree(t) })
	t.Run("it is drained", func(t *testing.T) {
		s.leavesThird(t, "drain")
		must(t, "workload", "uncordon", "north", "-w", ":root:compute")
	})
	t.Run("it is removed", func(t *testing.T) {
		s.patch(t, "pair", `{"spec":{"replicas":12}}`) // north has a part again
		s.create(t, "late", 5)
		s.complete(t, patience)
		s.leavesThird(t, "unsync")
		if out := must(t, "workload", "list", "-w", ":root:compute"); strings.Contains(out, "north") {
			t.Error(out)
		}
	})
}

// registersThird expects that nothing that runs moves or restarts, and that a new Deployment uses the third cluster.
func (s *tenant) registersThird(t *testing.T) {
	before, pods := s.layout(t, "east", "west"), s.podsAt(t, "east", "west")
	must(t, "workload", "sync", "north", "--kubeconfig", s.clusters["north"].kubeconfig, "--labels", "region=north", "-w", ":root:compute")
	s.create(t, "wide", 7)
	s.rolledOut(t, "wide") // the scheduler knows the third cluster, and has looked at the others
	if got := s.layout(t, "east", "north", "west").replicas("wide"); !slices.Equal(got, []int32{3, 2, 2}) {
		t.Errorf("7 replicas are divided into %v", got)
	}
	s.remove(t, "wide")
	before.unchanged(t, s.layout(t, "east", "west"))
	if now := s.podsAt(t, "east", "west"); !maps.Equal(now, pods) {
		t.Errorf("the pods were\n%v\nand are\n%v", pods, now)
	}
	if all := s.layout(t, "north")["north"]; len(all) > 0 {
		t.Errorf("the third cluster has %v", all)
	}
}

// scale sets the replicas of a Deployment, and returns the copies before and after it.
func (s *tenant) scale(t *testing.T, name, replicas string) (before, after layout) {
	t.Helper()
	before = s.layout(t, "east", "north", "west")
	s.patch(t, name, `{"spec":{"replicas":`+replicas+`}}`)
	s.rolledOut(t, name)
	return before, s.layout(t, "east", "north", "west")
}

// scalesUp expects that new replicas run where there are fewest, and that no others move.
func (s *tenant) scalesUp(t *testing.T) {
	before, after := s.scale(t, "few", "6") // 2, 2 and none
	before.only("east", "west").unchanged(t, after)
	if n := after["north"]["few"].replicas; n != 2 {
		t.Errorf("the third cluster has %d of 6 replicas", n)
	}
	if _, after := s.scale(t, "pair", "9"); !slices.Equal(after.replicas("pair"), []int32{3, 3, 3}) {
		t.Errorf("9 replicas are divided into %v", after.replicas("pair"))
	}
	before, after = s.scale(t, "many", "11") // 5, 5 and none: equal shares would be 4, 4 and 3
	before.only("east", "west").unchanged(t, after)
	if n := after["north"]["many"].replicas; n != 1 {
		t.Errorf("the third cluster has %d of 11 replicas, but only one is new", n)
	}
}

// scalesDown expects that replicas end where there are most.
func (s *tenant) scalesDown(t *testing.T) {
	before, after := s.scale(t, "many", "8") // 5, 5 and 1
	before.only("north").unchanged(t, after)
	if got := after.replicas("many"); !slices.Equal(got, []int32{4, 3, 1}) {
		t.Errorf("of 5, 5 and 1 replicas, %v are left", got)
	}
	before, after = s.scale(t, "many", "3")
	before.only("north").unchanged(t, after)
	if got := after.replicas("many"); !slices.Equal(got, []int32{1, 1, 1}) {
		t.Errorf("of 4, 3 and 1 replicas, %v are left", got)
	}
}

// updatesThree expects that an update reaches all three clusters, and that no replica is missed meanwhile: a third of 9
// replicas is 3, of which none may be unavailable.
func (s *tenant) updatesThree(t *testing.T) {
	before := s.layout(t, "east", "north", "west")
	stop := follow(t, s, func(_ watch.EventType, d *appsv1.Deployment) {
		if d.Name == "pair" && d.Status.AvailableReplicas < 9 {
			t.Errorf("%d replicas are available", d.Status.AvailableReplicas)
		}
	})
	defer stop()
	s.patch(t, "pair", image("nginx:2"))
	s.rolledOut(t, "pair")
	stop()
	for name, c := range s.clusters {
		d := c.only(t, "pair")
		if got := d.Spec.Template.Spec.Containers[0].Image; got != "nginx:2" || d.Status.UpdatedReplicas != 3 || d.UID != before[name]["pair"].uid {
			t.Errorf("the copy at %s has the image %s and the status %+v", name, got, d.Status)
		}
	}
}

// leavesThird ends the use of the third cluster with a command, and expects that its replicas, and no others, run at the
// others before they leave it.
func (s *tenant) leavesThird(t *testing.T, command string) {
	before := s.layout(t, "east", "north", "west")
	if len(before["north"]) == 0 {
		t.Fatal("the third cluster has nothing")
	}
	stop := s.watchLeaving(t, before)
	defer stop()
	must(t, "workload", command, "north", "-w", ":root:compute")
	s.complete(t, patience)
	stop()
	after := s.layout(t, "east", "north", "west")
	if len(after["north"]) > 0 {
		t.Errorf("the third cluster has %v", after["north"])
	}
	t.Logf("%s: %d replicas of %d Deployments moved", command, before.replaced(t, "north", after), len(before["north"]))
}

// watchLeaving expects of each copy that leaves the third cluster that all replicas are available elsewhere.
func (s *tenant) watchLeaving(t *testing.T, before layout) (stop func()) {
	t.Helper()
	return follow(t, s.clusters["north"], func(of watch.EventType, d *appsv1.Deployment) {
		if of != watch.Deleted && d.DeletionTimestamp == nil && *d.Spec.Replicas >= before["north"][d.Name].replicas {
			return
		}
		wanted, available := int32(0), int32(0)
		for _, n := range before.replicas(d.Name) {
			wanted += n
		}
		for _, name := range []string{"east", "west"} {
			all, err := s.clusters[name].copies(t.Context(), d.Name)
			if err != nil {
				t.Error(err)
				return
			}
			for _, copied := range all {
				available += copied.Status.AvailableReplicas
			}
		}
		if available < wanted {
			t.Errorf("%s leaves, and %d of %d replicas are available elsewhere", d.Name, available, wanted)
		}
	})
}
