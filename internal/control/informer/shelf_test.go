package informer

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

var podResource = schema.GroupResource{Resource: "pods"}

// A shelf is a minimal server of pods in all logical clusters, with the requests that a
// Kind makes: lists at a version, watches from a version and patches.
type shelf struct {
	t *testing.T

	mu        sync.Mutex
	version   int
	objects   map[control.Key]*corev1.Pod
	history   []watch.Event
	compacted int // events up to this version are forgotten
	watches   []*watch.FakeWatcher
	lists     int
	patches   []string        // subresource and body
	hold      <-chan struct{} // if not nil, lists wait for it whatever their context says
	wrap      func(runtime.Object) runtime.Object
}

func newShelf(t *testing.T) *shelf {
	return &shelf{t: t, objects: map[control.Key]*corev1.Pod{}, wrap: func(o runtime.Object) runtime.Object { return o }}
}

func pod(c, namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: namespace, UID: types.UID(c + "-" + name),
		Annotations: map[string]string{cluster.Annotation: c},
	}}
}

// List and Watch without a context are part of the interface, and not used.
func (s *shelf) List(metav1.ListOptions) (runtime.Object, error)   { panic("no context") }
func (s *shelf) Watch(metav1.ListOptions) (watch.Interface, error) { panic("no context") }

func (s *shelf) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	hold := s.hold
	s.lists++
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, p := range s.objects {
		list.Items = append(list.Items, *p.DeepCopy())
	}
	return list, nil
}

func (s *shelf) WatchWithContext(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.SendInitialEvents != nil {
		s.t.Error("asked to send the initial events, which loses objects of equal names")
	}
	from, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if from < s.compacted {
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	w := watch.NewFakeWithChanSize(1000, false)
	for _, e := range s.history {
		if e.Object.(*corev1.Pod).ResourceVersion > fmt.Sprintf("%09d", from) {
			w.Action(e.Type, s.wrap(e.Object))
		}
	}
	s.watches = append(s.watches, w)
	return w, nil
}

func (s *shelf) put(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(p)
}

func (s *shelf) store(p *corev1.Pod) {
	_, existed := s.objects[control.KeyOf(p)]
	what := watch.Added
	if existed {
		what = watch.Modified
	}
	s.event(what, p)
	s.objects[control.KeyOf(p)] = p
}

func (s *shelf) remove(k control.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.objects[k].DeepCopy()
	delete(s.objects, k)
	s.event(watch.Deleted, p)
}

func (s *shelf) event(what watch.EventType, p *corev1.Pod) {
	s.version++
	p.ResourceVersion = fmt.Sprintf("%09d", s.version)
	s.history = append(s.history, watch.Event{Type: what, Object: p.DeepCopy()})
	for _, w := range s.watches {
		if !w.IsStopped() {
			w.Action(what, s.wrap(p.DeepCopy()))
		}
	}
}

// interrupt ends all watches and drops the event history, with the events of f, so
// that clients have to list again.
func (s *shelf) interrupt(f func()) {
	s.mu.Lock()
	for _, w := range s.watches {
		w.Stop()
	}
	s.watches, s.compacted = nil, math.MaxInt
	s.mu.Unlock()
	f()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history, s.compacted = nil, s.version
}

// patch is a Saver. As on a server, a patch of a subresource changes only its part. An
// object that is being deleted is removed with its last finalizer.
func (s *shelf) patch(_ context.Context, k control.Key, body []byte, subresource string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches = append(s.patches, subresource+" "+string(body))
	old, ok := s.objects[k]
	if !ok {
		return "", apierrors.NewNotFound(podResource, k.Name)
	}
	var want corev1.Pod
	if err := json.Unmarshal(body, &want); err != nil {
		return "", err
	}
	if want.ResourceVersion != "" && want.ResourceVersion != old.ResourceVersion || want.UID != "" && want.UID != old.UID {
		return "", apierrors.NewConflict(podResource, k.Name, fmt.Errorf("the object has been modified"))
	}
	before, err := json.Marshal(old)
	if err != nil {
		return "", err
	}
	after, err := jsonpatch.MergePatch(before, body)
	if err != nil {
		return "", err
	}
	next := &corev1.Pod{}
	if err := json.Unmarshal(after, next); err != nil {
		return "", err
	}
	if subresource == "status" {
		next = &corev1.Pod{ObjectMeta: *old.ObjectMeta.DeepCopy(), Spec: old.Spec, Status: next.Status}
	} else {
		next.Status = old.Status
	}
	if next.DeletionTimestamp != nil && len(next.Finalizers) == 0 {
		delete(s.objects, k)
		s.event(watch.Deleted, next)
	} else {
		s.store(next)
	}
	return next.ResourceVersion, nil
}

func (s *shelf) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.patches
}

// tick advances the time of the bubble by 100 ms, and waits until everything due has happened.
func tick() {
	<-time.After(100 * time.Millisecond)
	synctest.Wait()
}

func key(c, name string) control.Key { return control.Key{Cluster: cluster.Name(c), Name: name} }

// start runs loops until the test ends.
func start(t *testing.T, loops ...control.Loop) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		control.Runner{}.Run(ctx, loops...)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
}
