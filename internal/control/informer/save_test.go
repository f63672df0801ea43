package informer

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// checkMergePatch has another implementation apply the patch between two objects.
func checkMergePatch(t *testing.T, old, next map[string]any) {
	t.Helper()
	patch := mergePatch(old, next)
	before, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	applied, err := jsonpatch.MergePatch(before, body)
	if err != nil {
		t.Fatalf("%s does not apply to %s: %v", body, before, err)
	}
	var got map[string]any
	if err := json.Unmarshal(applied, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(withoutNulls(next), withoutNulls(got)); diff != "" {
		t.Fatalf("%s patched with %s (-want +got):\n%s", before, body, diff)
	}
	if same := cmp.Equal(withoutNulls(old), withoutNulls(next)); same && len(withoutNulls(patch).(map[string]any)) > 0 {
		t.Fatalf("%s is the patch between equal objects", body)
	}
}

// withoutNulls drops fields that are null, which a merge patch cannot express.
func withoutNulls(v any) any {
	fields, ok := v.(map[string]any)
	if !ok {
		return v
	}
	kept := map[string]any{}
	for name, value := range fields {
		if value != nil {
			kept[name] = withoutNulls(value)
		}
	}
	return kept
}

func TestMergePatchTurnsOneObjectIntoAnother(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		old := randomFields(random, 3)
		next := randomFields(random, 3)
		checkMergePatch(t, old, next)
		checkMergePatch(t, old, old)
	}
}

func randomFields(random *rand.Rand, depth int) map[string]any {
	fields := map[string]any{}
	for _, name := range []string{"a", "b", "c"} {
		switch n := random.IntN(8); {
		case n < 2 && depth > 0:
			fields[name] = randomFields(random, depth-1)
		case n == 2:
			fields[name] = []any{float64(random.IntN(2)), map[string]any{"a": "x"}}
		case n == 3:
			fields[name] = nil
		case n < 6:
			fields[name] = float64(random.IntN(2))
		}
	}
	return fields
}

func FuzzMergePatch(f *testing.F) {
	f.Add(`{"a":{"b":1,"c":[1,2]},"d":"x"}`, `{"a":{"b":2},"e":{"f":{}}}`)
	f.Add(`{"a":null,"b":1}`, `{"b":null,"c":{"d":null}}`)
	f.Add(`{"a":{}}`, `{"a":[]}`)
	f.Add(`{"a":1}`, `{"a":{"b":1}}`)
	f.Fuzz(func(t *testing.T, before, after string) {
		var old, next map[string]any
		if json.Unmarshal([]byte(before), &old) != nil || json.Unmarshal([]byte(after), &next) != nil || old == nil || next == nil {
			return
		}
		checkMergePatch(t, old, next)
	})
}

func TestSaveWritesTheDifference(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   []string
	}{
		"nothing": {func(*corev1.Pod) {}, nil},
		"nothing on the wire": {func(p *corev1.Pod) {
			p.Spec.Containers, p.Finalizers, p.Labels = nil, slices.Clone(p.Finalizers), maps.Clone(p.Labels)
			p.ResourceVersion = "1"
			p.Status.Conditions = []corev1.PodCondition{}
		}, nil},
		"metadata and spec": {func(p *corev1.Pod) {
			p.Labels["b"] = "2"
			delete(p.Labels, "a")
			p.Spec.NodeName = "n1"
		}, []string{` {"metadata":{"labels":{"a":null,"b":"2"},"resourceVersion":"000000001","uid":"a1-x"},"spec":{"nodeName":"n1"}}`}},
		"status": {func(p *corev1.Pod) { p.Status.Phase = "Running" },
			[]string{`status {"metadata":{"resourceVersion":"000000001","uid":"a1-x"},"status":{"phase":"Running"}}`}},
		"both": {func(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, "g/g"); p.Status.Phase = "Running" }, []string{
			` {"metadata":{"finalizers":["f/f","g/g"],"resourceVersion":"000000001","uid":"a1-x"}}`,
			`status {"metadata":{"resourceVersion":"000000002","uid":"a1-x"},"status":{"phase":"Running"}}`}},
		"the last finalizer": {func(p *corev1.Pod) { p.Finalizers = nil; p.Status.Phase = "Succeeded" }, []string{
			`status {"metadata":{"resourceVersion":"000000001","uid":"a1-x"},"status":{"phase":"Succeeded"}}`,
			` {"metadata":{"finalizers":null,"resourceVersion":"000000002","uid":"a1-x"}}`}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf(t)
				p := pod("a1", "ns", "x")
				p.Labels, p.Finalizers = map[string]string{"a": "1"}, []string{"f/f"}
				now := metav1.Now()
				p.DeletionTimestamp = &now
				s.put(p)
				k := pods(t, s)
				old := k.Get(control.KeyOf(p))
				kept, next := old.DeepCopy(), old.DeepCopy()
				test.change(next)
				if err := k.Save(t.Context(), old, next); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, s.written()); diff != "" {
					t.Errorf("patches differ (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(kept, old); diff != "" {
					t.Errorf("the shared object was changed:\n%s", diff)
				}
				synctest.Wait()
				if now := k.Get(control.KeyOf(p)); now != nil && (now.Status.Phase != next.Status.Phase || now.Spec.NodeName != next.Spec.NodeName) {
					t.Errorf("the cache shows %v", now)
				}
			})
		})
	}
}

func TestSaveRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		s.put(pod("a1", "ns", "x"))
		k := pods(t, s)
		old := k.Get(control.Key{Cluster: "a1", Namespace: "ns", Name: "x"})
		save := func(k *Kind[*corev1.Pod], change func(*corev1.Pod)) error {
			next := old.DeepCopy()
			change(next)
			return k.Save(t.Context(), old, next)
		}
		for change, f := range map[string]func(*corev1.Pod){
			"its key changed to a1|ns/y": func(p *corev1.Pod) { p.Name = "y" },
			"its key changed to b1|ns/x": func(p *corev1.Pod) { p.Annotations = map[string]string{cluster.Annotation: "b1"} },
			"its UID changed":            func(p *corev1.Pod) { p.UID = "other" },
		} {
			if err := save(k, f); err == nil || !strings.Contains(err.Error(), "save pods a1|ns/x: "+change) {
				t.Errorf("got %v, want %s", err, change)
			}
		}
		readOnly := NewKind(KindConfig[*corev1.Pod]{Name: "pods", ListerWatcher: s})
		if err := save(readOnly, func(p *corev1.Pod) { p.Spec.NodeName = "n" }); err == nil || !strings.Contains(err.Error(), "Saver") {
			t.Errorf("saved through a cache for reading: %v", err)
		}
		if len(s.written()) > 0 {
			t.Errorf("refused, and yet written: %v", s.written())
		}
		moved := old.DeepCopy()
		moved.Spec.NodeName = "elsewhere"
		s.put(moved)
		if err := save(k, func(p *corev1.Pod) { p.Spec.NodeName = "here" }); !apierrors.IsConflict(err) {
			t.Errorf("saved over a change: %v", err)
		}
		s.remove(control.KeyOf(old))
		again := pod("a1", "ns", "x")
		again.UID = "another"
		s.put(again)
		old = old.DeepCopy()
		old.ResourceVersion = ""
		if err := save(k, func(p *corev1.Pod) { p.Spec.NodeName = "here" }); !apierrors.IsConflict(err) {
			t.Errorf("saved to another object of the name: %v", err)
		}
	})
}
