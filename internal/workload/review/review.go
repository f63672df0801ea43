// Package review answers PlacementReviews: where the scheduler would place the workloads of a workspace. It hides
// that each review has caches of its own, what is assumed of targets, and how much of them a user may see.
package review

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/utils/ptr"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
	"github.com/unforked/kcp/internal/workload/schedule"
)

// Resource is the resource of PlacementReviews.
func Resource() schema.GroupResource {
	return scheduling.GroupVersion.WithResource("placementreviews").GroupResource()
}

const (
	// mostReviews and mostReviewsOfAll are the maxima of concurrent reviews of one workspace and of
	// this server. A review reads all workloads of the workspace.
	mostReviews, mostReviewsOfAll = 2, 16
	// mostReviewed is the maximum of workloads in an answer.
	mostReviewed = 500
	// mostDetailed is the maximum of workloads in a question whose answer names targets without a part.
	mostDetailed = 10
	// reviewWithin is the timeout of a review.
	reviewWithin = 20 * time.Second
)

// Options are what reviews read.
type Options struct {
	Server *kcp.Server
	// Targets and Locations are clients for all compute workspaces.
	Targets   *client.Client[*workload.SyncTarget, *workload.SyncTargetList]
	Locations *client.Client[*scheduling.Location, *scheduling.LocationList]
	// Health sets what a target's conditions, leases and fences say, as for the scheduler.
	Health func(*workload.SyncTarget, *place.Target)
	// Stop is how much longer than the grace period of its pods an agent may take to stop a workload.
	Stop time.Duration
}

// A Reviewer answers PlacementReviews with the code of the scheduler, on any server.
type Reviewer struct {
	computeOf func(context.Context, kcp.ClusterName) (kcp.ClusterName, error)

	mu      sync.Mutex
	options *Options                // nil before the start; guarded by mu
	running map[kcp.ClusterName]int // reviews by workspace; guarded by mu
	all     int                     // guarded by mu
}

// New returns a Reviewer, which answers nothing before [Reviewer.Start]. computeOf returns the compute workspace
// that a workspace binds, empty if it binds none.
func New(computeOf func(context.Context, kcp.ClusterName) (kcp.ClusterName, error)) *Reviewer {
	return &Reviewer{computeOf: computeOf, running: map[kcp.ClusterName]int{}}
}

// Start lets the Reviewer answer.
func (r *Reviewer) Start(o Options) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.options = &o
}

// Rule returns the admission rule that answers PlacementReviews.
func (r *Reviewer) Rule() kcp.Rule {
	return kcp.Rule{
		Name: "PlacementReviews",
		Mutate: func(ctx context.Context, req kcp.Request) error {
			if !req.Is(Resource()) || req.GetOperation() != admission.Create {
				return nil
			}
			return r.answer(ctx, req)
		},
		Validate: func(_ context.Context, req kcp.Request) error {
			if req.Is(Resource()) && (req.GetOperation() == admission.Create || req.GetOperation() == admission.Update) && !req.IsDryRun() {
				return req.Forbid(errors.New("a PlacementReview is not stored; create it, as with kubectl create -f FILE -o yaml"))
			}
			return nil
		},
	}
}

// answer sets the status of a review.
func (r *Reviewer) answer(ctx context.Context, req kcp.Request) error {
	object, ok := req.GetObject().(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("unexpected object %T", req.GetObject())
	}
	asked := &scheduling.PlacementReview{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, asked); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	o, leave, err := r.enter(req.Cluster)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, reviewWithin)
	defer cancel()
	compute, err := r.computeOf(ctx, req.Cluster)
	if err != nil {
		return err
	}
	if compute == "" {
		return apierrors.NewBadRequest("the workspace binds no compute workspace; run: kubectl kcp bind compute PATH")
	}
	named, err := seesTargets(ctx, o.Server, compute, req.GetUserInfo())
	if err != nil {
		return err
	}
	if assume := asked.Spec.Assume; !named && len(assume.DownTargets)+len(assume.CordonedTargets) > 0 {
		return req.Forbid(errors.New("only users who may list the SyncTargets of the compute workspace may name them; name Locations instead"))
	}
	status, err := o.review(ctx, compute, req.Cluster, question{asked.Spec, named})
	if err != nil {
		return err
	}
	if object.Object["status"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(status); err != nil {
		return err
	}
	return nil
}

// enter takes a slot for a review.
func (r *Reviewer) enter(c kcp.ClusterName) (o *Options, leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.options == nil:
		return nil, nil, apierrors.NewServiceUnavailable("the server is starting")
	case r.running[c] >= mostReviews || r.all >= mostReviewsOfAll:
		return nil, nil, apierrors.NewTooManyRequests("too many concurrent PlacementReviews", 1)
	}
	r.running[c]++
	r.all++
	return r.options, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all--
		if r.running[c]--; r.running[c] == 0 {
			delete(r.running, c)
		}
	}, nil
}

// seesTargets reports whether a user may list the SyncTargets of a compute workspace.
func seesTargets(ctx context.Context, s *kcp.Server, compute kcp.ClusterName, u user.Info) (bool, error) {
	if u == nil {
		return false, nil
	}
	cfg, err := s.Own(string(compute))
	if err != nil {
		return false, err
	}
	reviews, err := authorization.NewForConfig(client.Cluster(cfg, string(compute)))
	if err != nil {
		return false, err
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range u.GetExtra() {
		extra[k] = v
	}
	review, err := reviews.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: workload.GroupVersion.Group, Version: workload.GroupVersion.Version, Resource: "synctargets"},
	}}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}

// A question is what a user asks, and whether they see the names of targets.
type question struct {
	scheduling.PlacementReviewSpec
	named bool
}

// review decides about the workloads of a consumer as the scheduler would. Its caches are those of
// the scheduler, with the objects of this consumer only, and they end with the review.
func (o *Options) review(ctx context.Context, compute, consumer kcp.ClusterName, q question) (*scheduling.PlacementReviewStatus, error) {
	s, end, err := o.open(ctx, compute, consumer, q)
	if err != nil {
		return nil, err
	}
	defer end()
	shown, err := s.assume(q)
	if err != nil {
		return nil, err
	}
	out := &scheduling.PlacementReviewStatus{Held: s.held()}
	for _, of := range s.reviewable(consumer, q) {
		if len(out.Workloads) >= mostReviewed {
			out.Omitted++
			continue
		}
		one, err := s.reviewed(ctx, of, shown)
		if err != nil {
			return nil, err
		}
		out.Workloads = append(out.Workloads, one)
	}
	return out, nil
}

// A session is one review.
type session struct {
	compute   kcp.ClusterName
	targets   *kcp.Kind[*workload.SyncTarget]
	consumers *consumers.Cache
	inventory *inventory.Inventory
	scheduler *schedule.Scheduler
}

// open returns a session with the objects of one consumer that a question is about, whose caches
// are complete.
func (o *Options) open(ctx context.Context, compute, consumer kcp.ClusterName, q question) (*session, func(), error) {
	targetsIn, err := o.Targets.In(string(compute))
	if err != nil {
		return nil, nil, err
	}
	locationsIn, err := o.Locations.In(string(compute))
	if err != nil {
		return nil, nil, err
	}
	targets, locations := objects.KindOf("synctargets", targetsIn), objects.KindOf("locations", locationsIn)
	cache, err := consumers.Open(o.Server, compute, consumer)
	if err != nil {
		return nil, nil, err
	}
	if err := cache.DescribeAll(ctx); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	end := func() { cancel(); work.Wait() }
	work.Go(func() { targets.Run(ctx) })
	work.Go(func() { locations.Run(ctx) })
	needed := func(k *consumers.Kind) bool {
		return q.concerns(k) || k.GroupVersionResource == profile.Budgets() // these keep workloads where they are
	}
	if !cache.Fill(ctx, &work, needed) || !objects.Await(ctx, targets.Ready(), locations.Ready()) {
		end()
		return nil, nil, apierrors.NewTimeoutError("the review takes too long; name fewer workloads", 1)
	}
	known := inventory.New(inventory.Options{Compute: compute, Targets: targets, Locations: locations, Health: o.Health})
	known.Learn()
	return &session{compute: compute, targets: targets, consumers: cache, inventory: known,
		scheduler: schedule.New(schedule.Options{Consumers: cache, Inventory: known, Stop: o.Stop})}, end, nil
}

// concerns reports whether a question is about workloads of a kind. Followers, volumes and dependencies
// are never subjects: the scheduler does not choose targets for them.
func (q question) concerns(k *consumers.Kind) bool {
	if !slices.Contains([]workload.ResourceClass{workload.Replicated, workload.Singleton, workload.Everywhere}, k.Class) {
		return false
	}
	return len(q.Workloads) == 0 || slices.ContainsFunc(q.Workloads, func(r scheduling.ReviewedReference) bool {
		return r.Group == k.Group && r.Resource == k.Resource
	})
}

// reviewable returns the workloads that a question is about, sorted.
func (s *session) reviewable(consumer kcp.ClusterName, q question) (all []schedule.Subject) {
	for _, k := range s.consumers.Kinds() {
		if !q.concerns(k) {
			continue
		}
		gr := k.GroupResource()
		for _, w := range k.Objects.List(consumer) {
			asked := len(q.Workloads) == 0 || slices.Contains(q.Workloads, scheduling.ReviewedReference{Group: gr.Group, Resource: gr.Resource, Namespace: w.GetNamespace(), Name: w.GetName()})
			if !asked || w.GetDeletionTimestamp() != nil {
				continue
			}
			id := engine.ID{GroupResource: gr, Key: kcp.KeyOf(w)}
			a := s.consumers.Assignment(id)
			if a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
				a = nil // of a namesake that was deleted
			}
			if a == nil && k.IsRevision(w) {
				continue
			}
			all = append(all, schedule.Subject{Kind: k, ID: id, Object: w, Assignment: a})
		}
	}
	slices.SortFunc(all, func(a, b schedule.Subject) int {
		return cmp.Or(cmp.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()), cmp.Compare(a.Object.GetName(), b.Object.GetName()), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Group, b.Group))
	})
	return all
}

// reviewed returns the answer about one workload.
func (s *session) reviewed(ctx context.Context, of schedule.Subject, names shownTargets) (scheduling.ReviewedWorkload, error) {
	w := of.Object
	out := scheduling.ReviewedWorkload{Kind: w.GetKind(), Replicas: of.Wants(w),
		ReviewedReference: scheduling.ReviewedReference{Group: of.Group, Resource: of.Resource, Namespace: w.GetNamespace(), Name: w.GetName()}}
	p, err := s.consumers.PlacementOf(ctx, of.ID.Key)
	if err != nil {
		return out, err
	}
	if p == nil || p.Spec.Suspend {
		now := place.Decision{Reason: place.NoPlacement}
		if out.Message = "no Placement of the workspace selects the namespace of the workload"; p != nil {
			out.Placement, now.Reason = p.Name, place.Suspended
			out.Message = fmt.Sprintf("Placement %q is suspended: everything stays where it is", p.Name)
		}
		snap, err := s.scheduler.Snapshot(ctx, of, &scheduling.Placement{})
		for _, part := range snap.Parts {
			now.Targets = append(now.Targets, part.AssignedTarget)
		}
		out.Reason, out.Locations = now.Reason, compare(snap, now, names)
		return out, err
	}
	snap, err := s.scheduler.Snapshot(ctx, of, p)
	if err != nil {
		return out, err
	}
	d := place.Settle(snap)
	for _, key := range place.Decide(snap).Evicted {
		if slices.ContainsFunc(snap.Targets, func(t place.Target) bool { return t.Key == key && !t.Unreachable.Equal(assumedLoss()) }) {
			d.Refusals[key] = place.Paced // the server that leads would have begun to evict it, if it had a permit
		}
	}
	out.Placement, out.Reason, out.Message = p.Name, d.Reason, schedule.Explain(d)
	out.Locations, out.Moved = compare(snap, d, names), moved(snap, d)
	return out, nil
}

// moved returns how many replicas other targets run after a decision.
func moved(s place.Snapshot, d place.Decision) (n int32) {
	for _, t := range d.Targets {
		if t.Phase != workload.Active {
			continue
		}
		i := slices.IndexFunc(s.Parts, func(p place.Part) bool { return p.Key == t.Key && p.Phase != workload.Removing })
		switch {
		case len(s.Parts) == 0: // it runs nowhere yet
		case t.Replicas == nil && i < 0:
			n++
		case t.Replicas != nil && i < 0:
			n += *t.Replicas
		case t.Replicas != nil && s.Parts[i].Replicas != nil:
			n += max(0, *t.Replicas-*s.Parts[i].Replicas)
		}
	}
	return n
}

// compare returns what each target has and would have. Without names, targets that are alike are one
// line.
func compare(s place.Snapshot, d place.Decision, names shownTargets) []scheduling.ReviewedLocation {
	var lines []scheduling.ReviewedLocation
	add := func(key, location string) {
		line := scheduling.ReviewedLocation{Location: location, Target: names.byKey[key], Clusters: 1, Added: names.added[key], Reason: string(d.Refusals[key])}
		if i := slices.IndexFunc(s.Parts, func(p place.Part) bool { return p.Key == key }); i >= 0 {
			p := s.Parts[i]
			line.Replicas, line.Available, line.Phase = p.Replicas, p.Available, string(p.Phase)
			line.Location, line.Outdated = cmp.Or(line.Location, p.Location), !p.Applied && p.Phase != workload.Removing
		}
		if i := slices.IndexFunc(d.Targets, func(t workload.AssignedTarget) bool { return t.Key == key }); i >= 0 {
			t := d.Targets[i]
			line.NextReplicas, line.NextPhase = t.Replicas, string(t.Phase)
			line.Reason = cmp.Or(line.Reason, t.Reason)
		}
		if !names.all && line.Phase == "" && line.NextPhase == "" {
			line.Target = ""
		}
		lines = merge(lines, line)
	}
	for _, t := range s.Targets {
		add(t.Key, t.Location)
	}
	for _, p := range s.Parts { // of targets that were deleted
		if !slices.ContainsFunc(s.Targets, func(t place.Target) bool { return t.Key == p.Key }) {
			add(p.Key, p.Location)
		}
	}
	slices.SortStableFunc(lines, func(a, b scheduling.ReviewedLocation) int {
		return cmp.Or(cmp.Compare(a.Location, b.Location), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Reason, b.Reason), cmp.Compare(ptr.Deref(b.Replicas, 0), ptr.Deref(a.Replicas, 0)))
	})
	return lines
}

// merge adds a line, or counts it with one that is alike. Lines with a name or a part are alone.
func merge(lines []scheduling.ReviewedLocation, line scheduling.ReviewedLocation) []scheduling.ReviewedLocation {
	if line.Target == "" && line.Phase == "" && line.NextPhase == "" {
		for i := range lines {
			if l := &lines[i]; l.Location == line.Location && l.Added == line.Added && l.Reason == line.Reason && l.Phase == "" && l.NextPhase == "" {
				l.Clusters++
				return lines
			}
		}
	}
	return append(lines, line)
}
