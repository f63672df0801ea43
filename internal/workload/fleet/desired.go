package fleet

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// desired is what the engine of a target in push mode works from.
func (f *fleet) desired(target string) engine.Desired { return side{f, target} }

// side is a fleet as one target sees it. It implements [engine.Desired].
type side struct {
	*fleet
	target string
}

// Wakes implements [engine.Desired].
func (s side) Wakes() kcp.Source {
	return kcp.Source{Ready: s.kinds.settled, Subscribe: func(wake func(kcp.Key)) func() {
		s.mu.Lock()
		s.wakes[s.target] = wake
		s.mu.Unlock()
		// Whatever comes into the cache from here on wakes the engine.
		for _, key := range s.assignments.By(byTarget, s.target) {
			a := s.assignments.Get(key)
			if a == nil {
				continue
			}
			id := engine.IDFor(a, a.Spec.Workload)
			wake(id.Task())
			for _, of := range s.needs(id) {
				wake(of.Task())
			}
		}
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.wakes, s.target)
		}
	}}
}

// Found implements [engine.Desired].
func (s side) Found() { s.kinds.need() }

// Profiles implements [engine.Desired].
func (s side) Profiles() []profile.Profile { return s.kinds.profiles() }

// Profile implements [engine.Desired].
func (s side) Profile(of schema.GroupResource) *profile.Profile {
	if k := s.kinds.get(of); k != nil {
		return &k.Profile
	}
	return nil
}

// Workload implements [engine.Desired].
func (s side) Workload(id engine.ID) *unstructured.Unstructured { return s.workload(id) }

// Assignment implements [engine.Desired].
func (s side) Assignment(id engine.ID) *workload.Assignment { return s.assignmentOf(id) }

// Status implements [engine.Desired].
func (s side) Status(id engine.ID) *workload.TargetStatus { return s.reportOf(id, s.target) }

// Placed implements [engine.Desired].
func (s side) Placed(cluster kcp.ClusterName, namespace string) []*workload.Assignment {
	return s.assignedIn(kcp.Key{Cluster: cluster, Namespace: namespace})
}

// Has implements [engine.Desired].
func (s side) Has(of schema.GroupResource) bool {
	return len(s.assignments.By(byHolding, holdingKey(s.target, of))) > 0
}

// Tenant implements [engine.Desired].
func (s side) Tenant(of kcp.ClusterName) kcp.ClusterName { return s.server.Tenant(of) }

// Users implements [engine.Desired].
func (s side) Users(id engine.ID) (users []engine.ID) {
	for _, of := range s.usersOf(id) {
		w, a := s.workload(of), s.assignmentOf(of)
		if w != nil && a != nil && a.Spec.Workload.UID == string(w.GetUID()) && partAt(a, s.target) != nil {
			users = append(users, of)
		}
	}
	return users
}

// partAt returns the part of a target, nil if it has none.
func partAt(a *workload.Assignment, target string) *workload.AssignedTarget {
	for i := range a.Spec.Targets {
		if a.Spec.Targets[i].Key == target {
			return &a.Spec.Targets[i]
		}
	}
	return nil
}

// in returns a client for the objects of a logical cluster.
func (f *fleet) in(cluster kcp.ClusterName) (dynamic.Interface, error) {
	return dynamic.NewForConfig(client.Cluster(f.view, string(cluster)))
}

// Read implements [engine.Desired].
func (s side) Read(ctx context.Context, id engine.ID) (*unstructured.Unstructured, *workload.Assignment, error) {
	k := s.kinds.get(id.GroupResource)
	if k == nil {
		return nil, nil, errors.New("the kind has no profile any more")
	}
	w, err := s.live(ctx, k, id)
	if w == nil || err != nil {
		return nil, nil, err
	}
	beside, err := s.fleet.assignmentsIn.In(string(id.Key.Cluster))
	if err != nil {
		return nil, nil, err
	}
	a, err := beside.Namespace(id.Key.Namespace).Get(ctx, engine.AssignmentName(id.GroupResource, id.Key.Name), metav1.GetOptions{})
	if missing(err, assignments().Resource) {
		return w, nil, nil
	}
	return w, a, err
}

// live reads an object from the server. It returns nil if there is none.
func (f *fleet) live(ctx context.Context, k *kind, id engine.ID) (*unstructured.Unstructured, error) {
	in, err := f.in(id.Key.Cluster)
	if err != nil {
		return nil, err
	}
	w, err := in.Resource(k.GroupVersionResource).Namespace(id.Key.Namespace).Get(ctx, id.Key.Name, metav1.GetOptions{})
	if missing(err, k.Resource) {
		return nil, nil
	}
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		// The workspace may be gone, or may not bind the export any more.
		gone, unsure := f.absent(ctx, k, id)
		if gone {
			return nil, nil
		}
		err = errors.Join(err, unsure)
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// absent reports whether a consistent list of the objects of all consumers lacks one.
func (f *fleet) absent(ctx context.Context, k *kind, id engine.ID) (bool, error) {
	all, err := f.in("*")
	if err != nil {
		return false, err
	}
	list, err := all.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"metadata.name": id.Key.Name, "metadata.namespace": id.Key.Namespace}.String()})
	if err != nil || list.GetContinue() != "" {
		return false, err
	}
	for i := range list.Items {
		if kcp.KeyOf(&list.Items[i]) == id.Key {
			return false, nil
		}
	}
	return true, nil
}

// Report implements [engine.Desired].
func (s side) Report(ctx context.Context, of engine.ID, report *workload.TargetStatus) error {
	return s.report(ctx, of, s.target, report)
}

// report writes or deletes a TargetStatus.
func (f *fleet) report(ctx context.Context, of engine.ID, target string, report *workload.TargetStatus) error {
	in, err := f.reportsIn.In(string(of.Key.Cluster))
	if err != nil {
		return err
	}
	all, name := in.Namespace(of.Key.Namespace), engine.StatusName(of.GroupResource, of.Key.Name, target)
	if report == nil {
		return ignoreGone(all.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	have, err := all.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = all.Create(ctx, report, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	next := have.DeepCopy()
	next.Spec, next.OwnerReferences = report.Spec, report.OwnerReferences
	_, err = all.Update(ctx, next, metav1.UpdateOptions{})
	return err
}
