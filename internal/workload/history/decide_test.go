package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// A workspace has a Deployment and its revisions, and does what is decided.
type workspace struct {
	deployment *unstructured.Unstructured
	sets       []*unstructured.Unstructured
	writes     int
}

func newWorkspace() *workspace {
	return &workspace{deployment: parse(`{"metadata":{"name":"web","namespace":"default","uid":"u","generation":1,"annotations":{"kcp.io/cluster":"shop","note":"mine"}},
		"spec":{"replicas":10,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"nginx:1"}]}}}}`)}
}

func parse(text string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal([]byte(text), &o.Object); err != nil {
		panic(err)
	}
	return o
}

// patch applies a merge patch.
func patch(t *testing.T, o *unstructured.Unstructured, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	var with map[string]any
	if err := utiljson.Unmarshal(text, &with); err != nil {
		t.Fatal(err)
	}
	spec := fmt.Sprint(o.Object["spec"])
	merge(o.Object, with)
	if spec != fmt.Sprint(o.Object["spec"]) {
		o.SetGeneration(o.GetGeneration() + 1)
	}
}

func merge(into, with map[string]any) {
	for k, v := range with {
		below, ok := v.(map[string]any)
		has, had := into[k].(map[string]any)
		switch {
		case v == nil:
			delete(into, k)
		case ok && had:
			merge(has, below)
		default:
			into[k] = v
		}
	}
}

// settle does what is decided until nothing is, and fails the test if that does not end.
func (w *workspace) settle(t *testing.T) {
	t.Helper()
	for range 10 {
		p := w.decide(t)
		if p.empty() {
			return
		}
		w.apply(t, p)
	}
	t.Fatalf("the revisions do not settle: %+v", w.decide(t))
}

func (w *workspace) decide(t *testing.T) plan {
	t.Helper()
	d, err := read(w.deployment)
	if err != nil {
		t.Fatal(err)
	}
	var sets []set
	for _, s := range w.sets {
		sets = append(sets, readSet(s))
	}
	return decide(d, sets)
}

func (w *workspace) apply(t *testing.T, p plan) {
	t.Helper()
	if p.create != nil {
		made, err := p.create.object(w.deployment)
		if err != nil {
			t.Fatal(err)
		}
		made.SetGeneration(1)
		w.sets = append(w.sets, made)
		w.writes++
	}
	for _, c := range p.changes {
		i := slices.IndexFunc(w.sets, func(s *unstructured.Unstructured) bool { return s.GetName() == c.name })
		patch(t, w.sets[i], c.patch)
		w.writes++
	}
	for _, s := range p.drop {
		w.sets = slices.DeleteFunc(w.sets, func(of *unstructured.Unstructured) bool { return of.GetName() == s.GetName() })
		w.writes++
	}
	if p.revision != "" {
		patch(t, w.deployment, annotated(map[string]string{revisionAnnotation: p.revision}))
		w.writes++
	}
}

// image changes the template.
func (w *workspace) image(t *testing.T, image string) {
	t.Helper()
	patch(t, w.deployment, map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "web", "image": image}}}}}})
}

// status sets the status of the Deployment, of its present generation.
func (w *workspace) status(t *testing.T, replicas, updated, ready, available int) {
	t.Helper()
	patch(t, w.deployment, map[string]any{"status": map[string]any{"observedGeneration": w.deployment.GetGeneration(), "replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": available}})
}

// lines returns the revisions, the latest first: number, image, desired, current, ready and available pods.
func (w *workspace) lines() (all []string) {
	for _, s := range w.sets {
		r := readSet(s)
		containers, _, _ := unstructured.NestedSlice(s.Object, "spec", "template", "spec", "containers")
		all = append(all, fmt.Sprint(r.revision, " ", containers[0].(map[string]any)["image"], " ", r.replicas, " ", r.counts.replicas, " ", r.counts.ready, " ", r.counts.available))
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	return all
}

func (w *workspace) has(t *testing.T, what string, want ...string) {
	t.Helper()
	w.settle(t)
	if diff := cmp.Diff(want, w.lines()); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
	if latest, _, _ := strings.Cut(want[0], " "); w.deployment.GetAnnotations()[revisionAnnotation] != latest {
		t.Errorf("%s: the Deployment says that its revision is %s", what, w.deployment.GetAnnotations()[revisionAnnotation])
	}
	before := w.writes
	if w.settle(t); w.writes != before {
		t.Errorf("%s: %d writes while nothing changes", what, w.writes-before)
	}
}

// The life of a Deployment: revisions are numbered, kept and counted as in Kubernetes.
func TestRevisions(t *testing.T) {
	w := newWorkspace()
	w.has(t, "created", "1 nginx:1 10 0 0 0")
	w.status(t, 10, 10, 7, 6)
	w.has(t, "it starts", "1 nginx:1 10 10 7 6")
	w.status(t, 10, 10, 10, 10)
	w.has(t, "it runs", "1 nginx:1 10 10 10 10")
	w.image(t, "nginx:2")
	w.has(t, "updated, and nothing observed yet", "2 nginx:2 10 0 0 0", "1 nginx:1 0 10 10 10")
	w.status(t, 12, 4, 9, 9)
	w.has(t, "the rollout runs: of the ready pods, up to 8 are of the old revision", "2 nginx:2 10 4 1 1", "1 nginx:1 0 8 8 8")
	w.status(t, 10, 10, 10, 10)
	w.has(t, "it has ended", "2 nginx:2 10 10 10 10", "1 nginx:1 0 0 0 0")
	patch(t, w.deployment, map[string]any{"spec": map[string]any{"replicas": 3}})
	w.has(t, "scaled", "2 nginx:2 3 10 10 10", "1 nginx:1 0 0 0 0")
	w.status(t, 3, 3, 3, 3)
	w.has(t, "scaled, and observed", "2 nginx:2 3 3 3 3", "1 nginx:1 0 0 0 0")
	w.image(t, "nginx:1")
	w.status(t, 3, 3, 3, 3)
	w.has(t, "undone: the revision gets a new number", "3 nginx:1 3 3 3 3", "2 nginx:2 0 0 0 0")
	if got := w.sets[0].GetAnnotations()[historyAnnotation]; got != "1" {
		t.Errorf("the numbers before: %q", got)
	}
	w.sets = w.sets[1:] // a user deletes the present one
	w.has(t, "deleted", "3 nginx:1 3 3 3 3", "2 nginx:2 0 0 0 0")
}

// While a Deployment is paused, its template makes no revision, and its pods stay those of the last one.
func TestPaused(t *testing.T) {
	w := newWorkspace()
	patch(t, w.deployment, map[string]any{"spec": map[string]any{"paused": true}})
	if p := w.decide(t); !p.empty() {
		t.Errorf("a Deployment that was created paused gets %+v", p)
	}
	patch(t, w.deployment, map[string]any{"spec": map[string]any{"paused": nil}})
	w.status(t, 10, 10, 10, 10)
	w.has(t, "resumed", "1 nginx:1 10 10 10 10")
	patch(t, w.deployment, map[string]any{"spec": map[string]any{"paused": true, "replicas": 4}})
	w.image(t, "nginx:2")
	w.status(t, 4, 0, 4, 4)
	w.has(t, "paused, updated and scaled", "1 nginx:1 4 4 4 4")
	patch(t, w.deployment, map[string]any{"spec": map[string]any{"paused": nil}})
	w.has(t, "resumed again", "2 nginx:2 4 0 0 0", "1 nginx:1 0 4 4 4")
}

// At most revisionHistoryLimit old revisions are kept, the latest ones, and none with pods is removed.
func TestLimit(t *testing.T) {
	numbers := func(w *workspace) (all []int64) {
		for _, s := range w.sets {
			all = append(all, readSet(s).revision)
		}
		slices.Sort(all)
		return all
	}
	updated := func(limit any, n int) *workspace {
		w := newWorkspace()
		patch(t, w.deployment, map[string]any{"spec": map[string]any{"revisionHistoryLimit": limit}})
		for i := range n {
			w.image(t, fmt.Sprint("nginx:", i))
			w.status(t, 10, 10, 10, 10)
			w.settle(t)
		}
		return w
	}
	if got := numbers(updated(nil, 13)); !slices.Equal(got, []int64{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}) {
		t.Errorf("by default, there are %v", got)
	}
	if got := numbers(updated(1<<30, mostRevisions+3)); len(got) != mostRevisions+1 || got[0] != 3 {
		t.Errorf("without a limit, there are %v", got)
	}
	w := updated(0, 3)
	if got := numbers(w); !slices.Equal(got, []int64{3}) {
		t.Errorf("with the limit 0, there are %v", got)
	}
	w.image(t, "nginx:next")
	w.status(t, 12, 4, 9, 9)
	w.has(t, "one with pods stays", "4 nginx:next 10 4 1 1", "3 nginx:2 0 8 8 8")
	w.status(t, 10, 10, 10, 10)
	w.has(t, "it goes then", "4 nginx:next 10 10 10 10")
}

// Revisions keep the annotations of their Deployment that an undo brings back, and nothing of the server's.
func TestAnnotations(t *testing.T) {
	w := newWorkspace()
	patch(t, w.deployment, annotated(map[string]string{"kubernetes.io/change-cause": "first", "kubectl.kubernetes.io/last-applied-configuration": "{}",
		"deployment.kubernetes.io/revision": "77", "workload.kcp.io/x": "y"}))
	w.settle(t)
	want := map[string]string{"kubernetes.io/change-cause": "first", "note": "mine", revisionAnnotation: "1"}
	if got := w.sets[0].GetAnnotations(); !maps.Equal(got, want) {
		t.Errorf("annotations %v, want %v", got, want)
	}
	patch(t, w.deployment, annotated(map[string]string{"kubernetes.io/change-cause": "better"}))
	w.settle(t)
	if got := w.sets[0].GetAnnotations()["kubernetes.io/change-cause"]; got != "better" || len(w.sets) != 1 {
		t.Errorf("%d revisions, because of %q", len(w.sets), got)
	}
	w.image(t, "nginx:2")
	patch(t, w.deployment, annotated(map[string]string{"kubernetes.io/change-cause": "second"}))
	w.settle(t)
	if got := w.sets[0].GetAnnotations()["kubernetes.io/change-cause"]; got != "better" {
		t.Errorf("an old revision says %q", got)
	}
	for range 400 { // the numbers that a revision had before are bounded
		w.image(t, "nginx:1")
		w.settle(t)
		w.image(t, "nginx:2")
		w.settle(t)
	}
	for _, s := range w.sets {
		if got := s.GetAnnotations()[historyAnnotation]; len(got) > mostNumbers || strings.HasPrefix(got, ",") {
			t.Errorf("%d bytes of numbers: %.20s", len(got), got)
		}
	}
}

// A revision has its own selector and labels, and belongs to the Deployment. Names stay within their limit.
func TestObjectOfARevision(t *testing.T) {
	w := newWorkspace()
	patch(t, w.deployment, map[string]any{"spec": map[string]any{"minReadySeconds": 5, "template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"pod-template-hash": "forged"}}}}})
	w.settle(t)
	hash := w.sets[0].GetLabels()["pod-template-hash"]
	want := parse(fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"ReplicaSet",
		"metadata":{"name":"web-%[1]s","namespace":"default","generation":1,"labels":{"app":"web","pod-template-hash":"%[1]s"},"annotations":{"note":"mine","deployment.kubernetes.io/revision":"1"},
			"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"u","controller":true,"blockOwnerDeletion":true}]},
		"spec":{"replicas":10,"minReadySeconds":5,"selector":{"matchLabels":{"app":"web","pod-template-hash":"%[1]s"}},
			"template":{"metadata":{"labels":{"app":"web","pod-template-hash":"%[1]s"}},"spec":{"containers":[{"name":"web","image":"nginx:1"}]}}}}`, hash))
	if diff := cmp.Diff(want.Object, w.sets[0].Object); diff != "" || hash == "forged" {
		t.Error(diff)
	}
	for _, name := range []string{"web", strings.Repeat("x", 253), strings.Repeat("x", 241) + "." + strings.Repeat("y", 11)} {
		if got := nameOf(name, "0123456789"); len(got) > 253 || !strings.HasSuffix(got, "-0123456789") || strings.Contains(got, ".-") {
			t.Errorf("a revision of %s has the name %s", name, got)
		}
	}
}
