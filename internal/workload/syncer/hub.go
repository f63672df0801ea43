package syncer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
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
	"github.com/unforked/kcp/internal/workload/profile"
)

// A Source has what all targets of a compute workspace work from.
type Source struct {
	// Of returns what one target works from.
	Of func(target string) engine.Desired
	// Assigned returns the objects that have an Assignment with the target.
	Assigned func(target string) []engine.ID
	// Needs returns what an object refers to, also by its service account.
	Needs func(engine.ID) []engine.ID
	// State returns a text that changes whenever a referenced object changes. used reports whether an object that
	// refers to it has a part at the target.
	State       func(target string, of engine.ID) (state string, used bool)
	Assignments *kcp.Kind[*workload.Assignment]
	Reports     *kcp.Kind[*workload.TargetStatus]
	// Profiles returns the ResourceProfiles that are in effect.
	Profiles func() []*workload.ResourceProfile
	// Follow calls hear when something about an object changes that concerns a target, or all of
	// them, until leave is called.
	Follow func(hear func(target string, of engine.ID)) (leave func())
	// Ready waits until the caches are complete.
	Ready func(context.Context) error
	// Ended is closed when the caches do not follow the server any more.
	Ended <-chan struct{}
}

// everyone stands for all targets.
const everyone = ""

func assignments() schema.GroupResource {
	return workload.GroupVersion.WithResource("assignments").GroupResource()
}

func reports() schema.GroupResource {
	return workload.GroupVersion.WithResource("targetstatuses").GroupResource()
}

// workloads are the objects of all kinds that have an Assignment, in the form of an [Item].
func workloads() schema.GroupResource {
	return workload.GroupVersion.WithResource(Workloads).GroupResource()
}

func profiles() schema.GroupResource {
	return workload.GroupVersion.WithResource("resourceprofiles").GroupResource()
}

// A hub passes changes on to the streams of the targets that they concern, and to no others. It
// exists while agents of the compute workspace are connected to this server.
type hub struct {
	source *Source
	end    func()
	begun  int64 // the version of new streams

	leave func()

	mu      sync.Mutex
	streams map[string]*stream // by the keys of targets; guarded by mu
}

// newHub waits until the caches of a source are complete.
func newHub(ctx context.Context, source *Source, end func()) (*hub, error) {
	if err := source.Ready(ctx); err != nil {
		return nil, err
	}
	// Versions of a later hub, of this server or of another, are greater.
	h := &hub{source: source, end: end, begun: time.Now().UnixMicro() << 12, streams: map[string]*stream{}}
	h.leave = source.Follow(h.hear)
	return h, nil
}

func (h *hub) close() {
	h.leave()
	h.end()
}

// hear passes on a change.
func (h *hub) hear(target string, of engine.ID) {
	if target != everyone {
		h.touch(target, of)
		return
	}
	h.mu.Lock()
	all := slices.Collect(maps.Keys(h.streams))
	h.mu.Unlock()
	for _, target := range all {
		h.touch(target, of)
	}
}

// touch brings a stream up to date with what it has about an object.
func (h *hub) touch(target string, of engine.ID) {
	h.mu.Lock()
	s := h.streams[target]
	h.mu.Unlock()
	if s == nil {
		return
	}
	set := func(of id) {
		s.set(of, func() *unstructured.Unstructured { return h.get(target, of) })
	}
	if of.GroupResource == profiles() {
		set(id{of: profiles(), key: of.Key})
		return
	}
	if p := h.source.Of(target).Profile(of.GroupResource); p != nil && p.Class == profile.Dependency {
		set(id{of: workloads(), key: of.Key, need: of.GroupResource})
		return
	}
	key := of.Key
	key.Name = engine.AssignmentName(of.GroupResource, of.Key.Name)
	set(id{of: workloads(), key: key}) // first: who sees the Assignment finds the object
	set(id{of: assignments(), key: key})
	key.Name = engine.StatusName(of.GroupResource, of.Key.Name, target)
	set(id{of: reports(), key: key})
}

// tombstone returns what a deletion shows: where the object was.
func tombstone(of id) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(kindOf(of.of))
	o.SetNamespace(of.key.Namespace)
	o.SetName(of.name())
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
	needs := map[engine.ID]bool{}
	for _, of := range h.source.Assigned(target) {
		h.touch(target, of)
		for _, need := range h.source.Needs(of) {
			needs[need] = true
		}
	}
	for need := range needs { // after the objects that refer to them, as a rule
		h.touch(target, need)
	}
	for _, r := range h.source.Reports.List("*") {
		if r.Spec.Key == target {
			h.touch(target, engine.IDFor(r, r.Spec.Workload))
		}
	}
	for _, p := range h.source.Profiles() {
		h.touch(target, engine.ID{GroupResource: profiles(), Key: kcp.KeyOf(p)})
	}
	return s
}

// get returns an object as a target sees it, or nil.
func (h *hub) get(target string, of id) *unstructured.Unstructured {
	switch of.of {
	case workloads():
		if of.need != (schema.GroupResource{}) {
			return h.need(target, of)
		}
		return h.object(target, of.key)
	case assignments():
		return h.part(target, of.key)
	case reports():
		return h.report(target, of.key)
	case profiles():
		for _, p := range h.source.Profiles() {
			if kcp.KeyOf(p) == of.key {
				return content(&workload.ResourceProfile{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID,
					Annotations: map[string]string{core.ClusterAnnotation: string(of.key.Cluster)}}, Spec: p.Spec}, "ResourceProfile")
			}
		}
	}
	return nil
}

// object returns an object of which the target has a part. Key is that of the Assignment.
func (h *hub) object(target string, key kcp.Key) *unstructured.Unstructured {
	a := h.source.Assignments.Get(key)
	if !concerns(a, target) {
		return nil
	}
	of, side := engine.IDFor(a, a.Spec.Workload), h.source.Of(target)
	w, p := side.Workload(of), side.Profile(of.GroupResource)
	if w == nil || p == nil || string(w.GetUID()) != a.Spec.Workload.UID {
		return nil
	}
	return itemOf(of, key.Name, workloadFor(w, p), h.source.Needs(of))
}

// need returns an object to which objects with a part at the target refer.
func (h *hub) need(target string, of id) *unstructured.Unstructured {
	state, used := h.source.State(target, engine.ID{GroupResource: of.need, Key: of.key})
	if !used {
		return nil
	}
	return needOf(of, state)
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

// workloadFor returns a workload for one target. Its status is left out, because it is the sum
// of all targets; it only shows whether the workload has ended.
func workloadFor(w *unstructured.Unstructured, p *profile.Profile) *unstructured.Unstructured {
	ended := p.Finished(w)
	w = w.DeepCopy()
	delete(w.Object, "status")
	w.SetManagedFields(nil)
	w.SetResourceVersion("") // it changes with the status
	if ended {
		w.Object["status"] = profile.Ended()
	}
	return w
}

// assignmentFor returns an Assignment with the part of one target.
func assignmentFor(a *workload.Assignment, target string) *unstructured.Unstructured {
	own := &workload.Assignment{ObjectMeta: metav1.ObjectMeta{Name: a.Name, Namespace: a.Namespace, UID: a.UID,
		Annotations: map[string]string{core.ClusterAnnotation: a.Annotations[core.ClusterAnnotation]}}}
	own.Spec.Workload, own.Spec.Conflict, own.Spec.Deletion, own.Spec.Fencing = a.Spec.Workload, a.Spec.Conflict, a.Spec.Deletion, a.Spec.Fencing
	if a.Spec.Reason == workload.ComputeDeleted {
		own.Spec.Reason = a.Spec.Reason
	}
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
	case profiles():
		return workload.GroupVersion.WithKind("ResourceProfile")
	}
	return workload.GroupVersion.WithKind("Workload")
}

// hashOf returns a hash of what a target sees of an object. The version of the object is no part of
// it, because parts that the target does not see change it, too.
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
