package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/profile"
)

// remove removes the object from the physical cluster, and the report once it is gone.
func (j *job) remove(ctx context.Context) error {
	if j.have == nil {
		if j.report == nil {
			return j.dropNamespace(ctx) // it may have been the last object of a workspace that is gone
		}
		found, err := j.read(ctx)
		if err != nil {
			return err
		}
		if found == nil || !owned(found, j.from) {
			return j.removed(ctx)
		}
		j.have = found
	}
	if j.want == nil || j.part == nil {
		// The caches have no part of this target, or not the workload: ask the server before an object is deleted.
		if ok, err := j.orphaned(ctx); err != nil || !ok {
			return err
		}
	}
	if j.releases() {
		return j.disown(ctx)
	}
	err := j.delete(ctx)
	if j.retires() && refuses(err) {
		return j.stays(ctx, j.id, err)
	}
	return err
}

// retires reports whether the compute workspace or its export goes. The server waits for the physical cluster then, and
// says what is left.
func (j *job) retires() bool {
	return j.want != nil && j.last() != nil && j.how != nil && j.how.Reason == workload.ComputeDeleted
}

// stays reports that the physical cluster refuses to delete an object, and tries again later.
func (j *job) stays(ctx context.Context, of ID, why error) error {
	next := *j.last()
	if next.Reason == workload.RefusedRemoval {
		return again() // a webhook may say something else each time
	}
	next.Observed, next.Reason, next.Message = false, workload.RefusedRemoval, limited(fmt.Sprintf("%s %q stays: %s", of.GroupResource, of.Key.Name, refusal(why)))
	return cmp.Or(j.say(ctx, next), again())
}

// delete deletes the object from the physical cluster. The watch wakes the key when it is gone.
func (j *job) delete(ctx context.Context) error {
	if j.have.GetDeletionTimestamp() != nil {
		return nil
	}
	uid, how := j.have.GetUID(), metav1.DeletePropagationForeground
	if j.profile.Class == profile.Dependency {
		how = metav1.DeletePropagationBackground // nothing depends on it: it is gone at once, and so is its namespace
	}
	err := j.objects().Delete(ctx, j.id.Key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &how})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// releases reports whether the object stays in the physical cluster and leaves the workspace.
func (j *job) releases() bool {
	if j.part == nil || j.how == nil {
		return false
	}
	return j.part.Reason == workload.Orphaned || j.part.Reason == workload.DeletedReason && j.how.Deletion == string(scheduling.Orphan)
}

// disown removes the marks of the engine from the object, and from the objects that only it
// needs. The engine no longer manages them.
func (j *job) disown(ctx context.Context) error {
	if err := j.unmark(ctx, j.id, j.profile); err != nil {
		return err
	}
	if j.want != nil {
		for _, ref := range j.profile.Refs(j.want) {
			if err := j.disownNeed(ctx, j.id.Beside(schema.GroupResource{Resource: ref.Resource}, ref.Name)); err != nil {
				return err
			}
		}
	}
	return j.unreport(ctx)
}

// disownNeed disowns the copy of a dependency that nothing else needs. That of a service account comes
// with the Secrets that it names.
func (j *job) disownNeed(ctx context.Context, id ID) error {
	p := j.desired.Profile(id.GroupResource)
	if p == nil || p.Class != profile.Dependency || slices.ContainsFunc(j.desired.Users(id), func(of ID) bool { return of != j.id && !j.leaves(of) }) {
		return nil
	}
	o, err := j.client.Resource(p.GroupVersionResource).Namespace(j.from.namespace()).Get(ctx, id.Key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !owned(o, j.from) {
		return err
	}
	secrets, _, err := unstructured.NestedSlice(o.Object, "imagePullSecrets")
	if err != nil {
		return err
	}
	for _, s := range secrets {
		if m, ok := s.(map[string]any); ok {
			name, _ := m["name"].(string)
			if err := j.disownNeed(ctx, id.Beside(profile.Secrets().GroupResource(), name)); err != nil {
				return err
			}
		}
	}
	return j.unmark(ctx, id, p)
}

// leaves reports whether another object leaves the workspace, too.
func (j *job) leaves(of ID) bool {
	other := &job{Engine: j.Engine, id: of, want: j.desired.Workload(of)}
	other.assign(j.desired.Assignment(of))
	return other.part != nil && other.part.Phase == workload.Removing && other.releases()
}

// unmark removes the marks of the engine from an object.
func (j *job) unmark(ctx context.Context, id ID, p *profile.Profile) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{workload.OwnerLabel: nil},
		"annotations": map[string]any{workload.LocatorAnnotation: nil, workload.AppliedAnnotation: nil}}})
	if err != nil {
		return err
	}
	all := j.client.Resource(p.GroupVersionResource).Namespace(j.from.namespace())
	_, err = all.Patch(ctx, id.Key.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// orphaned reports whether the server confirms that the target has no part of the workload.
func (j *job) orphaned(ctx context.Context) (bool, error) {
	w, a, err := j.desired.Read(ctx, j.id)
	if err != nil {
		return false, err
	}
	switch {
	case w == nil:
		return true, nil
	case a == nil && w.GetDeletionTimestamp() == nil && j.report != nil && j.report.Spec.Workload.UID == string(w.GetUID()):
		return false, nil // the Assignment is lost: the scheduler makes it anew from the report, which wakes the key
	case a == nil || a.Spec.Workload.UID != string(w.GetUID()):
		return true, nil
	}
	part := partOf(a, j.Engine.key)
	return part == nil || part.Phase == workload.Removing, nil
}

// removed deletes the report, after the dependencies that only this object needed, and after the namespace if it is
// empty then. The engine may end with the last report: the target may be removed.
func (j *job) removed(ctx context.Context) error {
	if err := j.dropNeeds(ctx); err != nil {
		return err
	}
	if err := j.dropNamespace(ctx); err != nil {
		return err
	}
	return j.unreport(ctx)
}

// dropNeeds removes the dependencies in the namespace that no other object needs, as the server confirms. A dependency
// that the physical cluster refuses to delete stays, and does not keep the object in its workspace. Only while the
// compute workspace goes, the report says that it stays, because nothing retries after that.
func (j *job) dropNeeds(ctx context.Context) error {
	for id, p := range j.dependencies() {
		of := &job{Engine: j.Engine, profile: p, id: id, from: j.from}
		if of.holding = j.hold(p); of.holding == nil {
			return context.Canceled
		}
		err := of.dropNeed(ctx, j.id)
		j.release(of.holding)
		switch {
		case err == nil, refuses(err) && !j.retires(): // its own task tries again
		case refuses(err):
			return j.stays(ctx, id, err)
		default:
			return err
		}
	}
	return nil
}

// refuses reports whether a server refuses a request, as with a webhook. Errors of the connection and of a server that is
// busy pass.
func refuses(err error) bool {
	passes := apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsConflict(err)
	var status apierrors.APIStatus
	return errors.As(err, &status) && !passes
}

// dropNeed removes a dependency that no object but one needs.
func (j *job) dropNeed(ctx context.Context, but ID) error {
	j.have = j.holding.get(j.from, j.id.Key.Name)
	if j.have == nil || !owned(j.have, j.from) || slices.ContainsFunc(j.desired.Users(j.id), func(of ID) bool { return of != but }) {
		return nil
	}
	return j.unfollow(ctx)
}

// unreport deletes the report, and looks at what the object may have needed.
func (j *job) unreport(ctx context.Context) error {
	j.wakeDependencies()
	if j.report == nil {
		return nil
	}
	return j.desired.Report(ctx, j.id, nil)
}

// wakeDependencies wakes the loop for all dependencies in the namespace: the object that is gone may have
// been the last one that refers to some.
func (j *job) wakeDependencies() {
	for id := range j.dependencies() {
		j.wakeLoop(id.Task())
	}
}

// dependencies returns the dependencies that the physical cluster has in the namespace, with the profiles of their kinds.
func (j *job) dependencies() map[ID]*profile.Profile {
	j.mu.Lock()
	var held []*holding
	for _, h := range j.shelf {
		if h.profile.Class == profile.Dependency {
			held = append(held, h)
		}
	}
	j.mu.Unlock()
	all := map[ID]*profile.Profile{}
	for _, h := range held {
		for _, key := range h.kind.By(byNamespace, j.from.namespace()) {
			all[j.id.Beside(h.profile.GroupResource(), key.Name)] = h.profile
		}
	}
	return all
}

// blindly removes a part of a kind that cannot be watched.
func (j *job) blindly(ctx context.Context, why *reason) error {
	switch {
	case j.report == nil:
		return nil
	case why.word == workload.NotServed:
		return j.unreport(ctx) // then there is no object either
	case why.word == "":
		return kcp.After(soon)
	}
	return again()
}

// dropNamespace deletes the namespace in the physical cluster if nothing is left in it, and nothing is
// assigned that goes there.
func (j *job) dropNamespace(ctx context.Context) error {
	if !j.knowsNamespace() {
		return nil
	}
	for _, a := range j.desired.Placed(j.id.Key.Cluster, j.id.Key.Namespace) {
		if IDFor(a, a.Spec.Workload) == j.id {
			continue
		}
		if part := partOf(a, j.Engine.key); part != nil && part.Phase != workload.Removing {
			return nil
		}
	}
	if left, err := j.left(ctx); err != nil || left {
		return err
	}
	name, all := j.from.namespace(), j.client.Resource(namespaces())
	have, err := all.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		j.forgetNamespace()
		return nil
	}
	if err != nil || !owned(have, j.from) || have.GetDeletionTimestamp() != nil {
		return err
	}
	j.forgetNamespace()
	uid := have.GetUID()
	err = all.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// left reports whether the physical cluster has an object in the namespace, whoever created it:
// volume claims of a StatefulSet that is gone are data.
func (j *job) left(ctx context.Context) (bool, error) {
	for _, p := range j.desired.Profiles() {
		if !p.Placed() {
			continue
		}
		list, err := j.client.Resource(p.GroupVersionResource).Namespace(j.from.namespace()).List(ctx, metav1.ListOptions{Limit: 3})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(list.Items, func(o object) bool { return !standard(&p, o.GetName()) }) {
			return true, nil
		}
	}
	return false, nil
}

// standard reports whether every namespace has an object of the name.
func standard(p *profile.Profile, name string) bool {
	return p.Class == profile.Dependency && (p.Resource == "configmaps" && name == "kube-root-ca.crt" || p.Resource == "serviceaccounts" && name == "default")
}
