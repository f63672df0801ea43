package pods

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

const (
	retryFirst, retryLast = time.Second, 30 * time.Second
	// parallelWatches is the maximum of parts of one watch, each of which has a connection.
	parallelWatches = 50
)

// A subject is what a merged watch is of.
type subject struct {
	// list returns what the watch begins with, if the client asks for that.
	// The caller must call end when it has no use for the list any more.
	list func(context.Context, *internalversion.ListOptions) (list runtime.Object, end func(), err error)
	// watch opens a watch at a target.
	watch func(context.Context, *call, metav1.ListOptions) (watch.Interface, error)
	// shown returns an object of a part as the client sees it, with a version, nil if it does not.
	shown func(of *part, o runtime.Object, version string) runtime.Object
	// empty returns an object for bookmarks.
	empty func() metadata
	// stored opens a watch of the objects that are stored in the workspace, from a version of these.
	// Nil means that there are none.
	stored func(ctx context.Context, version string) (watch.Interface, error)
}

type metadata interface {
	runtime.Object
	metav1.Object
}

// A merged watch sends the events of all parts of a workspace. It follows the Assignments: a target
// that gets a part joins it. If a target does not answer, its objects stay as they were.
type merged struct {
	*Pods
	subject
	which     selection
	cluster   kcp.ClusterName
	namespace string
	bookmarks bool
	stop      context.CancelFunc
	out       chan watch.Event
	work      sync.WaitGroup
	first     []watch.Event // before those of the parts
	sent      func()        // gives back the weight of the first events

	mu    sync.Mutex
	begin shown.Versions       // of the client
	at    map[[2]string]uint64 // how far each part is, 0 if unknown; guarded by mu
	open  map[[2]string]bool
}

// Watch implements [rest.Watcher].
func (s *store) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	which := selects(o)
	return s.merge(ctx, o, which, subject{
		list: s.listed,
		watch: func(ctx context.Context, c *call, o metav1.ListOptions) (watch.Interface, error) {
			return c.pods.Watch(ctx, o)
		},
		empty: func() metadata { return &core.Pod{} },
		shown: func(of *part, o runtime.Object, version string) runtime.Object {
			pod, ok := o.(*corev1.Pod)
			if !ok || pod.Namespace != of.Physical {
				return nil // a physical cluster that says what was not asked harms itself only
			}
			shown, err := of.Pod(pod, version)
			if err != nil {
				return nil
			}
			return which.filter(shown)
		},
	})
}

// listed lists pods for the beginning of a watch: each has the version from which the client goes on.
func (s *store) listed(ctx context.Context, o *internalversion.ListOptions) (_ runtime.Object, end func(), err error) {
	found, end, err := s.gather(ctx, o)
	if list, ok := found.(*core.PodList); ok {
		for i := range list.Items {
			list.Items[i].ResourceVersion = list.ResourceVersion
		}
	}
	return found, end, err
}

// merge opens a merged watch.
func (p *Pods) merge(ctx context.Context, o *internalversion.ListOptions, which selection, of subject) (_ watch.Interface, err error) {
	m := &merged{Pods: p, subject: of, which: which, cluster: kcp.ClusterFrom(ctx), namespace: request.NamespaceValue(ctx), sent: func() {}, at: map[[2]string]uint64{}, open: map[[2]string]bool{}}
	version := ""
	if o != nil {
		version, m.bookmarks = o.ResourceVersion, o.AllowWatchBookmarks
	}
	if m.begin, err = shown.ParseVersions(version); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.sent()
		}
	}()
	if o != nil && o.SendInitialEvents != nil && *o.SendInitialEvents {
		if err := m.initial(ctx, o); err != nil {
			return nil, err
		}
	}
	w, err := p.parts(ctx)
	if err != nil {
		return nil, err
	}
	if len(w.parts) > parallelWatches {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the workspace has pods in more than %d pairs of namespace and physical cluster, which cannot be watched at once; watch a namespace", parallelWatches))
	}
	leave, err := p.limits.enter(streaming(m.cluster), streamingOf(p.tenant(m.cluster)))
	if err != nil {
		return nil, err
	}
	ctx, m.stop = context.WithCancel(ctx)
	var stored watch.Interface
	if m.stored != nil {
		if stored, err = m.stored(ctx, m.begin.Stored()); err != nil {
			m.stop()
			leave()
			return nil, err
		}
		m.at[[2]string{"", shown.StoredKey}] = m.begin[shown.StoredKey]
	}
	m.out = make(chan watch.Event)
	ended := p.untilClosing(m.stop, func() bool { return m.good(ctx, w) })
	m.work.Go(func() { m.run(ctx, w, stored) })
	go func() { // ends with the watch, whose ResultChan tells that
		m.work.Wait()
		ended()
		leave()
		close(m.out)
	}()
	return m, nil
}

// initial lists the objects, which are the first events of the watch.
func (m *merged) initial(ctx context.Context, o *internalversion.ListOptions) error {
	list, end, err := m.list(ctx, &internalversion.ListOptions{LabelSelector: o.LabelSelector, FieldSelector: o.FieldSelector})
	m.sent = end
	if err != nil {
		return err
	}
	at, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	err = meta.EachListItem(list, func(one runtime.Object) error {
		m.first = append(m.first, watch.Event{Type: watch.Added, Object: one})
		return nil
	})
	if err != nil {
		return err
	}
	if m.bookmarks {
		mark := m.empty()
		mark.SetResourceVersion(at.GetResourceVersion())
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		m.first = append(m.first, watch.Event{Type: watch.Bookmark, Object: mark})
	}
	m.begin, err = shown.ParseVersions(at.GetResourceVersion())
	return err
}

// Stop implements [watch.Interface].
func (m *merged) Stop() { m.stop() }

// ResultChan implements [watch.Interface].
func (m *merged) ResultChan() <-chan watch.Event { return m.out }

// good reports whether the watch may go on: the workspace has its pods from where it had them, and all targets are
// registered. If one is not, the client lists again, as its pods are there no more.
func (m *merged) good(ctx context.Context, w *workspace) bool {
	if from := m.started.Load(); from == nil || from.computeOf(m.cluster) != w.compute || w.compute != "" && w.assignments == nil {
		return false
	}
	m.mu.Lock()
	keys := map[string]bool{}
	for k := range m.open {
		keys[k[1]] = true
	}
	m.mu.Unlock()
	for key := range keys {
		if !m.registered(ctx, w.compute, key) {
			m.expire(ctx)
			return false
		}
	}
	return true
}

// run starts the parts and waits for others.
func (m *merged) run(ctx context.Context, w *workspace, stored watch.Interface) {
	defer m.stop()
	defer m.sent()
	if stored != nil {
		defer stored.Stop()
	}
	for _, e := range m.first {
		if !m.send(ctx, e) {
			return
		}
	}
	m.first = nil
	m.sent()
	if stored != nil {
		m.work.Go(func() { m.forwardStored(ctx, stored) })
	}
	m.join(ctx, w)
	if w.assignments == nil {
		<-ctx.Done() // nothing is bound that could run
		return
	}
	changes, err := w.assignments.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return // the client watches again
	}
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case change, ok := <-changes.ResultChan():
			if !ok || change.Type == watch.Error {
				return
			}
		}
		now, err := m.workspace(ctx, m.cluster, m.namespace)
		if err != nil {
			return
		}
		m.join(ctx, now)
	}
}

// join starts the parts that are new.
func (m *merged) join(ctx context.Context, w *workspace) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, of := range w.parts {
		k := [2]string{of.Namespace, of.Key}
		if m.open[k] {
			continue
		}
		if len(m.open) >= parallelWatches {
			m.stop() // the client watches again, and is told
			return
		}
		m.open[k] = true
		m.at[k], _ = m.begin.At(of.Key)
		m.work.Go(func() { m.follow(ctx, of, k) })
	}
}

// follow sends the events of a part until ctx ends.
func (m *merged) follow(ctx context.Context, of *part, k [2]string) {
	for wait := retryFirst; ctx.Err() == nil; wait = min(2*wait, retryLast) {
		if m.session(ctx, of, k) {
			wait = retryFirst
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// session watches a part until the target ends that. It reports whether the watch began.
func (m *merged) session(ctx context.Context, of *part, k [2]string) bool {
	ctx, end := context.WithCancel(ctx)
	defer end()
	late := time.AfterFunc(m.Deadline, end) // until the watch is open
	defer late.Stop()
	c, err := m.Pods.begin(ctx, of)
	if err != nil {
		return false
	}
	defer c.end()
	if !c.exists {
		return false
	}
	o := m.which.push
	o.AllowWatchBookmarks = true
	m.mu.Lock()
	if at := m.at[k]; at > 0 {
		o.ResourceVersion = strconv.FormatUint(at, 10)
	}
	m.mu.Unlock()
	changes, err := m.watch(ctx, c, o)
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			m.expire(ctx)
		}
		return false
	}
	defer changes.Stop()
	late.Stop()
	for change := range changes.ResultChan() {
		if change.Type == watch.Error {
			if err := apierrors.FromObject(change.Object); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				m.expire(ctx)
			}
			return true
		}
		if !m.forward(ctx, of, k, change) {
			return true
		}
		c.budget.Deliver()
	}
	return true
}

// expire ends the watch: the client must list again.
func (m *merged) expire(ctx context.Context) {
	status := apierrors.NewResourceExpired("the resource version is too old for one of the physical clusters").Status()
	m.send(ctx, watch.Event{Type: watch.Error, Object: &status})
	m.stop()
}

func (m *merged) send(ctx context.Context, e watch.Event) bool {
	select {
	case m.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// forward sends an event of a part as the client sees it. It reports false if the watch is over.
func (m *merged) forward(ctx context.Context, of *part, k [2]string, change watch.Event) bool {
	o, err := meta.Accessor(change.Object)
	if err != nil {
		return false
	}
	version := m.reached(k, o.GetResourceVersion())
	if change.Type == watch.Bookmark {
		return m.mark(ctx, version)
	}
	if shown := m.shown(of, change.Object, version); shown != nil {
		return m.send(ctx, watch.Event{Type: change.Type, Object: shown})
	}
	return true
}

// mark sends a bookmark, if the client wants it.
func (m *merged) mark(ctx context.Context, version string) bool {
	if !m.bookmarks {
		return true
	}
	mark := m.empty()
	mark.SetResourceVersion(version)
	return m.send(ctx, watch.Event{Type: watch.Bookmark, Object: mark})
}

// forwardStored sends the events of stored objects. The watch ends with theirs.
func (m *merged) forwardStored(ctx context.Context, stored watch.Interface) {
	defer m.stop()
	for change := range stored.ResultChan() {
		if o, err := meta.Accessor(change.Object); err == nil && change.Type != watch.Error {
			version := m.reached([2]string{"", shown.StoredKey}, o.GetResourceVersion())
			if change.Type == watch.Bookmark {
				if !m.mark(ctx, version) {
					return
				}
				continue
			}
		}
		if !m.send(ctx, change) {
			return
		}
	}
}

// reached notes how far a part is, and returns the resource version from which a client can go on.
func (m *merged) reached(k [2]string, version string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && n > m.at[k] {
		m.at[k] = n
	}
	now := shown.Versions{}
	for k, at := range m.at {
		now.Add(k[1], strconv.FormatUint(at, 10))
	}
	return now.String()
}
