package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// claims are the permission claims of the export: what workloads refer to is read only where the
// owner of the workspace accepts that.
func claims() (all []apis.PermissionClaim) {
	for _, p := range profile.Dependencies() {
		all = append(all, apis.PermissionClaim{Group: p.Group, Resource: p.Resource, Verbs: []string{"get", "list", "watch"}})
	}
	return all
}

// refsOf returns what an object refers to.
func refsOf(k *kind, o *unstructured.Unstructured) (all []engine.ID) {
	at := engine.ID{Key: kcp.KeyOf(o)}
	for _, r := range k.Refs(o) {
		all = append(all, at.Beside(schema.GroupResource{Resource: r.Resource}, r.Name))
	}
	if k.Class == profile.Dependency { // a service account
		secrets, _, err := unstructured.NestedSlice(o.Object, "imagePullSecrets")
		for _, s := range secrets[:min(len(secrets), profile.MostRefs)] {
			if m, ok := s.(map[string]any); ok && err == nil {
				if name, _ := m["name"].(string); name != "" {
					all = append(all, at.Beside(profile.Secrets().GroupResource(), name))
				}
			}
		}
	}
	return all
}

// workload returns an object of a consumer from the cache, nil if there is none.
func (f *fleet) workload(id engine.ID) *unstructured.Unstructured {
	if k := f.kinds.get(id.GroupResource); k != nil {
		return k.objects.Get(id.Key)
	}
	return nil
}

// needs returns the dependencies of an object, and those of its service account.
func (f *fleet) needs(id engine.ID) []engine.ID {
	k := f.kinds.get(id.GroupResource)
	if k == nil {
		return nil
	}
	w := k.objects.Get(id.Key)
	if w == nil {
		return nil
	}
	return f.needsOf(k, w)
}

func (f *fleet) needsOf(k *kind, w *unstructured.Unstructured) (all []engine.ID) {
	for _, ref := range refsOf(k, w) {
		of := f.kinds.get(ref.GroupResource)
		if of == nil || of.Class != profile.Dependency {
			continue
		}
		all = append(all, ref)
		if o := of.objects.Get(ref.Key); o != nil {
			all = append(all, refsOf(of, o)...)
		}
	}
	return all
}

// changed makes the scheduler and the engines look at an object that changed. It is called with the
// old and the new one.
func (f *fleet) changed(k *kind, w *unstructured.Unstructured) {
	id := engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(w)}
	f.mu.Lock()
	schedule, summing := f.schedule, f.summing
	f.mu.Unlock()
	if schedule != nil {
		schedule(id.Task())
	}
	if summing != nil {
		summing(id.Task())
	}
	for _, ref := range refsOf(k, w) {
		of := f.kinds.get(ref.GroupResource)
		if of != nil && of.Class == profile.Dependency {
			of.begin()
		}
		if schedule != nil && of != nil && of.Class == profile.Volume {
			schedule(ref.Task())
		}
	}
	a := f.assignmentOf(id)
	if a == nil {
		return
	}
	f.wakeAll(a, id)
	for _, of := range f.needsOf(k, w) {
		f.wakeAll(a, of)
	}
}

// dependencyChanged makes the engines look at a dependency that changed, and at its users.
func (f *fleet) dependencyChanged(k *kind, o *unstructured.Unstructured) {
	id := engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(o)}
	refs := refsOf(k, o)
	if len(refs) > 0 {
		f.kinds.get(profile.Secrets().GroupResource()).begin()
	}
	for _, user := range f.usersOf(id) {
		a := f.assignmentOf(user)
		if a == nil {
			continue
		}
		f.wakeAll(a, id)
		f.wakeAll(a, user)
		for _, ref := range refs {
			f.wakeAll(a, ref)
		}
	}
}

// usersOf returns the objects that refer to an object, directly or by their service account.
func (f *fleet) usersOf(id engine.ID) (users []engine.ID) {
	key := refKey(id)
	for _, k := range f.kinds.list() {
		for _, user := range k.objects.By(byRef, key) {
			of := engine.ID{GroupResource: k.GroupResource(), Key: user}
			if k.Class == profile.Dependency {
				users = append(users, f.usersOf(of)...) // those of a service account, to which no dependency refers
				continue
			}
			users = append(users, of)
		}
	}
	return users
}

// Dependency implements [engine.Desired].
func (s side) Dependency(ctx context.Context, id engine.ID) (*unstructured.Unstructured, string, bool, error) {
	k := s.kinds.get(id.GroupResource)
	if k == nil {
		return nil, "is of a kind that is not copied", false, nil
	}
	k.begin()
	in, err := s.in(id.Key.Cluster)
	if err != nil {
		return nil, "", false, err
	}
	o, err := in.Resource(k.GroupVersionResource).Namespace(id.Key.Namespace).Get(ctx, id.Key.Name, metav1.GetOptions{})
	switch {
	case missing(err, k.Resource):
		return nil, "does not exist in the workspace", true, nil
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("cannot be read: the workspace does not accept the permission claim on %s of the APIBinding %q", k.Resource, workload.KubernetesExport), false, nil
	case err != nil:
		return nil, "", false, err
	}
	if of, _, _ := unstructured.NestedString(o.Object, "type"); id.GroupResource == profile.Secrets().GroupResource() && internalSecret(of) {
		return nil, fmt.Sprintf("has the type %s, which has a meaning in its own cluster only and is not copied", of), true, nil
	}
	return o, "", false, nil
}

// internalSecret reports whether a type of Secrets has a meaning in its own cluster only. Controllers
// of a physical cluster would act on such a Secret.
func internalSecret(of string) bool {
	return of == string(corev1.SecretTypeServiceAccountToken) || of == string(corev1.SecretTypeBootstrapToken)
}

// Unused implements [engine.Desired].
func (s side) Unused(ctx context.Context, id engine.ID) (bool, error) {
	for _, a := range s.assignedIn(id.Key) {
		if partAt(a, s.target) != nil && s.kinds.get(engine.IDFor(a, a.Spec.Workload).GroupResource) == nil {
			return false, nil // an object of a kind without a profile may refer to it
		}
	}
	var using []engine.ID
	find := func(k *kind, of []engine.ID) error {
		all, err := s.listLive(ctx, k, id.Key)
		for i := range all {
			if refs := refsOf(k, &all[i]); slices.ContainsFunc(refs, func(r engine.ID) bool { return slices.Contains(of, r) }) {
				using = append(using, engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(&all[i])})
			}
		}
		return err
	}
	wanted := []engine.ID{id}
	if accounts := s.kinds.get(profile.ServiceAccounts().GroupResource()); id.GroupResource == profile.Secrets().GroupResource() {
		if err := find(accounts, wanted); err != nil {
			return false, err
		}
		wanted, using = append(wanted, using...), nil
	}
	for _, k := range s.kinds.list() {
		if k.Class == profile.Dependency || len(k.Template) == 0 && k.Resource != "ingresses" {
			continue
		}
		if err := find(k, wanted); err != nil {
			return false, err
		}
	}
	for _, of := range using {
		w, a, err := s.Read(ctx, of)
		if err != nil {
			return false, err
		}
		if w != nil && a != nil && partAt(a, s.target) != nil {
			return false, nil
		}
	}
	return true, nil
}

// listLive lists the objects of a kind in a namespace, as the server has them. There are none if the
// workspace is gone.
func (s side) listLive(ctx context.Context, k *kind, at kcp.Key) ([]unstructured.Unstructured, error) {
	in, err := s.in(at.Cluster)
	if err != nil {
		return nil, err
	}
	list, err := in.Resource(k.GroupVersionResource).Namespace(at.Namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		return list.Items, nil
	}
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if list, err = s.kinds.all.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{"metadata.namespace": at.Namespace}.String()}); err != nil {
		return nil, err
	}
	if list.GetContinue() != "" {
		return nil, errors.New("the list is not complete")
	}
	return slices.DeleteFunc(list.Items, func(o unstructured.Unstructured) bool { return kcp.KeyOf(&o).Cluster != at.Cluster }), nil
}
