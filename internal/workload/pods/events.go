package pods

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// events serves the events of a workspace: those that are stored in it, and those of its pods and
// of the copies of its workloads in physical clusters. The latter are not stored, and only read.
type events struct {
	eventStorage // of those that are stored
	pods         *Pods
}

// eventStorage has the methods of upstream's storage of events.
type eventStorage interface {
	rest.StandardStorage
	rest.Scoper
	rest.StorageVersionProvider
	rest.SingularNameProvider
	rest.ShortNamesProvider
}

// consumer reports whether a request is in a workspace that has pods, and may read all their events.
// The selector of a permission claim cannot apply to events of physical clusters, which have no labels.
func (e *events) consumer(ctx context.Context) bool {
	from, c := e.pods.started.Load(), kcp.ClusterFrom(ctx)
	return from != nil && kcp.SelectorFrom(ctx) == "" && c != "" && c != "*" && from.computeOf(c) != ""
}

// own returns options for the stored events. The version of a client is one of all events.
func own(o *internalversion.ListOptions, v shown.Versions) *internalversion.ListOptions {
	if o == nil {
		return nil
	}
	o = o.DeepCopy()
	if v.Stored() != "" {
		o.ResourceVersion = v.Stored()
	}
	return o
}

func versionOf(o *internalversion.ListOptions) string {
	if o == nil {
		return ""
	}
	return o.ResourceVersion
}

// List implements [rest.Lister]. The last page of the stored events has those of the physical clusters.
func (e *events) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	list, end, err := e.gather(ctx, o)
	kcp.WhenServed(ctx, end)
	return list, err
}

// gather lists events. The caller must call end when it has no use for the list any more.
func (e *events) gather(ctx context.Context, o *internalversion.ListOptions) (_ runtime.Object, end func(), err error) {
	end = func() {}
	at, err := shown.ParseEventVersions(versionOf(o))
	if err != nil {
		found, err := e.eventStorage.List(ctx, o) // it says what is wrong
		return found, end, err
	}
	found, err := e.eventStorage.List(ctx, own(o, at))
	list, ok := found.(*core.EventList)
	if err != nil || !ok || list.Continue != "" || !e.consumer(ctx) {
		return found, end, err
	}
	leave, err := e.pods.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if err != nil {
		return nil, end, err
	}
	defer leave()
	w, err := e.pods.workspace(ctx, kcp.ClusterFrom(ctx), request.NamespaceValue(ctx))
	if err != nil {
		return nil, end, err
	}
	if len(w.parts) > mostParts {
		warning.AddWarning(ctx, "", "the workspace has pods in too many namespaces and physical clusters: their events are missing here; name a namespace")
		return found, end, nil
	}
	all, err := shown.ParseEventVersions(list.ResourceVersion)
	if err != nil {
		return nil, end, apierrors.NewInternalError(err)
	}
	list = &core.EventList{ListMeta: list.ListMeta, Items: list.Items[:len(list.Items):len(list.Items)]}
	kept := e.pods.results(w)
	e.add(ctx, w, selectsEvents(o), adding{list, all, kept})
	list.ResourceVersion = all.String()
	return list, kept.End, nil
}

// adding is what the events of parts are added to.
type adding struct {
	list *core.EventList
	all  shown.Versions
	kept *answers.Results
}

// add adds the events of the parts, and their versions.
func (e *events) add(ctx context.Context, w *workspace, which selection, to adding) {
	var mu sync.Mutex
	failed := e.pods.each(ctx, w.parts, func(ctx context.Context, of *part) error {
		c, err := e.pods.beginFor(ctx, of, to.kept)
		if err != nil {
			return err
		}
		defer c.end()
		found, at, more, err := c.listEvents(ctx, which.push)
		if err != nil {
			return err
		}
		c.budget.Stay()
		seen := &shown.Nodes{}
		for i := range found {
			seen.See(&found[i])
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range found {
			if shown := of.Event(&found[i], of.Version(found[i].ResourceVersion), seen); shown != nil && which.filter(shown) != nil {
				to.list.Items = append(to.list.Items, *shown)
			}
		}
		to.all.Add(of.Key, at)
		if more {
			warning.AddWarning(ctx, "", fmt.Sprintf("Location %q has more than %d events of a namespace; the others are not shown", of.Location, mostEvents))
		}
		return nil
	})
	e.pods.warn(ctx, w, failed, "events")
}

// Get implements [rest.Getter].
func (e *events) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	found, err := e.eventStorage.Get(ctx, name, o)
	if !apierrors.IsNotFound(err) || !e.consumer(ctx) {
		return found, err
	}
	leave, busy := e.pods.limits.enter(reading(kcp.ClusterFrom(ctx)))
	if busy != nil {
		return nil, busy
	}
	defer leave()
	w, unknown := e.pods.workspace(ctx, kcp.ClusterFrom(ctx), request.NamespaceValue(ctx))
	if unknown != nil {
		return nil, unknown
	}
	for _, of := range w.parts {
		stem, ok := of.PhysicalEvent(name)
		if !ok {
			continue
		}
		if shown, there := e.one(ctx, of, stem); shown != nil || there != nil {
			return shown, there
		}
	}
	return nil, err
}

// one returns the event with a name at a target as the tenant sees it, nil if there is none.
func (e *events) one(ctx context.Context, of *part, name string) (runtime.Object, error) {
	serving := ctx
	ctx, cancel := context.WithTimeout(ctx, e.pods.Deadline)
	defer cancel()
	c, err := e.pods.begin(ctx, of)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	defer c.sent(serving)
	if !c.exists {
		return nil, nil
	}
	there, err := c.events.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(of.unreachable(ctx, err).Error())
	}
	seen := &shown.Nodes{}
	seen.See(there)
	if shown := of.Event(there, of.Version(there.ResourceVersion), seen); shown != nil {
		return shown, nil
	}
	return nil, nil
}

// Watch implements [rest.Watcher].
func (e *events) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	at, err := shown.ParseEventVersions(versionOf(o))
	if err != nil || !e.consumer(ctx) {
		return e.eventStorage.Watch(ctx, own(o, at))
	}
	w, err := e.pods.workspace(ctx, kcp.ClusterFrom(ctx), request.NamespaceValue(ctx))
	if err != nil {
		return nil, err
	}
	if len(w.parts) > parallelWatches {
		warning.AddWarning(ctx, "", fmt.Sprintf("the workspace has pods in more than %d pairs of namespace and physical cluster: events there are not in this watch; watch a namespace", parallelWatches))
		return e.eventStorage.Watch(ctx, own(o, at))
	}
	all := o.DeepCopy()
	if all == nil {
		all = &internalversion.ListOptions{}
	}
	if all.ResourceVersion = ""; len(at) > 0 {
		all.ResourceVersion = at.String()
	}
	which, seen := selectsEvents(o), &shown.Nodes{}
	return e.pods.merge(ctx, all, which, subject{
		list: e.gather,
		watch: func(ctx context.Context, c *call, o metav1.ListOptions) (watch.Interface, error) {
			return c.events.Watch(ctx, o)
		},
		empty: func() metadata { return &core.Event{} },
		shown: func(of *part, o runtime.Object, version string) runtime.Object {
			event, ok := o.(*corev1.Event)
			if !ok {
				return nil
			}
			seen.See(event)
			if shown := of.Event(event, version, seen); shown != nil {
				return which.filter(shown)
			}
			return nil
		},
		stored: func(ctx context.Context, version string) (watch.Interface, error) {
			of := all.DeepCopy()
			of.ResourceVersion, of.SendInitialEvents, of.ResourceVersionMatch = version, nil, ""
			return e.eventStorage.Watch(ctx, of)
		},
	})
}
