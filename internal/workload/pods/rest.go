package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// Storage returns the storages of pods and their subresources.
func (p *Pods) Storage() map[string]rest.Storage {
	pods := &store{
		Pods:           p,
		TableConvertor: printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)},
	}
	all := pods.streams().Storage()
	all["pods"], all["pods/eviction"], all["pods/ephemeralcontainers"], all["pods/proxy"] = pods, evictions{pods}, debuggers{pods}, unserved{}
	return all
}

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

// A selection is which pods a request is for.
type selection struct {
	storage.SelectionPredicate
	push metav1.ListOptions // what the targets select
}

// selectorsOf returns the selectors of a request. Without options, they select everything.
func selectorsOf(o *internalversion.ListOptions) (labels.Selector, fields.Selector) {
	label, field := labels.Everything(), fields.Everything()
	if o != nil && o.LabelSelector != nil {
		label = o.LabelSelector
	}
	if o != nil && o.FieldSelector != nil {
		field = o.FieldSelector
	}
	return label, field
}

// selects parses the selectors of a request. The targets select by what means the same there. The
// predicate decides about the pods as the tenant sees them.
func selects(o *internalversion.ListOptions) selection {
	label, field := selectorsOf(o)
	s := selection{SelectionPredicate: podregistry.MatchPod(label, field)}
	there := labels.NewSelector()
	if all, selectable := label.Requirements(); selectable {
		for _, r := range all {
			if r.Key() != shown.LocationLabel {
				there = there.Add(r)
			}
		}
		s.push.LabelSelector = there.String()
	} else {
		s.push.LabelSelector = label.String()
	}
	var pushed []fields.Selector
	for _, r := range field.Requirements() {
		if r.Field == "status.phase" || r.Field == "spec.restartPolicy" || r.Field == "metadata.name" && !strings.Contains(r.Value, ".") {
			if one, err := fields.ParseSelector(r.Field + string(r.Operator) + fields.EscapeValue(r.Value)); err == nil {
				pushed = append(pushed, one)
			}
		}
	}
	s.push.FieldSelector = fields.AndSelectors(pushed...).String()
	return s
}

// parts returns the parts that a request concerns.
func (s *store) parts(ctx context.Context) (*workspace, error) {
	w, err := s.workspace(ctx, kcp.ClusterFrom(ctx), request.NamespaceValue(ctx))
	if err == nil && len(w.parts) > mostParts {
		return nil, apierrors.NewBadRequest("the workspace has pods in too many namespaces and physical clusters to list all of them at once; name a namespace")
	}
	return w, err
}

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
		var shown []core.Pod
		at, err := c.list(ctx, which.push, func(found []corev1.Pod) (weight int64, err error) {
			for i := range found {
				one, err := of.Pod(&found[i], of.Version(found[i].ResourceVersion))
				if err != nil {
					return 0, err
				}
				if ok, err := which.Matches(one); err == nil && ok {
					shown = append(shown, *one)
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
		list.Items = append(list.Items, shown...)
		versions.Add(of.Key, at)
		return nil
	})
	slices.SortStableFunc(list.Items, func(a, b core.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	list.ResourceVersion = versions.String()
	return list, kept, failed
}

// each calls f for every part, some at a time and each within the deadline. It returns the errors.
func (s *store) each(ctx context.Context, parts []*part, f func(context.Context, *part) error) map[*part]error {
	failed := map[*part]error{}
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(mostAsked)
	for _, of := range parts {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, s.Deadline)
			defer cancel()
			if err := f(ctx, of); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[of] = err
			}
			return nil
		})
	}
	_ = all.Wait() // f has no other errors
	return failed
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

// find returns the pod with a name in the workspace, as it is at its target, and a call to the
// target. The caller must end the call.
func (s *store) find(ctx context.Context, name string) (*call, *corev1.Pod, error) {
	w, err := s.parts(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var found *call
	var pod *corev1.Pod
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := s.each(asking, w.parts, func(ctx context.Context, of *part) error {
		c, err := s.begin(ctx, of)
		if err != nil {
			return err
		}
		have, err := c.get(ctx, name)
		mu.Lock()
		defer mu.Unlock()
		if have == nil || err != nil || found != nil {
			c.end()
			return err
		}
		found, pod = c, have
		cancel()
		return nil
	})
	if found != nil {
		return found, pod, nil
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	for _, err := range failed {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("cannot tell whether pod %q exists: %v", name, err))
	}
	return nil, nil, apierrors.NewNotFound(core.Resource("pods"), name)
}

// get returns the pod with a name in the workspace, nil if this target does not have it.
func (c *call) get(ctx context.Context, name string) (*corev1.Pod, error) {
	if !c.exists {
		return nil, nil
	}
	pod, err := c.pods.Get(ctx, c.PhysicalName(name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if c.Name(pod) != name || pod.Namespace != c.Physical {
		return nil, nil
	}
	return pod, nil
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
	shown, err := c.Pod(pod, c.Version(pod.ResourceVersion))
	if err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, shown); err != nil {
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
	return shown, false, nil
}

// deletion translates the options of a deletion of the pod with a UID.
func (c *call) deletion(o *metav1.DeleteOptions, uid types.UID, name string) (*metav1.DeleteOptions, error) {
	there := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if o == nil {
		return there, nil
	}
	there.GracePeriodSeconds, there.DryRun = o.GracePeriodSeconds, o.DryRun
	return there, c.precondition(o.Preconditions, there, name)
}

// precondition translates the preconditions of a deletion.
func (c *call) precondition(of *metav1.Preconditions, to *metav1.DeleteOptions, name string) error {
	if of == nil {
		return nil
	}
	if of.UID != nil && *of.UID != *to.Preconditions.UID {
		return apierrors.NewConflict(core.Resource("pods"), name, fmt.Errorf("the UID in the precondition is %s, that of the pod is %s", *of.UID, *to.Preconditions.UID))
	}
	if of.ResourceVersion != nil {
		v, err := shown.ParseVersions(*of.ResourceVersion)
		if err != nil {
			return err
		}
		if at, ok := v.At(c.Key); ok {
			to.Preconditions.ResourceVersion = new(strconv.FormatUint(at, 10))
		} else {
			return apierrors.NewConflict(core.Resource("pods"), name, errors.New("the resource version in the precondition is not one of this pod"))
		}
	}
	return nil
}
