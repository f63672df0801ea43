package fleet

import (
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
)

// A fact is a target as the scheduler sees it.
type fact struct {
	place.Target
	labels    map[string]string
	locations []location // that have the target
	orphans   bool       // what it has stays in the physical cluster
	leased    bool       // its agent stops workloads when its lease has run out
	available bool       // its Locations count it as available; the scheduler does not use it
}

type location struct {
	name   string
	labels map[string]string
}

// factOf returns what the scheduler sees of a target. offered are the Locations, sorted by name.
func (f *fleet) factOf(t *workload.SyncTarget, offered []*scheduling.Location) fact {
	w := fact{Target: place.Target{
		Key: engine.TargetKey(string(f.compute), t.Name, string(t.UID)), Unschedulable: t.Spec.Unschedulable, Taints: t.Spec.Taints,
		Ready: t.Status.LastSyncerHeartbeatTime != nil,
	}, labels: t.Labels}
	f.options.health(t, &w.Target)
	w.leased = t.Status.LeaseSeconds != nil
	w.available = t.Status.Conditions.IsTrue(ready) && !t.Spec.Unschedulable && t.DeletionTimestamp == nil
	if t.Spec.EvictAfter != nil {
		w.EvictAfter = t.Spec.EvictAfter.Time
	}
	if t.DeletionTimestamp != nil {
		w.EvictAfter, w.Deleting = t.DeletionTimestamp.Time, true
		w.orphans = t.Annotations[workload.OrphanAnnotation] == "true"
	}
	for _, l := range offered {
		if offers(l, t) {
			w.locations = append(w.locations, location{l.Name, l.Labels})
		}
	}
	return w
}

func (f *fleet) offered() []*scheduling.Location {
	all := f.manager.locations.List(f.compute)
	slices.SortFunc(all, func(a, b *scheduling.Location) int { return compareNames(a.Name, b.Name) })
	return all
}

// learn makes the facts about all targets. It wakes no loop, because it is called with the lock of the manager held.
func (f *fleet) learn() {
	f.learning.Lock()
	defer f.learning.Unlock()
	offered := f.offered()
	f.places = map[string]*scheduling.Location{}
	for _, l := range offered {
		f.places[l.Name] = l
	}
	var world []fact
	keys := map[string]string{}
	for _, t := range f.targets.List(f.compute) {
		w := f.factOf(t, offered)
		keys[t.Name] = w.Key
		world = append(world, w)
	}
	slices.SortFunc(world, func(a, b fact) int { return compareNames(a.Key, b.Key) })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.world, f.keys, f.holds = world, keys, place.Hold(targetsOf(world))
}

// learnTarget brings the fact about one target up to date. Its cost does not depend on the number of targets if the
// fact is the same, as after a heartbeat.
func (f *fleet) learnTarget(name string) {
	f.learning.Lock()
	defer f.learning.Unlock()
	var next []fact
	if t := f.targets.Get(kcp.Key{Cluster: f.compute, Name: name}); t != nil {
		next = append(next, f.factOf(t, f.offered()))
	}
	f.mu.Lock()
	var before []fact
	at, exists := 0, false
	key, known := f.keys[name]
	if known {
		if at, exists = f.factAt(key); exists {
			before = append(before, f.world[at])
		}
	}
	if reflect.DeepEqual(before, next) {
		f.mu.Unlock()
		return
	}
	if exists {
		f.world = slices.Delete(f.world, at, at+1)
		delete(f.keys, name)
	}
	for _, w := range next {
		at, _ := f.factAt(w.Key)
		f.world = slices.Insert(f.world, at, w)
		f.keys[name] = w.Key
	}
	f.mu.Unlock()
	f.count(before, next)
	for _, all := range [][]fact{before, next} {
		for i := range all {
			all[i].available = false
		}
	}
	if !reflect.DeepEqual(before, next) {
		f.turn()
	}
}

// factAt returns the index of the fact about a target, or where it would be. The caller holds mu.
func (f *fleet) factAt(key string) (at int, exists bool) {
	return slices.BinarySearchFunc(f.world, key, func(w fact, key string) int { return compareNames(w.Key, key) })
}

// learnLocation brings the facts about the targets of one Location up to date. A change of its status costs nothing.
func (f *fleet) learnLocation(name string) {
	f.learning.Lock()
	defer f.learning.Unlock()
	before, l := f.places[name], f.manager.locations.Get(kcp.Key{Cluster: f.compute, Name: name})
	if before != nil && l != nil && reflect.DeepEqual(before.Spec, l.Spec) && reflect.DeepEqual(before.Labels, l.Labels) {
		return
	}
	delete(f.places, name)
	selector := labels.Nothing()
	if l != nil {
		f.places[name] = l
		selector = selectorOf(l)
	}
	changed := false
	f.mu.Lock()
	for i := range f.world {
		w := &f.world[i]
		next := slices.DeleteFunc(slices.Clone(w.locations), func(of location) bool { return of.name == name })
		if l != nil && selector.Matches(labels.Set(w.labels)) {
			at, _ := slices.BinarySearchFunc(next, name, func(of location, name string) int { return compareNames(of.name, name) })
			next = slices.Insert(next, at, location{l.Name, l.Labels})
		}
		if len(next) == 0 {
			next = nil
		}
		if !reflect.DeepEqual(w.locations, next) {
			w.locations, changed = next, true
		}
	}
	f.mu.Unlock()
	if changed {
		f.turn()
	}
}

// count wakes the loop that counts the targets of Locations.
func (f *fleet) count(changed ...[]fact) {
	f.manager.mu.Lock()
	wake := f.manager.count
	f.manager.mu.Unlock()
	if wake == nil {
		return
	}
	for _, all := range changed {
		for _, w := range all {
			for _, l := range w.locations {
				wake(kcp.Key{Cluster: f.compute, Name: l.name})
			}
		}
	}
}

// countAll makes all Locations that have a target count.
func (f *fleet) countAll() {
	f.mu.Lock()
	all := slices.Clone(f.world)
	f.mu.Unlock()
	f.count(all)
}

// turn makes the scheduler decide anew, because the targets have changed for it.
func (f *fleet) turn() {
	f.mu.Lock()
	wake := f.schedule
	held := place.Hold(targetsOf(f.world))
	turned := held != f.holds
	f.holds = held
	f.mu.Unlock()
	if turned {
		f.wakeTargets(f.compute)
	}
	if wake == nil {
		return
	}
	f.kinds.each("*", wake)
	targets := f.orphaning()
	for _, r := range f.reports.List("*") { // workloads that do not exist any more have no key of a kind
		if _, exists := targets[r.Spec.Key]; !exists {
			wake(engine.IDFor(r, r.Spec.Workload).Task())
		}
	}
}

// targetsFor returns the targets as a Placement sees them.
func (f *fleet) targetsFor(p *scheduling.Placement) (all []place.Target, hold bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.world {
		t := w.Target
		for _, l := range w.locations {
			if len(p.Spec.LocationSelectors) == 0 || slices.ContainsFunc(p.Spec.LocationSelectors, func(s metav1.LabelSelector) bool { return selects(&s, l.labels) }) {
				t.Location = l.name
				break
			}
		}
		all = append(all, t)
	}
	return all, place.Hold(all)
}

func targetsOf(world []fact) (all []place.Target) {
	for _, w := range world {
		all = append(all, w.Target)
	}
	return all
}
