package history

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// revisionAnnotation has the number of a revision, and historyAnnotation the numbers that it had before.
	revisionAnnotation = "deployment.kubernetes.io/revision"
	historyAnnotation  = "deployment.kubernetes.io/revision-history"
	// mostNumbers is the maximum of bytes in historyAnnotation.
	mostNumbers = 1000
	// mostRevisions is the maximum of old revisions, whatever revisionHistoryLimit says.
	mostRevisions = 100
	// defaultRevisions is the number of old revisions by default.
	defaultRevisions = 10
)

// counts are numbers of pods.
type counts struct {
	replicas, ready, available int32
}

// A deployment is what its revisions depend on.
type deployment struct {
	name        string
	uid         types.UID
	hash        string // of the template
	annotations map[string]string
	revision    string // as its annotation says
	paused      bool
	limit       int
	replicas    int32
	settled     bool // the status is that of the present generation
	counts
	updated int32
}

// A set is the ReplicaSet of a revision.
type set struct {
	*unstructured.Unstructured
	hash     string
	revision int64
	replicas int32
	observed int64
	counts   counts
}

// A plan is what has to be written.
type plan struct {
	create   *creation
	changes  []change
	drop     []*unstructured.Unstructured
	revision string // of the Deployment; empty if that is right
}

func (p *plan) empty() bool {
	return p.create == nil && len(p.changes) == 0 && len(p.drop) == 0 && p.revision == ""
}

// A creation is a new revision.
type creation struct {
	hash        string
	annotations map[string]string
	replicas    int32
}

// A change is a patch of a ReplicaSet.
type change struct {
	name, subresource string
	patch             map[string]any
}

// read returns what revisions depend on.
func read(o *unstructured.Unstructured) (d deployment, err error) {
	var typed struct {
		Spec struct {
			Replicas             *int32 `json:"replicas"`
			Paused               bool   `json:"paused"`
			RevisionHistoryLimit *int32 `json:"revisionHistoryLimit"`
		} `json:"spec"`
		Status appsv1.DeploymentStatus `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"spec": o.Object["spec"], "status": o.Object["status"]}, &typed); err != nil {
		return d, err
	}
	template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
	if err != nil {
		return d, err
	}
	unstructured.RemoveNestedField(template, "metadata", "labels", appsv1.DefaultDeploymentUniqueLabelKey)
	text, err := json.Marshal(template) // sorts the keys
	if err != nil {
		return d, err
	}
	sum := sha256.Sum256(text)
	d = deployment{name: o.GetName(), uid: o.GetUID(), hash: hex.EncodeToString(sum[:5]), annotations: map[string]string{}, revision: o.GetAnnotations()[revisionAnnotation],
		paused: typed.Spec.Paused, limit: defaultRevisions, replicas: 1, settled: typed.Status.ObservedGeneration == o.GetGeneration(),
		counts: counts{typed.Status.Replicas, typed.Status.ReadyReplicas, typed.Status.AvailableReplicas}, updated: typed.Status.UpdatedReplicas}
	if n := typed.Spec.RevisionHistoryLimit; n != nil {
		d.limit = min(int(*n), mostRevisions)
	}
	if n := typed.Spec.Replicas; n != nil {
		d.replicas = *n
	}
	for k, v := range o.GetAnnotations() {
		if travels(k) {
			d.annotations[k] = v
		}
	}
	return d, nil
}

// travels reports whether revisions keep an annotation of their Deployment. An undo brings it back.
func travels(annotation string) bool {
	domain, _, _ := strings.Cut(annotation, "/")
	return annotation != corev1.LastAppliedConfigAnnotation && domain != "deployment.kubernetes.io" && domain != "kcp.io" && !strings.HasSuffix(domain, ".kcp.io")
}

// readSet returns a ReplicaSet as a revision.
func readSet(o *unstructured.Unstructured) set {
	s := set{Unstructured: o, hash: o.GetLabels()[appsv1.DefaultDeploymentUniqueLabelKey]}
	s.revision, _ = strconv.ParseInt(o.GetAnnotations()[revisionAnnotation], 10, 64) // 0 if a user changed it
	number := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(o.Object, path...)
		return n
	}
	s.replicas, s.observed = int32(number("spec", "replicas")), number("status", "observedGeneration")
	s.counts = counts{int32(number("status", "replicas")), int32(number("status", "readyReplicas")), int32(number("status", "availableReplicas"))}
	return s
}

// decide returns what has to be written for the revisions of a Deployment.
func decide(d deployment, sets []set) (p plan) {
	slices.SortFunc(sets, func(a, b set) int { // the latest first
		return cmp.Or(cmp.Compare(b.revision, a.revision), strings.Compare(b.GetName(), a.GetName()))
	})
	at := slices.IndexFunc(sets, func(s set) bool { return s.hash == d.hash })
	if at < 0 && !d.paused {
		p.create = d.create(sets)
		return p // the others follow when it exists
	}
	if len(sets) == 0 {
		return p
	}
	present, whole := max(0, at), at < 0 // while a Deployment is paused, its pods are those of the latest revision
	if !whole {
		revision, history := number(sets, present)
		p.change(d.annotate(sets[present], revision, history))
		if text := strconv.FormatInt(revision, 10); d.revision != text {
			p.revision = text
		}
	}
	left := d.counts
	for i, s := range append([]set{sets[present]}, slices.Delete(slices.Clone(sets), present, present+1)...) {
		want, now := int32(0), counts{}
		switch {
		case i == 0:
			want, now = d.replicas, d.present(whole)
			left = counts{left.replicas - now.replicas, left.ready - now.ready, left.available - now.available}
		case i == 1:
			now = left
		}
		p.change(s.scale(want))
		if d.settled {
			p.change(s.observe(now))
		}
	}
	p.drop = d.surplus(sets, present)
	return p
}

func (p *plan) change(c change, needed bool) {
	if needed {
		p.changes = append(p.changes, c)
	}
}

// create returns a new revision.
func (d *deployment) create(sets []set) *creation {
	c := &creation{hash: d.hash, replicas: d.replicas, annotations: map[string]string{revisionAnnotation: "1"}}
	if len(sets) > 0 {
		c.annotations[revisionAnnotation] = strconv.FormatInt(sets[0].revision+1, 10)
	}
	for k, v := range d.annotations {
		c.annotations[k] = v
	}
	return c
}

// number returns the number of the present revision, which is the largest, and the numbers that it had before.
func number(sets []set, present int) (revision int64, history string) {
	s := sets[present]
	history = s.GetAnnotations()[historyAnnotation]
	latest := int64(0)
	for i, other := range sets {
		if i != present {
			latest = max(latest, other.revision)
		}
	}
	if s.revision > latest {
		return s.revision, history
	}
	if s.revision > 0 {
		history = strings.TrimPrefix(history+","+strconv.FormatInt(s.revision, 10), ",")
		if extra := len(history) - mostNumbers; extra > 0 {
			_, history, _ = strings.Cut(history[extra-1:], ",")
		}
	}
	return latest + 1, history
}

// annotate returns the patch that gives a ReplicaSet its annotations. It removes none, as in Kubernetes.
func (d *deployment) annotate(s set, revision int64, history string) (change, bool) {
	has, missing := s.GetAnnotations(), map[string]string{}
	want := map[string]string{revisionAnnotation: strconv.FormatInt(revision, 10)}
	if history != "" {
		want[historyAnnotation] = history
	}
	for _, all := range []map[string]string{d.annotations, want} {
		for k, v := range all {
			if of, ok := has[k]; !ok || of != v {
				missing[k] = v
			}
		}
	}
	return change{name: s.GetName(), patch: annotated(missing)}, len(missing) > 0
}

// annotated returns a patch that sets annotations.
func annotated(all map[string]string) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": all}}
}

// scale returns the patch that sets the replicas of a ReplicaSet.
func (s *set) scale(n int32) (change, bool) {
	return change{name: s.GetName(), patch: map[string]any{"spec": map[string]any{"replicas": n}}}, s.replicas != n
}

// observe returns the patch that sets the status of a ReplicaSet.
func (s *set) observe(now counts) (change, bool) {
	status := map[string]any{"replicas": now.replicas, "fullyLabeledReplicas": now.replicas, "readyReplicas": now.ready, "availableReplicas": now.available, "observedGeneration": s.GetGeneration()}
	return change{s.GetName(), "status", map[string]any{"status": status}}, s.counts != now || s.observed != s.GetGeneration()
}

// present returns the pods of the present template. The status does not say which pods are ready: those of other
// templates count as ready first, so that no client takes a revision for ready too early.
func (d *deployment) present(whole bool) counts {
	if whole {
		return d.counts
	}
	n := max(0, min(d.updated, d.counts.replicas))
	old := d.counts.replicas - n
	return counts{n, max(0, d.ready-old), max(0, d.available-old)}
}

// surplus returns the oldest revisions beyond the limit. One that still has pods stays.
func (d *deployment) surplus(sets []set, present int) (drop []*unstructured.Unstructured) {
	kept := 0
	for i, s := range sets {
		if i == present {
			continue
		}
		if kept++; kept > d.limit && s.counts.replicas == 0 && s.replicas == 0 {
			drop = append(drop, s.Unstructured)
		}
	}
	return drop
}
