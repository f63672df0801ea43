package consumers

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
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// Desired returns what the engine of a target works from.
func (c *Cache) Desired(target string) engine.Desired { return side{c, target} }

// side is a cache as one target sees it. It implements [engine.Desired].
type side struct {
	cache  *Cache
	target string
}

// Wakes implements [engine.Desired].
func (s side) Wakes() kcp.Source {
	c := s.cache
	return kcp.Source{Ready: c.settled, Subscribe: func(wake func(kcp.Key)) func() {
		c.enginesMu.Lock()
		c.engines[s.target] = wake
		c.enginesMu.Unlock()
		// Whatever comes into the cache from here on wakes the engine.
		for _, id := range c.assigned(s.target) {
			wake(id.Task())
			for _, of := range c.needs(id) {
				wake(of.Task())
			}
		}
		return func() {
			c.enginesMu.Lock()
			defer c.enginesMu.Unlock()
			delete(c.engines, s.target)
		}
	}}
}

// Found implements [engine.Desired].
func (s side) Found() { s.cache.need() }

// Profiles implements [engine.Desired].
func (s side) Profiles() (all []profile.Profile) {
	for _, k := range s.cache.Kinds() {
		all = append(all, k.Profile)
	}
	return all
}

// Profile implements [engine.Desired].
func (s side) Profile(of schema.GroupResource) *profile.Profile {
	if k := s.cache.Kind(of); k != nil {
		return &k.Profile
	}
	return nil
}

// Workload implements [engine.Desired].
func (s side) Workload(id engine.ID) *unstructured.Unstructured { return s.cache.Workload(id) }

// Assignment implements [engine.Desired].
func (s side) Assignment(id engine.ID) *workload.Assignment { return s.cache.Assignment(id) }

// Status implements [engine.Desired].
func (s side) Status(id engine.ID) *workload.TargetStatus { return s.cache.Report(id, s.target) }

// Placed implements [engine.Desired].
func (s side) Placed(cluster kcp.ClusterName, namespace string) []*workload.Assignment {
	return s.cache.AssignedIn(kcp.Key{Cluster: cluster, Namespace: namespace})
}

// Has implements [engine.Desired].
func (s side) Has(of schema.GroupResource) bool {
	return len(s.cache.Assignments.By(byHolding, holdingKey(s.target, of))) > 0
}

// Tenant implements [engine.Desired].
func (s side) Tenant(of kcp.ClusterName) kcp.ClusterName { return s.cache.options.Tenant(of) }

// Users implements [engine.Desired].
func (s side) Users(id engine.ID) (users []engine.ID) {
	for _, of := range s.cache.Users(id) {
		w, a := s.cache.Workload(of), s.cache.Assignment(of)
		if w != nil && a != nil && a.Spec.Workload.UID == string(w.GetUID()) && PartAt(a, s.target) != nil {
			users = append(users, of)
		}
	}
	return users
}

// Read implements [engine.Desired].
func (s side) Read(ctx context.Context, id engine.ID) (*unstructured.Unstructured, *workload.Assignment, error) {
	k := s.cache.Kind(id.GroupResource)
	if k == nil {
		return nil, nil, errors.New("the kind has no profile any more")
	}
	w, err := s.cache.Live(ctx, k, id)
	if w == nil || err != nil {
		return nil, nil, err
	}
	beside, err := s.cache.assignmentsIn.In(string(id.Key.Cluster))
	if err != nil {
		return nil, nil, err
	}
	a, err := beside.Namespace(id.Key.Namespace).Get(ctx, engine.AssignmentName(id.GroupResource, id.Key.Name), metav1.GetOptions{})
	if missing(err, Assignments().Resource) {
		return w, nil, nil
	}
	return w, a, err
}

// Report implements [engine.Desired].
func (s side) Report(ctx context.Context, of engine.ID, report *workload.TargetStatus) error {
	return s.cache.SaveReport(ctx, of, s.target, report)
}

// Dependency implements [engine.Desired].
func (s side) Dependency(ctx context.Context, id engine.ID) (*unstructured.Unstructured, string, bool, error) {
	k := s.cache.Kind(id.GroupResource)
	if k == nil {
		return nil, "is of a kind that is not copied", false, nil
	}
	k.begin()
	in, err := s.cache.in(id.Key.Cluster)
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
	for _, a := range s.cache.AssignedIn(id.Key) {
		if PartAt(a, s.target) != nil && s.cache.Kind(engine.IDFor(a, a.Spec.Workload).GroupResource) == nil {
			return false, nil // an object of a kind without a profile may refer to it
		}
	}
	var using []engine.ID
	find := func(k *Kind, of []engine.ID) error {
		all, err := s.listLive(ctx, k, id.Key)
		for i := range all {
			if k.IsRevision(&all[i]) {
				continue
			}
			if refs := k.RefersTo(&all[i]); slices.ContainsFunc(refs, func(r engine.ID) bool { return slices.Contains(of, r) }) {
				using = append(using, engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(&all[i])})
			}
		}
		return err
	}
	wanted := []engine.ID{id}
	if accounts := s.cache.Kind(profile.ServiceAccounts().GroupResource()); id.GroupResource == profile.Secrets().GroupResource() {
		if err := find(accounts, wanted); err != nil {
			return false, err
		}
		wanted, using = append(wanted, using...), nil
	}
	for _, k := range s.cache.Kinds() {
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
		if w == nil || a == nil {
			continue
		}
		if part := PartAt(a, s.target); part != nil && part.Phase != workload.Removing { // what is removed needs nothing more
			return false, nil
		}
	}
	return true, nil
}

// listLive lists the objects of a kind in a namespace, as the server has them. There are none if the
// workspace is gone.
func (s side) listLive(ctx context.Context, k *Kind, at kcp.Key) ([]unstructured.Unstructured, error) {
	in, err := s.cache.in(at.Cluster)
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
	if list, err = s.cache.objectsIn.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{"metadata.namespace": at.Namespace}.String()}); err != nil {
		return nil, err
	}
	if list.GetContinue() != "" {
		return nil, errors.New("the list is not complete")
	}
	return slices.DeleteFunc(list.Items, func(o unstructured.Unstructured) bool { return kcp.KeyOf(&o).Cluster != at.Cluster }), nil
}
