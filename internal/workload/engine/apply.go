package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/profile"
)

// apply brings the object in the physical cluster to what is assigned, and reports.
func (j *job) apply(ctx context.Context) error {
	if j.lapsed() {
		return again() // the agent stops it; the task wakes when the lease is valid again
	}
	if j.have != nil && j.have.GetDeletionTimestamp() != nil {
		return j.ends(ctx)
	}
	want, err := desired(j.profile, j.want, j.part, j.from)
	if err == nil && j.leased() {
		err = mark(want, workload.FencingAnnotation, workload.LeaseFencing)
	}
	if err != nil {
		return err
	}
	next := j.blank()
	if next.Missing, err = j.needs(ctx); err != nil {
		return err
	}
	if j.report != nil {
		next.TargetGeneration = j.report.Spec.TargetGeneration
	}
	if j.have == nil && j.ended() {
		return nil // it would run again
	}
	next.StopsWithinSeconds = j.promise()
	if err := j.weaken(ctx, next.StopsWithinSeconds); err != nil {
		return err
	}
	if j.have == nil || !current(want, j.have, j.last()) {
		made, err := j.write(ctx, want)
		if made == nil || err != nil {
			return err
		}
		j.have = slim(made)
		next.TargetGeneration = j.have.GetGeneration()
	}
	next.Generation, next.Replicas = j.want.GetGeneration(), j.part.Replicas
	if err := j.observe(&next); err != nil {
		return err
	}
	return j.say(ctx, next)
}

// ended reports whether the object has come to its end, as the workspace or the last report says.
func (j *job) ended() bool {
	last := j.last()
	if last == nil || last.Reported == nil || j.profile.Finished(j.want) {
		return last != nil && j.profile.Finished(j.want)
	}
	var status map[string]any
	if json.Unmarshal(last.Reported.Raw, &status) != nil {
		return false
	}
	return j.profile.Finished(&object{Object: map[string]any{"status": status}})
}

// observe adds the status of the object in the physical cluster to a report.
func (j *job) observe(next *workload.TargetStatusSpec) error {
	status, _, err := unstructured.NestedMap(j.have.Object, "status")
	if err != nil {
		return err
	}
	observed, has, err := unstructured.NestedInt64(status, "observedGeneration")
	if err != nil {
		return err
	}
	next.Observed = observed >= next.TargetGeneration || !has && !j.profile.Observes
	// The names of physical clusters are not for tenants, also not those of their namespaces.
	renamed, ok := replaced(status, j.from.namespace(), j.id.Key.Namespace).(map[string]any)
	if !ok {
		return nil
	}
	next.Reported, err = raw(renamed)
	return err
}

// replaced returns a value of JSON with a string replaced by another one.
func replaced(value any, old, by string) any {
	switch of := value.(type) {
	case string:
		if of == old {
			return by
		}
	case map[string]any:
		for k, v := range of {
			of[k] = replaced(v, old, by)
		}
	case []any:
		for i, v := range of {
			of[i] = replaced(v, old, by)
		}
	}
	return value
}

// write applies the object. It returns nil if the physical cluster has one that is not the
// engine's.
func (j *job) write(ctx context.Context, want *object) (*object, error) {
	foreign := false
	if j.have == nil {
		found, err := j.read(ctx)
		if err != nil {
			return nil, j.failed(ctx, err)
		}
		if foreign = found != nil && !owned(found, j.from); foreign && !j.mayAdopt() {
			return nil, j.conflict(ctx, "")
		}
		j.have = found
	}
	if j.report == nil {
		// Before the object is created, so that the scheduler knows that there may be one.
		if err := j.say(ctx, j.blank()); err != nil {
			return nil, err
		}
		if ok, err := j.confirmed(ctx); err != nil || !ok {
			return nil, err
		}
	}
	if ok, err := j.assured(ctx); err != nil || !ok {
		return nil, err
	}
	if j.have == nil && !j.guarded() {
		return nil, kcp.After(soon)
	}
	if j.have == nil {
		if !j.room() {
			return nil, j.refuse(ctx, reason{workload.Full, j.full()})
		}
		if ok, err := j.ensureNamespace(ctx); err != nil || !ok {
			return nil, err
		}
	} else {
		if j.have.GetDeletionTimestamp() != nil {
			return nil, nil // the watch wakes the key when it is gone
		}
		want.SetUID(j.have.GetUID()) // not another object that took its place
	}
	if foreign {
		return j.take(ctx, want)
	}
	return j.put(ctx, want, metav1.ApplyOptions{FieldManager: manager, Force: j.have != nil})
}

// guarded reports whether the NetworkPolicies of the namespace that the target has were applied or
// refused. Pods begin after them.
func (j *job) guarded() bool {
	if len(j.profile.Template) == 0 || !j.desired.Has(profile.Policies().GroupResource()) { // most have none
		return true
	}
	for _, a := range j.desired.Placed(j.id.Key.Cluster, j.id.Key.Namespace) {
		id := IDFor(a, a.Spec.Workload)
		if part := partOf(a, j.Engine.key); id.GroupResource != profile.Policies().GroupResource() || part == nil || part.Phase == workload.Removing {
			continue
		}
		if r := j.desired.Status(id); r == nil || r.Spec.Generation == 0 && r.Spec.Reason == "" {
			return false
		}
	}
	return true
}

// confirmed reports whether the target still has its part, after it said that it begins. The
// scheduler starts a singleton elsewhere only if it does not find that report: one of them sees the
// other.
func (j *job) confirmed(ctx context.Context) (bool, error) {
	w, a, err := j.desired.Read(ctx, j.id)
	if err != nil {
		return false, err
	}
	part := partOf(a, j.Engine.key)
	if w == nil || a == nil || a.Spec.Workload.UID != string(j.want.GetUID()) || part == nil || part.Phase == workload.Removing {
		return false, kcp.After(soon) // the caches follow
	}
	return true, nil
}

func partOf(a *workload.Assignment, key string) *workload.AssignedTarget {
	if a == nil {
		return nil
	}
	i := slices.IndexFunc(a.Spec.Targets, func(t workload.AssignedTarget) bool { return t.Key == key })
	if i < 0 {
		return nil
	}
	return &a.Spec.Targets[i]
}

func (j *job) put(ctx context.Context, want *object, o metav1.ApplyOptions) (*object, error) {
	made, err := j.objects().Apply(ctx, want.GetName(), want, o)
	if err != nil {
		j.forgetNamespace()
		return nil, j.failed(ctx, err)
	}
	if len(o.DryRun) == 0 && j.holding.get(j.from, made.GetName()) == nil {
		j.written.Store(made.GetUID(), true)
	}
	return made, nil
}

// mayAdopt reports whether the engine may take over an object that it did not create.
func (j *job) mayAdopt() bool {
	return j.how != nil && j.how.Conflict != "" && j.how.Conflict != string(scheduling.Fail)
}

// take takes an object over that the engine did not create, as the Placement says.
func (j *job) take(ctx context.Context, want *object) (*object, error) {
	o := metav1.ApplyOptions{FieldManager: manager, Force: j.how.Conflict != string(scheduling.Adopt)}
	if j.how.Conflict == string(scheduling.AdoptIfEqual) {
		o.DryRun = []string{metav1.DryRunAll}
		after, err := j.put(ctx, want, o)
		if err != nil {
			return nil, err
		}
		if !equality.Semantic.DeepEqual(says(j.have), says(after)) {
			return nil, j.conflict(ctx, " and differs")
		}
		o.DryRun = nil
	}
	made, err := j.objects().Apply(ctx, want.GetName(), want, o)
	if apierrors.IsConflict(err) {
		return nil, j.conflict(ctx, "; others own fields of it")
	}
	if err != nil {
		return nil, j.failed(ctx, err)
	}
	j.written.Store(made.GetUID(), true)
	return made, nil
}

// says returns the content of an object: all fields except those of [beside].
func says(o *object) map[string]any {
	content := map[string]any{}
	for field, value := range o.Object {
		if !beside(field) {
			content[field] = value
		}
	}
	return content
}

// undeclared is in the error of a server-side apply with a field that the schema of the server does not have. The error
// has no reason.
const undeclared = "field not declared in schema"

// failed reports why the part cannot be applied, if the physical cluster will not take it later
// either.
func (j *job) failed(ctx context.Context, err error) error {
	// The names of namespaces of physical clusters are not for tenants.
	here := strings.NewReplacer(j.from.namespace(), j.id.Key.Namespace)
	why := reason{string(apierrors.ReasonForError(err)), here.Replace(refusal(err))}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return err // it is forbidden until the namespace is gone
	case apierrors.IsNotFound(err) && !strings.Contains(err.Error(), "namespaces"):
		why = reason{workload.NotServed, fmt.Sprintf("the physical cluster does not serve %s in version %s", j.profile.GroupResource(), j.profile.Version)}
	case strings.Contains(err.Error(), undeclared):
		why = reason{"Invalid", limited("the physical cluster does not know a field of the object: " + here.Replace(err.Error()))}
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
	default:
		return err // tried again with back-off
	}
	if said := j.tell(ctx, why); said != nil {
		return said
	}
	return err
}

// again makes the loop look again at what may change without an event.
func again() error { return kcp.After(later) }

// refuse reports why the part is not applied, and looks again later.
func (j *job) refuse(ctx context.Context, why reason) error {
	if why.word == "" {
		return kcp.After(soon)
	}
	if err := j.tell(ctx, why); err != nil {
		return err
	}
	return again()
}

// tell reports why the part is not applied. The report says that the target refuses the workload only if the engine
// knows whether the target has an object. A copy that was applied before may still be there, also if the target does not
// serve the kind any more.
func (j *job) tell(ctx context.Context, why reason) error {
	next := j.blank()
	next.Reason, next.Message = why.word, why.text
	switch last := j.last(); {
	case j.have != nil:
		next.TargetGeneration, next.RefusedGeneration = max(1, j.have.GetGeneration()), j.want.GetGeneration()
	case last != nil && last.TargetGeneration > 0 && !j.listed():
		next.TargetGeneration = last.TargetGeneration
	case j.listed() || why.word == workload.NotServed:
		next.RefusedGeneration = j.want.GetGeneration()
	}
	return j.say(ctx, next)
}

// listed reports whether the objects of the kind in the physical cluster are known.
func (j *job) listed() bool {
	select {
	case <-j.kind.Ready():
		return true
	default:
		return false
	}
}

// refusal returns the text of an error for the tenant. It leaves out the user of the agent, whom
// errors of RBAC name.
func refusal(err error) string {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), `User "`) {
		return "the physical cluster does not allow the agent to write this object"
	}
	return limited(err.Error())
}

func limited(text string) string { return text[:min(len(text), 1024)] }

// conflict reports that the physical cluster has an object of the name that the engine did not
// create. The engine leaves it alone.
func (j *job) conflict(ctx context.Context, more string) error {
	return j.refuse(ctx, reason{"Conflict",
		fmt.Sprintf("%s %q exists in the physical cluster and was not created by this workspace%s", j.want.GetKind(), j.id.Key.Name, more)})
}
