// Package consumers reads and writes the objects of the workspaces that bind a compute workspace: their Placements,
// Assignments and TargetStatuses, the objects that are placed, and those that these refer to.
//
// It hides the caches and their indexes, and the kinds that come and go with ResourceProfiles. It also hides what is
// read from the server instead of a cache, and which engines a change concerns.
package consumers

import (
	"context"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/profile"
)

type (
	placementClient  = client.Client[*scheduling.Placement, *scheduling.PlacementList]
	assignmentClient = client.Client[*workload.Assignment, *workload.AssignmentList]
	statusClient     = client.Client[*workload.TargetStatus, *workload.TargetStatusList]
	profileClient    = client.Client[*workload.ResourceProfile, *workload.ResourceProfileList]
)

// SlowWrites is the [kcp.Loop.Slow] of loops that write to consumers. A workspace may take long to accept a write, as with
// a webhook.
const SlowWrites = 64

// Options say whose objects a [Cache] has.
type Options struct {
	// Compute is the compute workspace.
	Compute kcp.ClusterName
	// Consumer is the workspace whose objects are cached, "*" for all consumers.
	Consumer kcp.ClusterName
	// Home configures clients of the compute workspace, and View those of the view of its export.
	Home, View *rest.Config
	// Tenant returns the tenant of a logical cluster, or the cluster itself if that is not known.
	Tenant func(kcp.ClusterName) kcp.ClusterName
	// Labels returns the labels of a namespace, and whether it exists.
	Labels func(ctx context.Context, cluster kcp.ClusterName, namespace string) (map[string]string, bool, error)
	// Changes is a source of the keys of namespaces that change in logical clusters for which wants holds.
	Changes func(wants func(kcp.ClusterName) bool) kcp.Source
}

// A Cache has the objects of consumers. It reaches them through the view of the export that they bind, and
// no others. It is empty until [Cache.Start] or [Cache.Fill]. Its methods may be called concurrently.
type Cache struct {
	// Placements, Assignments and Reports are those of the consumers.
	Placements  *kcp.Kind[*scheduling.Placement]
	Assignments *kcp.Kind[*workload.Assignment]
	Reports     *kcp.Kind[*workload.TargetStatus]
	// Profiles are the ResourceProfiles of the compute workspace.
	Profiles *kcp.Kind[*workload.ResourceProfile]

	options       Options
	placementsIn  *placementClient
	assignmentsIn *assignmentClient
	reportsIn     *statusClient
	profilesIn    *profileClient
	objectsIn     dynamic.Interface
	spent         spendings
	namespaces    namespaces

	ctx     context.Context // set by Start
	work    *sync.WaitGroup // set by Start
	needed  chan struct{}   // closed when there is a consumer, or a physical cluster has objects
	need    func()          // closes it
	settled chan struct{}   // closed when all caches that decisions need are complete

	describing sync.Mutex // held while a kind is added or removed
	kindsMu    sync.RWMutex
	kinds      []*Kind // replaced, not changed; guarded by kindsMu

	enginesMu sync.Mutex
	engines   map[string]func(kcp.Key)                           // wake them, by target; guarded by enginesMu
	agents    listeners[func(target string, of engine.ID)]       // learn what concerns engines in other programs
	loops     listeners[func(*Kind, *unstructured.Unstructured)] // learn which objects change
}

// Indexes.
const (
	byTarget    = "target"    // of Assignments and TargetStatuses, by the keys of their targets
	byHolding   = "holding"   // of Assignments, by the key of a target and the resource
	byNamespace = "namespace" // of Assignments and of objects that follow, by their namespace
	byTask      = "task"      // of TargetStatuses, by the task of their workload
	byRef       = "ref"       // of objects, by what they refer to
)

// Open returns an empty cache of the objects of one consumer, or of all ("*"), of a compute workspace.
func Open(s *kcp.Server, compute, consumer kcp.ClusterName) (*Cache, error) {
	home, err := s.Own(string(compute))
	if err != nil {
		return nil, err
	}
	view, err := objects.View(s, compute, workload.KubernetesExport)
	if err != nil {
		return nil, err
	}
	return New(Options{Compute: compute, Consumer: consumer, Home: home, View: view, Tenant: s.Tenant,
		Labels: s.NamespaceLabels, Changes: s.NamespaceChanges})
}

// New returns an empty cache.
func New(o Options) (*Cache, error) {
	c := &Cache{options: o, needed: make(chan struct{}), settled: make(chan struct{}), engines: map[string]func(kcp.Key){}}
	c.need = sync.OnceFunc(func() { close(c.needed) })
	at := string(o.Consumer)
	var err error
	if c.placementsIn, err = client.New[*scheduling.Placement, *scheduling.PlacementList](o.View, at, scheduling.GroupVersion.WithResource("placements")); err != nil {
		return nil, err
	}
	if c.assignmentsIn, err = client.New[*workload.Assignment, *workload.AssignmentList](o.View, at, Assignments()); err != nil {
		return nil, err
	}
	if c.reportsIn, err = client.New[*workload.TargetStatus, *workload.TargetStatusList](o.View, at, TargetStatuses()); err != nil {
		return nil, err
	}
	if c.profilesIn, err = client.New[*workload.ResourceProfile, *workload.ResourceProfileList](o.Home, string(o.Compute), resourceProfiles()); err != nil {
		return nil, err
	}
	if c.objectsIn, err = dynamic.NewForConfig(client.Cluster(o.View, at)); err != nil {
		return nil, err
	}
	c.Placements, c.Assignments = objects.KindOf("placements", c.placementsIn), objects.KindOf("assignments", c.assignmentsIn)
	c.Reports, c.Profiles = objects.KindOf("targetstatuses", c.reportsIn), objects.KindOf("resourceprofiles", c.profilesIn)
	for _, p := range slices.Concat(profile.Shipped(), profile.Dependencies()) {
		k, err := c.newKind(p)
		if err != nil {
			return nil, err
		}
		c.kinds = append(c.kinds, k)
	}
	return c, c.index()
}

// Assignments returns the resource of Assignments.
func Assignments() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("assignments")
}

// TargetStatuses returns the resource of TargetStatuses.
func TargetStatuses() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("targetstatuses")
}

func resourceProfiles() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("resourceprofiles")
}

// index adds the indexes of Assignments and TargetStatuses.
func (c *Cache) index() error {
	err := c.Assignments.Index(byTarget, func(a *workload.Assignment) (keys []string) {
		for _, t := range a.Spec.Targets {
			keys = append(keys, t.Key)
		}
		return keys
	})
	if err != nil {
		return err
	}
	err = c.Assignments.Index(byHolding, func(a *workload.Assignment) (keys []string) {
		for _, t := range a.Spec.Targets {
			keys = append(keys, holdingKey(t.Key, engine.IDFor(a, a.Spec.Workload).GroupResource))
		}
		return keys
	})
	if err != nil {
		return err
	}
	if err := c.Reports.Index(byTask, func(s *workload.TargetStatus) []string {
		return []string{engine.IDFor(s, s.Spec.Workload).Task().String()}
	}); err != nil {
		return err
	}
	if err := c.Reports.Index(byTarget, func(s *workload.TargetStatus) []string { return []string{s.Spec.Key} }); err != nil {
		return err
	}
	return c.Assignments.Index(byNamespace, func(a *workload.Assignment) []string { return []string{namespaceKey(kcp.KeyOf(a))} })
}

func holdingKey(target string, of schema.GroupResource) string { return target + "/" + of.String() }

func namespaceKey(of kcp.Key) string { return string(of.Cluster) + "/" + of.Namespace }

// Start fills the caches until ctx ends, and adds its goroutines to work. settled is called when all caches
// that decisions need are complete, see [Cache.Settled].
func (c *Cache) Start(ctx context.Context, work *sync.WaitGroup, settled func()) {
	c.ctx, c.work = ctx, work
	work.Go(func() { c.Placements.Run(ctx) })
	work.Go(func() { c.Assignments.Run(ctx) })
	work.Go(func() { c.Reports.Run(ctx) })
	c.Placements.Wakes(func(p *scheduling.Placement) []kcp.Key {
		if at := kcp.KeyOf(p).Cluster; !c.selectsByLabels(at) {
			c.namespaces.drop(at) // changes are not noticed any more
		}
		return nil
	}).Subscribe(func(kcp.Key) {})
	c.startKinds(settled)
	for _, s := range c.dispatches() {
		s.Subscribe(func(kcp.Key) {})
	}
}

// Fill fills the caches of Placements, Assignments and TargetStatuses and those of the kinds that include
// selects, until ctx ends. It adds its goroutines to work. It reports false if ctx ends before they are complete.
func (c *Cache) Fill(ctx context.Context, work *sync.WaitGroup, include func(*Kind) bool) bool {
	complete := []<-chan struct{}{c.Placements.Ready(), c.Assignments.Ready(), c.Reports.Ready()}
	running := []func(context.Context){c.Placements.Run, c.Assignments.Run, c.Reports.Run}
	for _, k := range c.Kinds() {
		if include(k) {
			running, complete = append(running, k.Objects.Run), append(complete, k.Objects.Ready())
		}
	}
	for _, run := range running {
		work.Go(func() { run(ctx) })
	}
	return objects.Await(ctx, complete...)
}

// Settled returns a channel that is closed when all caches that decisions need are complete. The channel
// stays open while there is no consumer.
func (c *Cache) Settled() <-chan struct{} { return c.settled }

// Workload returns an object of a consumer, nil if there is none.
func (c *Cache) Workload(id engine.ID) *unstructured.Unstructured {
	if k := c.Kind(id.GroupResource); k != nil {
		return k.Objects.Get(id.Key)
	}
	return nil
}

// Assignment returns the Assignment of an object, nil if there is none.
func (c *Cache) Assignment(id engine.ID) *workload.Assignment {
	key := id.Key
	key.Name = engine.AssignmentName(id.GroupResource, key.Name)
	return c.Assignments.Get(key)
}

// Report returns the report of a target about an object, nil if there is none.
func (c *Cache) Report(id engine.ID, target string) *workload.TargetStatus {
	key := id.Key
	key.Name = engine.StatusName(id.GroupResource, key.Name, target)
	return c.Reports.Get(key)
}

// ReportsOf returns the reports of all targets about an object.
func (c *Cache) ReportsOf(id engine.ID) (all []*workload.TargetStatus) {
	for _, key := range c.Reports.By(byTask, id.Task().String()) {
		if r := c.Reports.Get(key); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// AssignedIn returns the Assignments in the namespace of a key.
func (c *Cache) AssignedIn(of kcp.Key) (all []*workload.Assignment) {
	for _, key := range c.Assignments.By(byNamespace, namespaceKey(of)) {
		if a := c.Assignments.Get(key); a != nil {
			all = append(all, a)
		}
	}
	return all
}

// AnyPart reports whether is holds for a part of a target. Until the Assignments are known, it
// may hold.
func (c *Cache) AnyPart(target string, is func(*workload.AssignedTarget) bool) bool {
	select {
	case <-c.Assignments.Ready():
	default:
		return true
	}
	for _, key := range c.Assignments.By(byTarget, target) {
		if a := c.Assignments.Get(key); a != nil {
			if p := PartAt(a, target); p != nil && is(p) {
				return true
			}
		}
	}
	return false
}

// Known reports whether the Assignments and TargetStatuses of all consumers are known.
func (c *Cache) Known() bool {
	for _, ready := range []<-chan struct{}{c.Assignments.Ready(), c.Reports.Ready()} {
		select {
		case <-ready:
		default:
			return false
		}
	}
	return true
}

// Held returns the objects that a target has a part of, or a report about, in the order of their tasks.
func (c *Cache) Held(target string) (all []engine.ID) {
	all = c.assigned(target)
	for _, key := range c.Reports.By(byTarget, target) {
		if r := c.Reports.Get(key); r != nil {
			all = append(all, engine.IDFor(r, r.Spec.Workload))
		}
	}
	slices.SortFunc(all, func(a, b engine.ID) int { return strings.Compare(a.Task().String(), b.Task().String()) })
	return slices.Compact(all)
}

// Reported reports whether there is a report of a target. Until the reports are known, there may be one.
func (c *Cache) Reported(target string) bool {
	select {
	case <-c.Reports.Ready():
		return len(c.Reports.By(byTarget, target)) > 0
	default:
		return true
	}
}

// Refusal returns what a target says about a copy that the physical cluster refuses to delete, with the object whose copy
// it is. The text is empty if there is none.
func (c *Cache) Refusal(target string) (of engine.ID, text string) {
	for _, key := range c.Reports.By(byTarget, target) {
		r := c.Reports.Get(key)
		if r == nil || r.Spec.Reason != workload.RefusedRemoval {
			continue
		}
		if id := engine.IDFor(r, r.Spec.Workload); text == "" || id.Task().String() < of.Task().String() { // the answer does not change without need
			of, text = id, r.Spec.Message
		}
	}
	return of, text
}

// PartAt returns the part of a target, nil if it has none.
func PartAt(a *workload.Assignment, target string) *workload.AssignedTarget {
	for i := range a.Spec.Targets {
		if a.Spec.Targets[i].Key == target {
			return &a.Spec.Targets[i]
		}
	}
	return nil
}

// Placed returns the keys of objects that have an Assignment or the finalizer, as tasks. It is not sure before
// the caches are complete.
func (c *Cache) Placed() (tasks []kcp.Key, sure bool) {
	for _, ready := range []<-chan struct{}{c.Assignments.Ready(), c.Placements.Ready()} {
		select {
		case <-ready:
		default:
			return nil, false
		}
	}
	for _, a := range c.Assignments.List("*") {
		tasks = append(tasks, engine.IDFor(a, a.Spec.Workload).Task())
	}
	select {
	case <-c.settled:
	default: // without consumers, the caches of their objects stay empty
		return tasks, len(tasks)+len(c.Placements.List("*")) == 0
	}
	for _, k := range c.Kinds() {
		for _, o := range k.Objects.List("*") {
			if slices.Contains(o.GetFinalizers(), workload.PlacedFinalizer) {
				tasks = append(tasks, engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(o)}.Task())
			}
		}
	}
	return tasks, true
}

// PlacedOf counts the objects of a resource that are placed, and returns one. It is not sure before the caches
// are complete.
func (c *Cache) PlacedOf(of schema.GroupResource) (users int, example kcp.Key, sure bool) {
	select {
	case <-c.settled:
	default:
		return 0, example, false
	}
	all := map[kcp.Key]bool{}
	for _, a := range c.Assignments.List("*") {
		if id := engine.IDFor(a, a.Spec.Workload); id.GroupResource == of {
			all[id.Key] = true
		}
	}
	for _, r := range c.Reports.List("*") {
		if id := engine.IDFor(r, r.Spec.Workload); id.GroupResource == of {
			all[id.Key] = true
		}
	}
	if k := c.Kind(of); k != nil {
		for _, o := range k.Objects.List("*") {
			if slices.Contains(o.GetFinalizers(), workload.PlacedFinalizer) {
				all[kcp.KeyOf(o)] = true
			}
		}
	}
	for key := range all {
		if example.Name == "" || key.String() < example.String() { // the message does not change without need
			example = key
		}
	}
	return len(all), example, true
}
