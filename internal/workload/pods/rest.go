package pods

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// store serves pods.
type store struct {
	*Pods
	rest.TableConvertor
}

var _ interface {
	rest.Storage
	rest.Scoper
	rest.Lister
	rest.Getter
	rest.Watcher
	rest.GracefulDeleter
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.CategoriesProvider
} = &store{}

// New implements [rest.Storage].
func (*store) New() runtime.Object { return &core.Pod{} }

// NewList implements [rest.Lister].
func (*store) NewList() runtime.Object { return &core.PodList{} }

// Destroy implements [rest.Storage].
func (*store) Destroy() {}

// NamespaceScoped implements [rest.Scoper].
func (*store) NamespaceScoped() bool { return true }

// GetSingularName implements [rest.SingularNameProvider].
func (*store) GetSingularName() string { return "pod" }

// ShortNames implements [rest.ShortNamesProvider].
func (*store) ShortNames() []string { return []string{"po"} }

// Categories implements [rest.CategoriesProvider].
func (*store) Categories() []string { return []string{"all"} }

// List implements [rest.Lister].
func (s *store) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	list, end, err := s.gather(ctx, o)
	kcp.WhenServed(ctx, end)
	return list, err
}

// gather lists pods. The caller must call end when it has no use for the list any more.
func (s *store) gather(ctx context.Context, o *internalversion.ListOptions) (_ runtime.Object, end func(), err error) {
	leave, err := s.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, func() {}, err
	}
	defer leave()
	w, err := s.parts(ctx)
	if err != nil {
		return nil, func() {}, err
	}
	list, kept, failed := s.merged(ctx, w, selects(o))
	s.warn(ctx, w, failed, "pods")
	return list, kept.End, nil
}

// merged lists the pods of parts, and returns the errors of those that are missing. The caller must end the results.
func (s *store) merged(ctx context.Context, w *workspace, which selection) (*core.PodList, *answers.Results, map[*part]error) {
	list, versions, kept := &core.PodList{}, shown.Versions{}, s.results(w)
	var mu sync.Mutex
	failed := s.each(ctx, w.parts, func(ctx context.Context, of *part) error {
		c, err := s.beginFor(ctx, of, kept)
		if err != nil {
			return err
		}
		defer c.end()
		var matching []core.Pod
		at, err := c.list(ctx, which.push, func(found []corev1.Pod) (weight int64, err error) {
			for i := range found {
				one, err := of.Pod(&found[i], of.Version(found[i].ResourceVersion))
				if err != nil {
					return 0, err
				}
				if ok, err := which.Matches(one); err == nil && ok {
					matching = append(matching, *one)
					weight += answers.MemoryOf(one) + answers.MemoryOf(&core.Pod{}) // the list grows
				}
			}
			return weight, nil
		})
		if err != nil {
			return err
		}
		c.budget.Stay()
		mu.Lock()
		defer mu.Unlock()
		list.Items = append(list.Items, matching...)
		versions.Add(of.Key, at)
		return nil
	})
	slices.SortStableFunc(list.Items, func(a, b core.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	list.ResourceVersion = versions.String()
	return list, kept, failed
}

// Get implements [rest.Getter].
func (s *store) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	leave, err := s.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, err
	}
	defer leave()
	c, pod, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	defer c.sent(ctx)
	return c.Pod(pod, c.Version(pod.ResourceVersion))
}

// Delete implements [rest.GracefulDeleter]. The target deletes the pod, and its controllers make
// another one.
func (s *store) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	leave, err := s.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, false, err
	}
	defer leave()
	c, pod, err := s.find(ctx, name)
	if err != nil {
		return nil, false, err
	}
	defer c.sent(ctx)
	physical, uid := pod.Name, pod.UID
	before, err := c.Pod(pod, c.Version(pod.ResourceVersion))
	if err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, before); err != nil {
			return nil, false, err
		}
	}
	there, err := c.deletion(o, uid, name)
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Deadline)
	defer cancel()
	switch err := c.pods.Delete(ctx, physical, *there); {
	case apierrors.IsNotFound(err):
		return nil, false, apierrors.NewNotFound(core.Resource("pods"), name)
	case apierrors.IsConflict(err):
		return nil, false, apierrors.NewConflict(core.Resource("pods"), name, errors.New("the pod has changed; try again"))
	case err != nil:
		return nil, false, apierrors.NewServiceUnavailable(c.unreachable(ctx, err).Error())
	}
	return before, false, nil
}
