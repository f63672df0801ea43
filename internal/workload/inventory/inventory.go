// Package inventory has the physical clusters of a compute workspace as the scheduler sees them.
// It makes a [Target] of each SyncTarget and its Locations, and reports changes. It hides how a
// heartbeat and a new status cost the same for any number of SyncTargets.
package inventory

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
)

// A Target is a physical cluster as the scheduler sees it.
type Target struct {
	place.Target
	Locations []Location // that have the target, sorted by name
	Orphans   bool       // what it has stays in the physical cluster
	Leased    bool       // its agent stops workloads when its lease has run out
	Keeps     bool       // its owner wants that, whether it is being deleted or not
	Abandoned bool       // the server does not wait for it any more

	labels    map[string]string
	available bool // its Locations count it as available; the scheduler does not use it
}

// A Location is what the scheduler uses of a Location.
type Location struct {
	Name   string
	Labels map[string]string
}

// Options are what an [Inventory] is made from.
type Options struct {
	// Compute is the compute workspace.
	Compute kcp.ClusterName
	// Targets and Locations cache those of all compute workspaces.
	Targets   *kcp.Kind[*workload.SyncTarget]
	Locations *kcp.Kind[*scheduling.Location]
	// Health sets what a target's conditions, leases and fences say.
	Health func(*workload.SyncTarget, *place.Target)
	// Abandoned reports whether the server does not wait for a target any more.
	Abandoned func(*workload.SyncTarget) bool
	// Count is called with the name of a Location whose targets have to be counted again.
	Count func(location string)
	// Turn is called when something has changed for the scheduler. held is true if targets that do not
	// answer began or ceased to be held.
	Turn func(held bool)
}

// An Inventory has the targets of a compute workspace. Its methods may be called concurrently; only
// [Inventory.LearnTarget], [Inventory.LearnLocation] and [Inventory.CountAll] call the functions of
// its options.
type Inventory struct {
	options Options

	learning sync.Mutex                      // held while targets are made and stored, so that the newest ones stay
	places   map[string]*scheduling.Location // as the targets have them; guarded by learning

	mu      sync.Mutex
	targets []Target          // by key; guarded by mu
	keys    map[string]string // the keys of targets by the names of SyncTargets; guarded by mu
	holds   bool              // no workload leaves targets that do not answer; guarded by mu
	turned  bool              // whether holds has changed since the scheduler was told; guarded by mu
	known   time.Time         // see [Inventory.KnowFrom]; guarded by mu
}

// New returns an inventory without targets. [Inventory.Learn] fills it.
func New(o Options) *Inventory {
	return &Inventory{options: o, places: map[string]*scheduling.Location{}, keys: map[string]string{}}
}

// Has reports whether a Location has a target.
func Has(l *scheduling.Location, t *workload.SyncTarget) bool {
	return selectorOf(l).Matches(labels.Set(t.Labels))
}

// selectorOf returns the selector of the targets of a Location. One that is invalid selects nothing.
func selectorOf(l *scheduling.Location) labels.Selector {
	if l.Spec.InstanceSelector == nil {
		return labels.Everything()
	}
	selector, err := metav1.LabelSelectorAsSelector(l.Spec.InstanceSelector)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// Available reports whether Locations count a target as available.
func Available(t *workload.SyncTarget) bool {
	return t.Status.Conditions.IsTrue(conditions.Ready) && !t.Spec.Unschedulable && t.DeletionTimestamp == nil
}

// target returns what the scheduler sees of a SyncTarget. offered are the Locations, sorted by name.
func (i *Inventory) target(t *workload.SyncTarget, offered []*scheduling.Location) Target {
	w := Target{Target: place.Target{
		Key: engine.TargetKey(string(i.options.Compute), t.Name, string(t.UID)), Unschedulable: t.Spec.Unschedulable, Taints: t.Spec.Taints,
		Ready: t.Status.LastSyncerHeartbeatTime != nil,
	}, labels: t.Labels}
	i.options.Health(t, &w.Target)
	w.Leased, w.Abandoned = t.Status.LeaseSeconds != nil, i.options.Abandoned != nil && i.options.Abandoned(t)
	w.available = Available(t)
	if t.Spec.EvictAfter != nil {
		w.EvictAfter = t.Spec.EvictAfter.Time
	}
	w.Keeps = t.Annotations[workload.OrphanAnnotation] == "true"
	if t.DeletionTimestamp != nil {
		w.EvictAfter, w.Deleting, w.Orphans = t.DeletionTimestamp.Time, true, w.Keeps
	}
	for _, l := range offered {
		if Has(l, t) {
			w.Locations = append(w.Locations, Location{l.Name, l.Labels})
		}
	}
	return w
}

// offered returns the Locations, sorted by name.
func (i *Inventory) offered() []*scheduling.Location {
	all := i.options.Locations.List(i.options.Compute)
	slices.SortFunc(all, func(a, b *scheduling.Location) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Learn makes all targets anew.
func (i *Inventory) Learn() {
	i.learning.Lock()
	defer i.learning.Unlock()
	offered := i.offered()
	i.places = map[string]*scheduling.Location{}
	for _, l := range offered {
		i.places[l.Name] = l
	}
	var targets []Target
	keys := map[string]string{}
	for _, t := range i.options.Targets.List(i.options.Compute) {
		w := i.target(t, offered)
		keys[t.Name] = w.Key
		targets = append(targets, w)
	}
	slices.SortFunc(targets, func(a, b Target) int { return strings.Compare(a.Key, b.Key) })
	i.mu.Lock()
	defer i.mu.Unlock()
	i.targets, i.keys, i.holds = targets, keys, place.Hold(placed(targets))
}

// LearnTarget brings one target up to date. Its cost does not depend on the number of targets if
// the target is the same, as after a heartbeat.
func (i *Inventory) LearnTarget(name string) {
	i.learning.Lock()
	defer i.learning.Unlock()
	var next []Target
	if t := i.options.Targets.Get(kcp.Key{Cluster: i.options.Compute, Name: name}); t != nil {
		next = append(next, i.target(t, i.offered()))
	}
	before, same := i.replace(name, next, time.Now())
	if same {
		return
	}
	i.count(before, next)
	for _, all := range [][]Target{before, next} {
		for n := range all {
			all[n].available = false
		}
	}
	if !reflect.DeepEqual(before, next) {
		i.turn()
	}
}

// replace puts a target, or none, in the place of the one with the name of its SyncTarget, unless
// they are the same.
func (i *Inventory) replace(name string, next []Target, now time.Time) (before []Target, same bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	at, exists := 0, false
	if key, known := i.keys[name]; known {
		if at, exists = i.at(key); exists {
			before = append(before, i.targets[at])
		}
	}
	if reflect.DeepEqual(before, next) {
		return before, true
	}
	if exists {
		i.targets = slices.Delete(i.targets, at, at+1)
		delete(i.keys, name)
	}
	for _, w := range next {
		at, _ := i.at(w.Key)
		i.targets = slices.Insert(i.targets, at, w)
		i.keys[name] = w.Key
	}
	if holds := place.Hold(placed(i.targets)); holds != i.holds {
		i.holds, i.turned = holds, !i.turned
		if !holds { // the other targets may be about to answer, too
			i.known = now
		}
	}
	return before, false
}

// KnowFrom sets the time from which on the server knows which targets answer. Toleration of a target that does not
// answer begins then at the earliest, because the target may have answered before. It begins again when a hold ends.
func (i *Inventory) KnowFrom(now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.known = now
}

// at returns the index of a target, or where it would be. The caller holds mu.
func (i *Inventory) at(key string) (at int, exists bool) {
	return slices.BinarySearchFunc(i.targets, key, func(w Target, key string) int { return strings.Compare(w.Key, key) })
}

// LearnLocation brings the targets of one Location up to date. A change of its status costs nothing.
func (i *Inventory) LearnLocation(name string) {
	i.learning.Lock()
	defer i.learning.Unlock()
	before, l := i.places[name], i.options.Locations.Get(kcp.Key{Cluster: i.options.Compute, Name: name})
	if before != nil && l != nil && reflect.DeepEqual(before.Spec, l.Spec) && reflect.DeepEqual(before.Labels, l.Labels) {
		return
	}
	delete(i.places, name)
	selector := labels.Nothing()
	if l != nil {
		i.places[name] = l
		selector = selectorOf(l)
	}
	changed := false
	i.mu.Lock()
	for n := range i.targets {
		w := &i.targets[n]
		next := slices.DeleteFunc(slices.Clone(w.Locations), func(of Location) bool { return of.Name == name })
		if l != nil && selector.Matches(labels.Set(w.labels)) {
			at, _ := slices.BinarySearchFunc(next, name, func(of Location, name string) int { return strings.Compare(of.Name, name) })
			next = slices.Insert(next, at, Location{l.Name, l.Labels})
		}
		if len(next) == 0 {
			next = nil
		}
		if !reflect.DeepEqual(w.Locations, next) {
			w.Locations, changed = next, true
		}
	}
	i.mu.Unlock()
	if changed {
		i.turn()
	}
}

// count makes the Locations of targets count.
func (i *Inventory) count(changed ...[]Target) {
	for _, all := range changed {
		for _, w := range all {
			for _, l := range w.Locations {
				i.options.Count(l.Name)
			}
		}
	}
}

// CountAll makes all Locations that have a target count.
func (i *Inventory) CountAll() { i.count(i.All()) }

// turn tells that something has changed for the scheduler.
func (i *Inventory) turn() {
	i.mu.Lock()
	turned := i.turned
	i.turned = false
	i.mu.Unlock()
	i.options.Turn(turned)
}

// All returns the targets, by key.
func (i *Inventory) All() []Target {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.targets)
}

// Holds reports whether no workload leaves targets that do not answer.
func (i *Inventory) Holds() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.holds
}

// Assume applies the assumptions of a review to the targets. change must not call the inventory.
func (i *Inventory) Assume(change func(*Target)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n := range i.targets {
		change(&i.targets[n])
	}
}

// Add applies the assumption of a review that a Location has n more targets, which are ready and have no taints. It
// returns their keys, or none if there is no such Location.
func (i *Inventory) Add(location string, n int) (keys []string) {
	i.learning.Lock()
	defer i.learning.Unlock()
	named := i.places[location]
	if named == nil {
		return nil
	}
	w := Target{labels: required(named.Spec.InstanceSelector)}
	for _, l := range i.offered() {
		if l.Name == location || selectorOf(l).Matches(labels.Set(w.labels)) {
			w.Locations = append(w.Locations, Location{l.Name, l.Labels})
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for range n {
		w.Target = place.Target{Key: fmt.Sprintf("added-%s-%d", location, len(i.targets)), Ready: true}
		keys = append(keys, w.Key)
		at, _ := i.at(w.Key)
		i.targets = slices.Insert(i.targets, at, w)
	}
	return keys
}

// required returns labels that a selector selects, if it asks only for labels that must be there.
func required(s *metav1.LabelSelector) map[string]string {
	if s == nil {
		return nil
	}
	all := map[string]string{}
	maps.Copy(all, s.MatchLabels)
	for _, e := range s.MatchExpressions {
		switch {
		case e.Operator == metav1.LabelSelectorOpIn && len(e.Values) > 0:
			all[e.Key] = e.Values[0]
		case e.Operator == metav1.LabelSelectorOpExists:
			all[e.Key] = ""
		}
	}
	return all
}

// For returns the targets as a Placement sees them, whether no workload leaves those that do not answer, and when their
// toleration begins at the earliest.
func (i *Inventory) For(p *scheduling.Placement) (all []place.Target, hold bool, known time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, w := range i.targets {
		t := w.Target
		for _, l := range w.Locations {
			if len(p.Spec.LocationSelectors) == 0 || slices.ContainsFunc(p.Spec.LocationSelectors, func(s metav1.LabelSelector) bool { return Selects(&s, l.Labels) }) {
				t.Location = l.Name
				break
			}
		}
		all = append(all, t)
	}
	return all, place.Hold(all), i.known
}

// Selects reports whether a selector selects an object with these labels. One that is invalid
// selects nothing.
func Selects(s *metav1.LabelSelector, of map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(of))
}

func placed(all []Target) (out []place.Target) {
	for _, w := range all {
		out = append(out, w.Target)
	}
	return out
}
