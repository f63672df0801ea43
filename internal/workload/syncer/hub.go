package syncer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
)

// A Source has what all targets of a compute workspace work from.
type Source struct {
	engine.Desired
	// AssignmentsOf returns the keys of the Assignments that name a target.
	AssignmentsOf func(target string) []kcp.Key
	// AssignmentOf returns the Assignment of a workload, or nil.
	AssignmentOf func(of kcp.Key) *workload.Assignment
	// Ended is closed when the caches do not follow the server any more.
	Ended <-chan struct{}
}

func assignments() schema.GroupResource {
	return workload.GroupVersion.WithResource("assignments").GroupResource()
}

func reports() schema.GroupResource {
	return workload.GroupVersion.WithResource("targetstatuses").GroupResource()
}

func workloads() schema.GroupResource { return engine.Deployments().GroupResource() }

// A hub passes changes on to the streams of the targets that they concern, and to no others. It
// exists while agents of the compute workspace are connected to this server.
type hub struct {
	source *Source
	end    func()
	begun  int64 // the version of new streams

	mu      sync.Mutex
	streams map[string]*stream // by the keys of targets; guarded by mu
	leave   []func()
}

// newHub waits until the caches of a source are complete.
func newHub(ctx context.Context, source *Source, end func()) (*hub, error) {
	for _, ready := range []<-chan struct{}{source.Workloads.Ready(), source.Assignments.Ready(), source.Reports.Ready()} {
		select {
		case <-ready:
		case <-source.Ended:
			return nil, errEnded()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// Versions of a later hub, of this server or of another, are greater.
	h := &hub{source: source, end: end, begun: time.Now().UnixMicro() << 12, streams: map[string]*stream{}}
	for _, s := range []kcp.Source{
		source.Workloads.Wakes(func(w *unstructured.Unstructured) []kcp.Key { h.workload(kcp.KeyOf(w)); return nil }),
		source.Assignments.Wakes(func(a *workload.Assignment) []kcp.Key { h.assignment(a); return nil }),
		source.Reports.Wakes(func(r *workload.TargetStatus) []kcp.Key {
			h.touch(r.Spec.Key, id{reports(), kcp.KeyOf(r)})
			return nil
		}),
	} {
		if leave := s.Subscribe(func(kcp.Key) {}); leave != nil {
			h.leave = append(h.leave, leave)
		}
	}
	return h, nil
}

func (h *hub) close() {
	for _, leave := range h.leave {
		leave()
	}
	h.end()
}

// workload passes on a change of a workload.
func (h *hub) workload(key kcp.Key) {
	a := h.source.AssignmentOf(key)
	if a == nil {
		return
	}
	// Those that the change does not concern any more learn it from the Assignment.
	h.each(a, func(target string) { h.touch(target, id{workloads(), key}) })
}

func (h *hub) assignment(a *workload.Assignment) {
	key := kcp.KeyOf(a)
	of := key
	of.Name = a.Spec.Workload.Name
	h.each(a, func(target string) {
		h.touch(target, id{workloads(), of})
		h.touch(target, id{assignments(), key})
	})
}

// each calls f for the targets of an Assignment that have a stream.
func (h *hub) each(a *workload.Assignment, f func(target string)) {
	for _, t := range a.Spec.Targets {
		h.mu.Lock()
		_, ok := h.streams[t.Key]
		h.mu.Unlock()
		if ok {
			f(t.Key)
		}
	}
}

func (h *hub) touch(target string, of id) {
	h.mu.Lock()
	s := h.streams[target]
	h.mu.Unlock()
	if s != nil {
		s.set(of, func() *unstructured.Unstructured { return h.get(target, of) })
	}
}

// tombstone returns what a deletion shows: where the object was.
func tombstone(of id) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(kindOf(of.of))
	o.SetNamespace(of.key.Namespace)
	o.SetName(of.key.Name)
	o.SetAnnotations(map[string]string{core.ClusterAnnotation: string(of.key.Cluster)})
	return o
}

// stream returns the stream of a target.
func (h *hub) stream(target string) *stream {
	h.mu.Lock()
	if s := h.streams[target]; s != nil {
		h.mu.Unlock()
		return s
	}
	s := newStream(h.begun)
	h.streams[target] = s // before it is filled: it misses no change
	h.mu.Unlock()
	for _, key := range h.source.AssignmentsOf(target) {
		if a := h.source.Assignments.Get(key); a != nil {
			h.assignment(a)
		}
	}
	for _, r := range h.source.Reports.List("*") {
		if r.Spec.Key == target {
			h.touch(target, id{reports(), kcp.KeyOf(r)})
		}
	}
	return s
}

// get returns an object as a target sees it, or nil.
func (h *hub) get(target string, of id) *unstructured.Unstructured {
	switch of.of {
	case workloads():
		return h.object(target, of.key)
	case assignments():
		return h.part(target, of.key)
	case reports():
		return h.report(target, of.key)
	}
	return nil
}

// object returns a workload of which the target has a part.
func (h *hub) object(target string, key kcp.Key) *unstructured.Unstructured {
	w, a := h.source.Workloads.Get(key), h.source.AssignmentOf(key)
	if w == nil || !concerns(a, target) {
		return nil
	}
	return workloadFor(w)
}

func (h *hub) part(target string, key kcp.Key) *unstructured.Unstructured {
	a := h.source.Assignments.Get(key)
	if !concerns(a, target) {
		return nil
	}
	return assignmentFor(a, target)
}

func (h *hub) report(target string, key kcp.Key) *unstructured.Unstructured {
	r := h.source.Reports.Get(key)
	if r == nil || r.Spec.Key != target {
		return nil
	}
	return content(r, "TargetStatus")
}

func concerns(a *workload.Assignment, target string) bool {
	if a == nil {
		return false
	}
	for _, t := range a.Spec.Targets {
		if t.Key == target {
			return true
		}
	}
	return false
}

// workloadFor returns a workload without what it has from other targets: its status is the sum of
// all, and fields of others do not travel.
func workloadFor(w *unstructured.Unstructured) *unstructured.Unstructured {
	w = w.DeepCopy()
	delete(w.Object, "status")
	w.SetManagedFields(nil)
	return w
}

// assignmentFor returns an Assignment with the part of one target.
func assignmentFor(a *workload.Assignment, target string) *unstructured.Unstructured {
	own := &workload.Assignment{ObjectMeta: metav1.ObjectMeta{Name: a.Name, Namespace: a.Namespace, UID: a.UID,
		Annotations: map[string]string{core.ClusterAnnotation: a.Annotations[core.ClusterAnnotation]}, OwnerReferences: a.OwnerReferences}}
	own.Spec.Workload = a.Spec.Workload
	for _, t := range a.Spec.Targets {
		if t.Key == target {
			own.Spec.Targets = append(own.Spec.Targets, t)
		}
	}
	return content(own, "Assignment")
}

// content returns the content of an object of the group of workloads.
func content(o runtime.Object, kind string) *unstructured.Unstructured {
	text, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil // a bug: its types can be converted
	}
	u := &unstructured.Unstructured{Object: text}
	u.SetManagedFields(nil)
	u.SetGroupVersionKind(workload.GroupVersion.WithKind(kind))
	return u
}

func kindOf(of schema.GroupResource) schema.GroupVersionKind {
	switch of {
	case assignments():
		return workload.GroupVersion.WithKind("Assignment")
	case reports():
		return workload.GroupVersion.WithKind("TargetStatus")
	}
	return engine.Deployments().GroupVersion().WithKind("Deployment")
}

// hashOf returns a hash of what a target sees of an object. The version of the object is no part of
// it: also what the target does not see changes that.
func hashOf(o *unstructured.Unstructured) string {
	if o == nil {
		return ""
	}
	o.SetResourceVersion("")
	text, err := json.Marshal(o) // sorts the keys
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func versionText(v int64) string { return strconv.FormatInt(v, 10) }
