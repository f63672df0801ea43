package inventory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/place"
)

// A many is an inventory of many SyncTargets, two of three of which the Location "zone" has.
type many struct {
	*Inventory
	t         *testing.T
	targets   *watch.FakeWatcher
	locations *watch.FakeWatcher
	changed   chan struct{} // gets a value when a cache has changed
	counted   []string      // Locations that were told to count
	decided   int           // times that the scheduler was told to decide
	revision  int
}

// revised gives an object a new revision.
func (m *many) revised(o kcp.Object) kcp.Object {
	m.revision++
	o.SetResourceVersion(fmt.Sprint(m.revision))
	return o
}

// watched returns a cache of a list, and the watch that changes it.
func watched[T kcp.Object](t *testing.T, list runtime.Object, changed chan<- struct{}) (*kcp.Kind[T], *watch.FakeWatcher) {
	t.Helper()
	w := watch.NewFake()
	k := kcp.NewKind[T]("watched", &cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list, nil },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return w, nil },
	}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { k.Run(ctx) })
	t.Cleanup(func() { cancel(); ended.Wait() })
	<-k.Ready()
	first := true
	k.Wakes(func(T) []kcp.Key { return []kcp.Key{{}} }).Subscribe(func(kcp.Key) {
		if !first {
			changed <- struct{}{}
		}
	})
	first = false
	return k, w
}

func newMany(t *testing.T, n int) *many {
	m := &many{t: t, changed: make(chan struct{}, 10)}
	var targets workload.SyncTargetList
	for i := range n {
		targets.Items = append(targets.Items, *numbered(i))
	}
	o := Options{Compute: "compute", Health: func(t *workload.SyncTarget, to *place.Target) {
		if since := t.Status.UnreachableSince; since != nil {
			to.Unreachable = since.Time
		}
	}}
	o.Targets, m.targets = watched[*workload.SyncTarget](t, &targets, m.changed)
	o.Locations, m.locations = watched[*scheduling.Location](t, &scheduling.LocationList{Items: []scheduling.Location{*zone("0", "1")}}, m.changed)
	o.Count = func(location string) { m.counted = append(m.counted, location) }
	o.Turn = func(bool) { m.decided++ }
	m.Inventory = New(o)
	m.Learn()
	return m
}

func numbered(i int) *workload.SyncTarget {
	return &workload.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("t%d", i), UID: types.UID(fmt.Sprint(i)), Annotations: map[string]string{core.ClusterAnnotation: "compute"},
		Labels: map[string]string{"zone": fmt.Sprint(i % 3)}}}
}

func zone(values ...string) *scheduling.Location {
	return &scheduling.Location{ObjectMeta: metav1.ObjectMeta{Name: "zone", Annotations: map[string]string{core.ClusterAnnotation: "compute"}},
		Spec: scheduling.LocationSpec{InstanceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: values}}}}}
}

// after expects what a change in the cache makes the loops do.
func (m *many) after(what string, change func(), learn func(), counted []string, decided int) {
	m.t.Helper()
	m.counted, m.decided = nil, 0
	change()
	<-m.changed
	learn()
	slices.Sort(m.counted)
	if counted = append(counted, []string{}...); !slices.Equal(slices.Compact(m.counted), counted) || m.decided != decided {
		m.t.Errorf("%s: the Locations %v count, and %d decisions are made, want %v and %d", what, m.counted, m.decided, counted, decided)
	}
	have := m.All()
	m.Inventory.targets = nil
	m.Learn()
	if want := m.All(); fmt.Sprint(have) != fmt.Sprint(want) {
		m.t.Errorf("%s: the targets are\n%v, want\n%v", what, have, want)
	}
}

// TestChanges expects that each change wakes what depends on it, and that the targets then are those that a look at all
// of them gives.
func TestChanges(t *testing.T) {
	m := newMany(t, 7)
	modified := func(i int, change func(*workload.SyncTarget)) (func(), func()) {
		next := numbered(i)
		change(next)
		return func() { m.targets.Modify(m.revised(next)) }, func() { m.LearnTarget(next.Name) }
	}
	beat := func(of *workload.SyncTarget) { of.Status.LastSyncerHeartbeatTime = &metav1.Time{Time: time.Now()} }
	zoned := []string{"zone"}

	change, learn := modified(0, beat)
	m.after("the first heartbeat", change, learn, zoned, 1)
	change, learn = modified(0, func(of *workload.SyncTarget) {
		beat(of)
		of.Status.LastSyncerHeartbeatTime.Time = time.Now().Add(1)
	})
	m.after("a heartbeat", change, learn, nil, 0)
	change, learn = modified(0, func(of *workload.SyncTarget) {
		beat(of)
		of.Status.Conditions.Set(conditions.Condition{Type: conditions.Ready, Status: metav1.ConditionTrue})
	})
	m.after("ready", change, learn, zoned, 0)
	change, learn = modified(0, func(of *workload.SyncTarget) { of.Labels["zone"] = "2" })
	m.after("a target leaves its Location", change, learn, zoned, 1)
	change, learn = modified(5, func(of *workload.SyncTarget) { of.Spec.Unschedulable = true })
	m.after("a target without a Location is cordoned", change, learn, nil, 1)
	m.after("a target is deleted", func() { m.targets.Delete(numbered(3)) }, func() { m.LearnTarget("t3") }, zoned, 1)
	again := numbered(3)
	again.UID = "again"
	m.after("it is back", func() { m.targets.Add(m.revised(again)) }, func() { m.LearnTarget("t3") }, zoned, 1)
	l := zone("0", "1")
	l.Status.Instances = new(int32(1))
	m.after("a Location counts", func() { m.locations.Modify(m.revised(l)) }, func() { m.LearnLocation("zone") }, nil, 0)
	m.after("a Location has others", func() { m.locations.Modify(m.revised(zone("2"))) }, func() { m.LearnLocation("zone") }, nil, 1)
	m.after("a Location is gone", func() { m.locations.Delete(zone("2")) }, func() { m.LearnLocation("zone") }, nil, 1)
}

// TestHeartbeatsCostTheSame expects that the work for a heartbeat does not grow with the number of targets.
func TestHeartbeatsCostTheSame(t *testing.T) {
	few, all := newMany(t, 10), newMany(t, 1000)
	cost := func(m *many) float64 { return testing.AllocsPerRun(100, func() { m.LearnTarget("t1") }) }
	if few, all := cost(few), cost(all); all > 2*few { // the race detector adds some
		t.Errorf("%v allocations with 10 targets, %v with 1,000", few, all)
	}
}

// TestLearnWakesNobody expects that an inventory can be filled with a lock held, while no target answers.
func TestLearnWakesNobody(t *testing.T) {
	m := newMany(t, 3)
	for i := range 3 {
		lost := numbered(i)
		lost.Status.LastSyncerHeartbeatTime, lost.Status.UnreachableSince = &metav1.Time{Time: time.Now()}, &metav1.Time{Time: time.Now()}
		m.targets.Modify(m.revised(lost))
		<-m.changed
	}
	m.counted, m.decided = nil, 0
	m.Learn()
	if len(m.counted) > 0 || m.decided > 0 {
		t.Errorf("the Locations %v count, and %d decisions are made", m.counted, m.decided)
	}
	if all, hold, _ := m.For(&scheduling.Placement{}); !hold || !m.Holds() || len(all) != 3 || slices.ContainsFunc(all, func(of place.Target) bool { return of.Unreachable.IsZero() }) {
		t.Errorf("the targets are %v, hold %t and %t", all, hold, m.Holds())
	}
}

// TestNothingLeavesWhileTargetsReturn lets most targets answer again, one after another, after a long time. The ones that
// answer first do not make the others count as lost.
func TestNothingLeavesWhileTargetsReturn(t *testing.T) {
	const targets = 6
	m := newMany(t, targets)
	set := func(i int, since *metav1.Time) {
		next := numbered(i)
		next.Status.LastSyncerHeartbeatTime, next.Status.UnreachableSince = &metav1.Time{Time: time.Now()}, since
		m.targets.Modify(m.revised(next))
		<-m.changed
		m.LearnTarget(next.Name)
	}
	long := &metav1.Time{Time: time.Now().Add(-time.Hour)}
	for i := range targets {
		set(i, long)
	}
	m.KnowFrom(time.Now().Add(-time.Hour))
	decide := func() place.Decision {
		s := place.Snapshot{ID: "x", Replicas: new(int32(4)), Now: time.Now()}
		s.Targets, s.Hold, s.Known = m.For(&scheduling.Placement{})
		for _, of := range s.Targets {
			if of.Location != "" {
				s.Parts = append(s.Parts, place.Part{AssignedTarget: workload.AssignedTarget{Key: of.Key, Location: of.Location, Replicas: new(int32(1)), Phase: workload.Active}, Applied: true, Available: 1})
			}
		}
		return place.Decide(s)
	}
	for i := range targets {
		if d := decide(); len(d.Evicted) > 0 {
			t.Errorf("%d targets answer, hold %t: the workload leaves %v", i, m.Holds(), d.Evicted)
		}
		set(i, nil)
	}
	set(0, long) // the server knows all others, and this one since it looks
	m.KnowFrom(time.Now().Add(-time.Hour))
	if d := decide(); len(d.Evicted) != 1 {
		t.Errorf("one target is lost, and the workload leaves %v", d.Evicted)
	}
}

// TestAdd adds targets that do not exist: they are ready, and every Location has them that selects the labels that
// theirs asks for.
func TestAdd(t *testing.T) {
	m := newMany(t, 2)
	for name, selector := range map[string]*metav1.LabelSelector{
		"all":   nil,
		"south": {MatchLabels: map[string]string{"zone": "1", "side": "south"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "new", Operator: metav1.LabelSelectorOpExists}}},
		"side":  {MatchLabels: map[string]string{"side": "south"}},
		"old":   {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "new", Operator: metav1.LabelSelectorOpDoesNotExist}}},
	} {
		l := zone()
		l.Name, l.Spec.InstanceSelector = name, selector
		m.locations.Add(m.revised(l))
		<-m.changed
	}
	m.Learn()
	before := m.All()
	if keys := m.Add("nowhere", 1); len(keys) > 0 || len(m.All()) != len(before) {
		t.Errorf("a Location that does not exist has new targets %v", keys)
	}
	for location, want := range map[string]string{"south": "[all side south zone]", "zone": "[all old zone]", "old": "[all old]"} {
		keys := m.Add(location, 2)
		if len(keys) != 2 || keys[0] == keys[1] {
			t.Errorf("%s: the new targets are %v", location, keys)
		}
		for _, w := range m.All() {
			var names []string
			for _, l := range w.Locations {
				names = append(names, l.Name)
			}
			if got := fmt.Sprint(names); slices.Contains(keys, w.Key) && (got != want || !w.Ready || w.Unschedulable || len(w.Taints) > 0) {
				t.Errorf("the target added to %s is %+v in %s, want %s", location, w.Target, got, want)
			}
		}
	}
	if got := m.All(); len(got) != len(before)+6 || !slices.IsSortedFunc(got, func(a, b Target) int { return strings.Compare(a.Key, b.Key) }) {
		t.Errorf("the targets are %v", got)
	}
}
