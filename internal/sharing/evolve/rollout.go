package evolve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	// maxStages limits the rings that a rollout has done, with all its schemas.
	maxStages = 32
	// maxListed limits the causes in a status.
	maxListed = 10
	// maxSelected limits the consumers that the selector of a ring selects. The status has them.
	maxSelected = 1000
	// again is the time after which a rollout that lacks something looks for it again.
	again = time.Minute
)

// Rollouts brings rollouts forward, one step at a time. A step follows from the stored state alone,
// so that any process can take the next one. Only the sum of an unfinished check is in memory; it
// begins again if the process ends.
type Rollouts struct {
	*Checker

	mu     sync.Mutex
	checks map[control.Key]*ringCheck

	beginning sync.Mutex // held until the first stage of a rollout is stored and known
}

// A ringCheck is a check of one ring that is under way.
type ringCheck struct {
	of       string // what it checks
	from     string // continue token
	stage    *apis.RolloutStage
	sum      apis.APIExportCheckStatus
	finished bool
}

// NewRollouts returns rollouts that are checked by a checker.
func NewRollouts(c *Checker) *Rollouts {
	return &Rollouts{Checker: c, checks: map[control.Key]*ringCheck{}}
}

// Reconcile takes the next step of a rollout. It is [control.Loop.Do].
func (r *Rollouts) Reconcile(ctx context.Context, c cluster.Name, name string) error {
	o := &apis.APIExportRollout{}
	rev, err := r.Store.ReadInto(ctx, exports.RolloutResource().Key(c, "", name), o)
	if err != nil {
		return err
	}
	if rev == 0 || o.Status.Phase == apis.RolloutCompleted && o.DeletionTimestamp == nil {
		r.forget(control.Key{Cluster: c, Name: name})
		return nil
	}
	if err := r.Store.Feed().CatchUp(ctx); err != nil {
		return err
	}
	s := &step{Rollouts: r, cluster: c, before: o.DeepCopy(), rollout: o, export: exports.Name{Cluster: c, Name: o.Spec.Export}}
	var later error
	if o.DeletionTimestamp != nil {
		later, err = s.undo(ctx)
	} else {
		later, err = s.advance(ctx)
	}
	if err != nil {
		return err
	}
	if err := s.write(ctx, rev); err != nil {
		return err
	}
	return later
}

// A step is one step of a rollout.
type step struct {
	*Rollouts
	cluster cluster.Name
	export  exports.Name
	before  *apis.APIExportRollout
	rollout *apis.APIExportRollout
	also    []store.Write // in the same transaction
}

// write stores the rollout, if the step changed it.
func (s *step) write(ctx context.Context, rev int64) error {
	if equality.Semantic.DeepEqual(s.before, s.rollout) && len(s.also) == 0 {
		return nil
	}
	if len(s.before.Status.Stages) == 0 && len(s.rollout.Status.Stages) > 0 { // of two rollouts of an export only one begins
		s.beginning.Lock()
		defer s.beginning.Unlock()
		if why, _, err := s.blocked(ctx); why != "" || err != nil {
			return cmp.Or(err, control.After(0))
		}
	}
	stored, err := values.Unstructured(s.rollout, apis.GroupVersion.WithKind("APIExportRollout"))
	if err != nil {
		return err
	}
	ends := s.rollout.DeletionTimestamp != nil && len(s.rollout.Finalizers) == 0
	at, err := s.Store.Commit(ctx, append(s.also, store.Write{Resource: exports.RolloutResource(), Cluster: s.cluster, Object: stored, Expect: rev, Delete: ends}))
	if err != nil {
		return err
	}
	return s.Store.Feed().Await(ctx, at)
}

// advance decides on the next step. It returns when to look again, nil for after a change.
func (s *step) advance(ctx context.Context) (later, err error) {
	o := s.rollout
	if !slices.Contains(o.Finalizers, apis.RolloutFinalizer) {
		o.Finalizers = append(o.Finalizers, apis.RolloutFinalizer)
	}
	if why, reason, err := s.blocked(ctx); why != "" || err != nil {
		s.condition(apis.RolloutWaiting, reason, why)
		return control.After(again), err
	}
	done := s.done()
	o.Status.DoneRings = int32(done)
	if done > 0 {
		last := o.Status.Stages[len(o.Status.Stages)-1]
		if last.Ring.Name == apis.RemainingRing {
			return nil, s.complete(ctx)
		}
		if left := time.Until(last.Time.Add(s.pause(last.Ring))); left > 0 {
			s.condition(apis.RolloutPaused, "", "")
			return control.After(left), nil
		}
	}
	if o.Status.Phase == apis.RolloutStopped && o.Status.StoppedGeneration == o.Generation {
		return nil, nil
	}
	ring := s.ring(done)
	check := s.check(fmt.Sprintf("%d/%d/%q", o.Generation, done, o.Spec.Schemas))
	if check.stage == nil {
		stage, err := s.stage(ring)
		if err != nil {
			s.condition(apis.RolloutWaiting, apis.RolloutNotPossible, err.Error())
			return control.After(again), nil
		}
		check.stage = stage
	}
	err = s.proceed(ctx, check, o.Spec.Schemas, func(c cluster.Name) bool {
		return exports.Selects(*check.stage, s.export, c) && !s.has(done, c)
	})
	if apierrors.IsBadRequest(err) {
		s.condition(apis.RolloutWaiting, apis.RolloutNotPossible, err.Error())
		return control.After(again), nil
	}
	if err != nil || !check.finished {
		s.condition(apis.RolloutChecking, "", "")
		return control.After(0), err
	}
	if s.stop(check, fmt.Sprintf("ring %s", ring.Name)) {
		return nil, nil
	}
	check.stage.Time = metav1.Now().Rfc3339Copy()
	o.Status.Stages = append(o.Status.Stages, *check.stage)
	o.Status.DoneRings++
	s.condition(apis.RolloutChecking, "", "")
	return control.After(0), nil
}

// stage returns the stage that follows when the check of a ring finds nothing.
func (s *step) stage(ring apis.RolloutRing) (*apis.RolloutStage, error) {
	stage := &apis.RolloutStage{Schemas: s.rollout.Spec.Schemas, Ring: ring}
	if ring.Selector == nil {
		return stage, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(ring.Selector)
	if err != nil {
		return nil, fmt.Errorf("ring %s: %w", ring.Name, err)
	}
	stage.Selected, err = selected(ring, s.APIs.Bindings.Labelled(s.export, selector))
	return stage, err
}

// selected returns the logical clusters of a ring that its selector selects, unless they are too many.
func selected(ring apis.RolloutRing, all []cluster.Name) (names []string, err error) {
	if len(all) > maxSelected {
		return nil, fmt.Errorf("the selector of ring %s selects %d logical clusters, and may select %d; use percent, or a selector for fewer", ring.Name, len(all), maxSelected)
	}
	for _, c := range all {
		names = append(names, string(c))
	}
	return names, nil
}

// pause returns the pause after a ring that is done, as the spec has it now.
func (s *step) pause(done apis.RolloutRing) time.Duration {
	for _, ring := range s.rollout.Spec.Rings {
		if ring.Name == done.Name && ring.Pause != nil {
			return ring.Pause.Duration
		}
	}
	return 0
}

// ring returns a ring by number. The last one has all consumers.
func (s *step) ring(i int) apis.RolloutRing {
	if i < len(s.rollout.Spec.Rings) {
		return s.rollout.Spec.Rings[i]
	}
	return apis.RolloutRing{Name: apis.RemainingRing, Percent: 100}
}

// done returns how many of the last stages have the schemas of the spec.
func (s *step) done() int {
	n := 0
	for _, stage := range slices.Backward(s.rollout.Status.Stages) {
		if !slices.Equal(stage.Schemas, s.rollout.Spec.Schemas) {
			break
		}
		n++
	}
	return n
}

// has reports whether one of the last n stages selects a consumer.
func (s *step) has(n int, c cluster.Name) bool {
	all := s.rollout.Status.Stages
	return slices.ContainsFunc(all[len(all)-n:], func(stage apis.RolloutStage) bool { return exports.Selects(stage, s.export, c) })
}

// blocked returns why the rollout cannot go on, "" if it can.
func (s *step) blocked(ctx context.Context) (why, reason string, err error) {
	e, ok := s.APIs.Exports.Get(s.cluster, "", s.export.Name)
	if !ok || e.Deleting {
		return fmt.Sprintf("there is no APIExport %s in this workspace", s.export.Name), apis.RolloutNotPossible, nil
	}
	seen := map[schema.GroupResource]bool{}
	for _, name := range s.rollout.Spec.Schemas {
		content, err := s.APIs.Exports.Candidate(ctx, s.cluster, name)
		if exports.IsInvalidSchema(err) {
			return err.Error(), apis.RolloutNotPossible, nil
		}
		if err != nil {
			return "", "", err
		}
		gr := content.GroupResource()
		if seen[gr] || !slices.ContainsFunc(e.Resources, func(x exports.Exported) bool { return x.GroupResource == gr && !x.Native }) {
			return fmt.Sprintf("the APIExport has no resource %s with an APIResourceSchema, or spec.schemas has it twice", gr), apis.RolloutNotPossible, nil
		}
		seen[gr] = true
	}
	if n := len(s.rollout.Status.Stages); n >= maxStages && s.rollout.Status.Stages[n-1].Ring.Name != apis.RemainingRing {
		return fmt.Sprintf("the rollout has %d stages; delete it and create another", n), apis.RolloutNotPossible, nil
	}
	for _, other := range s.APIs.Exports.Rollouts.List(s.cluster, "") {
		if other.Name == s.rollout.Name || other.Export != s.export.Name || other.Ended {
			continue
		}
		earlier := other.Created.Before(&s.rollout.CreationTimestamp) || other.Created.Equal(&s.rollout.CreationTimestamp) && other.Name < s.rollout.Name
		if len(s.before.Status.Stages) == 0 && (earlier || len(other.Stages) > 0) {
			return fmt.Sprintf("APIExportRollout %s of the same APIExport is not completed", other.Name), apis.RolloutOther, nil
		}
	}
	return "", "", nil
}

// complete writes the schemas into the export, and ends the rollout in the same transaction.
func (s *step) complete(ctx context.Context) error {
	e := &apisv1alpha2.APIExport{}
	rev, err := s.Store.ReadInto(ctx, exports.Resource().Key(s.cluster, "", s.export.Name), e)
	if err != nil || rev == 0 {
		return err
	}
	changed := false
	for _, name := range s.rollout.Spec.Schemas {
		n, err := apis.ParseSchemaName(name)
		if err != nil {
			return err
		}
		for i := range e.Spec.Resources {
			if r := &e.Spec.Resources[i]; r.Group == n.Group && r.Name == n.Resource && r.Storage.Native == nil && r.Schema != name {
				r.Schema, changed = name, true
			}
		}
	}
	if changed {
		e.Generation++
		stored, err := values.Unstructured(e, apisv1alpha2.GroupVersion.WithKind("APIExport"))
		if err != nil {
			return err
		}
		// The export comes first, so that no consumer returns to its old schemas between the events.
		s.also = []store.Write{{Resource: exports.Resource(), Cluster: s.cluster, Object: stored, Expect: rev}}
	}
	s.rollout.Finalizers = slices.DeleteFunc(s.rollout.Finalizers, func(f string) bool { return f == apis.RolloutFinalizer })
	s.condition(apis.RolloutCompleted, "", "")
	return nil
}

// undo ends a rollout that is deleted, once its consumers can return to the schemas of the export.
func (s *step) undo(ctx context.Context) (later, err error) {
	o := s.rollout
	state, err := s.Store.State(ctx, s.cluster)
	if err != nil {
		return nil, err
	}
	e, ok := s.APIs.Exports.Get(s.cluster, "", s.export.Name)
	switch {
	case !ok || e.Deleting || len(o.Status.Stages) == 0:
		s.release()
		return nil, nil
	case state != store.Active: // the export is about to be deleted, and its consumers keep their schemas
		return nil, nil
	}
	if o.Status.Phase == apis.RolloutStopped && o.Status.StoppedGeneration == o.Generation {
		return nil, nil
	}
	var names []string
	for _, r := range e.Resources {
		if slices.ContainsFunc(o.Status.Stages, func(stage apis.RolloutStage) bool { return changes(stage, r) }) {
			names = append(names, r.Schema)
		}
	}
	check := s.check(fmt.Sprintf("%d/back/%q", o.Generation, names))
	err = s.proceed(ctx, check, names, func(c cluster.Name) bool { return s.has(len(o.Status.Stages), c) })
	if err != nil || !check.finished {
		s.condition(apis.RolloutReturning, "", "")
		return control.After(0), err
	}
	if !s.stop(check, "the return to the schemas of the APIExport") {
		s.release()
	}
	return nil, nil
}

// changes reports whether a stage has another schema for a resource of the export.
func changes(stage apis.RolloutStage, r exports.Exported) bool {
	return !r.Native && slices.ContainsFunc(stage.Schemas, func(name string) bool {
		n, err := apis.ParseSchemaName(name)
		return err == nil && n.GroupResource == r.GroupResource && name != r.Schema
	})
}

// release gives up the rollout.
func (s *step) release() {
	s.rollout.Status.Stages = nil
	s.rollout.Finalizers = slices.DeleteFunc(s.rollout.Finalizers, func(f string) bool { return f == apis.RolloutFinalizer })
}

// check returns the check that is under way, or begins one.
func (s *step) check(of string) *ringCheck {
	k := control.Key{Cluster: s.cluster, Name: s.rollout.Name}
	s.mu.Lock() // the loop never reconciles a key twice at a time
	defer s.mu.Unlock()
	if now := s.checks[k]; now != nil && now.of == of && !now.finished {
		return now
	}
	s.checks[k] = &ringCheck{of: of}
	return s.checks[k]
}

// proceed runs the next part of a check of some consumers.
func (s *step) proceed(ctx context.Context, check *ringCheck, names []string, among func(cluster.Name) bool) error {
	part, err := s.Check(ctx, Request{Export: s.export, Schemas: Schemas{Names: names}, Among: among, Continue: check.from})
	if err != nil {
		return err
	}
	check.sum.Add(part, 0)
	check.from, check.finished = part.Continue, part.Continue == ""
	return nil
}

// forget drops the check of a rollout that has ended.
func (r *Rollouts) forget(k control.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.checks, k)
}

// stop records the result of a check, and stops the rollout if too many objects break.
func (s *step) stop(check *ringCheck, what string) bool {
	s.forget(control.Key{Cluster: s.cluster, Name: s.rollout.Name})
	st, sum := &s.rollout.Status, check.sum
	st.Checked, st.Broken, st.Causes = sum.Checked, sum.Broken, slices.Clone(sum.Problems)
	for _, c := range sum.Causes[:min(len(sum.Causes), maxListed)] {
		st.Causes = append(st.Causes, fmt.Sprintf("%s %s: %s, objects: %d", schema.GroupResource{Group: c.Group, Resource: c.Resource}, c.Field, c.Reason, c.Objects))
	}
	st.StoppedGeneration = 0
	if sum.Broken <= s.rollout.Spec.MaxBroken && len(sum.Problems) == 0 {
		return false
	}
	st.StoppedGeneration = s.rollout.Generation
	s.condition(apis.RolloutStopped, apis.RolloutSchemasBreakObjects, fmt.Sprintf(
		"%s: %d of %d objects in %d logical clusters would break; see status.causes, and \"kubectl kcp schema check %s\" with the schemas, which names the objects; then change the schemas, spec.maxBroken or spec.attempt",
		what, sum.Broken, sum.Checked, len(sum.BrokenConsumers), s.export.Name))
	return true
}

// condition sets the phase. With a reason, the rollout does not go on.
func (s *step) condition(phase apis.RolloutPhase, reason, message string) {
	s.rollout.Status.Phase = phase
	c := conditions.Condition{Type: apis.RolloutProgressing, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now().Rfc3339Copy()}
	if reason != "" {
		c.Status, c.Severity, c.Reason, c.Message = metav1.ConditionFalse, conditions.SeverityError, reason, message
	}
	s.rollout.Status.Conditions.Set(c)
}
