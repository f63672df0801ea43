package fleet

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

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

func placementReviews() schema.GroupVersionResource {
	return scheduling.GroupVersion.WithResource("placementreviews")
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

// A reviewer answers PlacementReviews with the code of the scheduler, on any server.
type reviewer struct {
	computeOf func(context.Context, kcp.ClusterName) (kcp.ClusterName, error)

	mu      sync.Mutex
	manager *manager                // nil before the start; guarded by mu
	running map[kcp.ClusterName]int // reviews by workspace; guarded by mu
	all     int                     // guarded by mu
}

func (r *reviewer) rule() kcp.Rule {
	return kcp.Rule{
		Name: "PlacementReviews",
		Mutate: func(ctx context.Context, req kcp.Request) error {
			if !req.Is(placementReviews().GroupResource()) || req.GetOperation() != admission.Create {
				return nil
			}
			return r.answer(ctx, req)
		},
		Validate: func(_ context.Context, req kcp.Request) error {
			if req.Is(placementReviews().GroupResource()) && (req.GetOperation() == admission.Create || req.GetOperation() == admission.Update) && !req.IsDryRun() {
				return req.Forbid(errors.New("a PlacementReview is not stored; create it, as with kubectl create -f FILE -o yaml"))
			}
			return nil
		},
	}
}

// answer sets the status of a review.
func (r *reviewer) answer(ctx context.Context, req kcp.Request) error {
	o, ok := req.GetObject().(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("unexpected object %T", req.GetObject())
	}
	asked := &scheduling.PlacementReview{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, asked); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	m, leave, err := r.enter(req.Cluster)
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
	named, err := seesTargets(ctx, m.server, compute, req.GetUserInfo())
	if err != nil {
		return err
	}
	if assume := asked.Spec.Assume; !named && len(assume.DownTargets)+len(assume.CordonedTargets) > 0 {
		return req.Forbid(errors.New("only users who may list the SyncTargets of the compute workspace may name them; name Locations instead"))
	}
	status, err := m.review(ctx, compute, req.Cluster, question{asked.Spec, named})
	if err != nil {
		return err
	}
	if o.Object["status"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(status); err != nil {
		return err
	}
	return nil
}

// enter takes a slot for a review.
func (r *reviewer) enter(c kcp.ClusterName) (m *manager, leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.manager == nil:
		return nil, nil, apierrors.NewServiceUnavailable("the server is starting")
	case r.running[c] >= mostReviews || r.all >= mostReviewsOfAll:
		return nil, nil, apierrors.NewTooManyRequests("too many concurrent PlacementReviews", 1)
	}
	r.running[c]++
	r.all++
	return r.manager, func() {
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
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: syncTargets().Group, Version: syncTargets().Version, Resource: syncTargets().Resource},
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
func (m *manager) review(ctx context.Context, compute, consumer kcp.ClusterName, q question) (*scheduling.PlacementReviewStatus, error) {
	f, end, err := m.openReview(ctx, compute, consumer, q)
	if err != nil {
		return nil, err
	}
	defer end()
	names, err := f.assume(q)
	if err != nil {
		return nil, err
	}
	out := &scheduling.PlacementReviewStatus{Held: f.held()}
	for _, of := range f.reviewable(consumer, q) {
		if len(out.Workloads) >= mostReviewed {
			out.Omitted++
			continue
		}
		one, err := f.reviewed(ctx, of, shownTargets{names, len(q.Workloads) > 0 && len(q.Workloads) <= mostDetailed})
		if err != nil {
			return nil, err
		}
		out.Workloads = append(out.Workloads, one)
	}
	return out, nil
}

// openReview returns a fleet with the objects of one consumer that a question is about, whose caches
// are complete.
func (m *manager) openReview(ctx context.Context, compute, consumer kcp.ClusterName, q question) (*fleet, func(), error) {
	targets, err := m.writeTargets.In(string(compute))
	if err != nil {
		return nil, nil, err
	}
	locations, err := m.writeLocations.In(string(compute))
	if err != nil {
		return nil, nil, err
	}
	own := &manager{server: m.server, options: m.options, targets: kindOf("synctargets", targets), locations: kindOf("locations", locations),
		writeTargets: m.writeTargets, writeLocations: m.writeLocations}
	f, err := openFleet(own, compute, string(consumer))
	if err != nil {
		return nil, nil, err
	}
	if err := f.kinds.describe(ctx); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	end := func() { cancel(); work.Wait() }
	complete := []<-chan struct{}{own.targets.Ready(), own.locations.Ready(), f.placements.Ready(), f.assignments.Ready(), f.reports.Ready()}
	running := []func(context.Context){own.targets.Run, own.locations.Run, f.placements.Run, f.assignments.Run, f.reports.Run}
	for _, k := range f.kinds.list() {
		if q.concerns(k) || k.GroupVersionResource == profile.Budgets() { // these keep workloads where they are
			running, complete = append(running, k.objects.Run), append(complete, k.objects.Ready())
		}
	}
	for _, run := range running {
		work.Go(func() { run(ctx) })
	}
	if !await(ctx, complete...) {
		end()
		return nil, nil, apierrors.NewTimeoutError("the review takes too long; name fewer workloads", 1)
	}
	f.inventory.Learn()
	return f, end, nil
}

// concerns reports whether a question is about workloads of a kind. Followers, volumes and dependencies
// are never subjects: the scheduler does not choose targets for them.
func (q question) concerns(k *kind) bool {
	if !slices.Contains([]workload.ResourceClass{workload.Replicated, workload.Singleton, workload.Everywhere}, k.Class) {
		return false
	}
	return len(q.Workloads) == 0 || slices.ContainsFunc(q.Workloads, func(r scheduling.ReviewedReference) bool {
		return r.Group == k.Group && r.Resource == k.Resource
	})
}

// assume changes what the scheduler sees to what a user assumes. It returns the names of the targets
// by their keys, as far as the user may see them.
func (f *fleet) assume(q question) (map[string]string, error) {
	known := map[string]bool{}
	names := map[string]string{}
	for _, t := range f.targets.List(f.compute) {
		names[engine.TargetKey(string(f.compute), t.Name, string(t.UID))] = t.Name
		known["target "+t.Name] = true
	}
	f.inventory.Assume(func(w *inventory.Target) {
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
	if !q.named {
		names = nil
	}
	return names, nil
}

// assumedLoss is when targets that are assumed to be down stopped answering: longer ago than any
// toleration that ends.
func assumedLoss() time.Time { return time.Unix(0, 0) }

// held reports whether no target is given up because it does not answer.
func (f *fleet) held() bool {
	_, held := f.inventory.For(&scheduling.Placement{})
	return held
}

// reviewable returns the workloads that a question is about, sorted.
func (f *fleet) reviewable(consumer kcp.ClusterName, q question) (all []subject) {
	for _, k := range f.kinds.list() {
		if !q.concerns(k) {
			continue
		}
		gr := k.GroupResource()
		for _, w := range k.objects.List(consumer) {
			asked := len(q.Workloads) == 0 || slices.Contains(q.Workloads, scheduling.ReviewedReference{Group: gr.Group, Resource: gr.Resource, Namespace: w.GetNamespace(), Name: w.GetName()})
			if !asked || w.GetDeletionTimestamp() != nil {
				continue
			}
			id := engine.ID{GroupResource: gr, Key: kcp.KeyOf(w)}
			a := f.assignmentOf(id)
			if a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
				a = nil // of a namesake that was deleted
			}
			all = append(all, subject{k, id, w, a})
		}
	}
	slices.SortFunc(all, func(a, b subject) int {
		return cmp.Or(cmp.Compare(a.w.GetNamespace(), b.w.GetNamespace()), cmp.Compare(a.w.GetName(), b.w.GetName()), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Group, b.Group))
	})
	return all
}

// shownTargets are the names of targets that a user sees.
type shownTargets struct {
	byKey map[string]string // nil if the user sees none
	all   bool              // or only of targets with a part
}

// reviewed returns the answer about one workload.
func (f *fleet) reviewed(ctx context.Context, of subject, names shownTargets) (scheduling.ReviewedWorkload, error) {
	w := of.w
	out := scheduling.ReviewedWorkload{Kind: w.GetKind(), Replicas: of.Wants(w),
		ReviewedReference: scheduling.ReviewedReference{Group: of.Group, Resource: of.Resource, Namespace: w.GetNamespace(), Name: w.GetName()}}
	p := f.placementOf(of.id.Key)
	if p == nil || p.Spec.Suspend {
		now := place.Decision{Reason: place.NoPlacement}
		if out.Message = "no Placement of the workspace selects the namespace of the workload"; p != nil {
			out.Placement, now.Reason = p.Name, place.Suspended
			out.Message = fmt.Sprintf("Placement %q is suspended: everything stays where it is", p.Name)
		}
		s, err := f.snapshot(ctx, of, &scheduling.Placement{})
		for _, part := range s.Parts {
			now.Targets = append(now.Targets, part.AssignedTarget)
		}
		out.Reason, out.Locations = now.Reason, compare(s, now, names)
		return out, err
	}
	s, err := f.snapshot(ctx, of, p)
	if err != nil {
		return out, err
	}
	d := place.Settle(s)
	for _, key := range place.Decide(s).Evicted {
		if slices.ContainsFunc(s.Targets, func(t place.Target) bool { return t.Key == key && !t.Unreachable.Equal(assumedLoss()) }) {
			d.Refusals[key] = place.Paced // the server that leads would have begun to evict it, if it had a permit
		}
	}
	out.Placement, out.Reason, out.Message = p.Name, d.Reason, explain(d)
	out.Locations, out.Moved = compare(s, d, names), moved(s, d)
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
		line := scheduling.ReviewedLocation{Location: location, Target: names.byKey[key], Clusters: 1, Reason: string(d.Refusals[key])}
		if i := slices.IndexFunc(s.Parts, func(p place.Part) bool { return p.Key == key }); i >= 0 {
			p := s.Parts[i]
			line.Replicas, line.Available, line.Phase = p.Replicas, p.Available, string(p.Phase)
			line.Location = cmp.Or(line.Location, p.Location)
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
		return cmp.Or(cmp.Compare(a.Location, b.Location), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Reason, b.Reason), cmp.Compare(value(b.Replicas), value(a.Replicas)))
	})
	return lines
}

// merge adds a line, or counts it with one that is alike. Lines with a name or a part are alone.
func merge(lines []scheduling.ReviewedLocation, line scheduling.ReviewedLocation) []scheduling.ReviewedLocation {
	if line.Target == "" && line.Phase == "" && line.NextPhase == "" {
		for i := range lines {
			if l := &lines[i]; l.Location == line.Location && l.Reason == line.Reason && l.Phase == "" && l.NextPhase == "" {
				l.Clusters++
				return lines
			}
		}
	}
	return append(lines, line)
}
