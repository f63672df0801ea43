package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A tenant takes all it can get, with many workspaces, others come later, and all of them come and go. There
// is still room for another tenant, and the maximum is not reached.
func TestSharesOfATarget(t *testing.T) {
	const most, tenants, workspaces = 1000, 6, 10
	counts := &tally{most: most, of: map[kcp.ClusterName]int{}}
	h := &holding{counts: counts, from: map[kcp.ClusterName]int{}}
	tenant := func(of kcp.ClusterName) kcp.ClusterName {
		first, _, _ := strings.Cut(string(of), "-")
		return kcp.ClusterName(first)
	}
	take := func(who, n int) (got int) {
		for i := range n {
			of := kcp.ClusterName(fmt.Sprintf("%d-%d", who, i%workspaces))
			if !counts.takes(of, tenant) {
				break
			}
			if err := counts.add(h, of, 1); err != nil {
				t.Fatal(err)
			}
			got++
		}
		return got
	}
	if got := take(0, most); got != most/2 {
		t.Errorf("the first tenant got %d of %d", got, most)
	}
	if got := take(1, most); got != most/4 {
		t.Errorf("the second tenant got %d of %d", got, most)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		who := random.IntN(tenants)
		if random.IntN(3) == 0 {
			of := kcp.ClusterName(fmt.Sprintf("%d-%d", who, random.IntN(workspaces)))
			if counts.of[of] > 0 {
				_ = counts.add(h, of, -1) // fewer are never too many
			}
			continue
		}
		take(who, 1+random.IntN(50))
		if counts.all >= most || !counts.takes("new-0", tenant) {
			t.Fatalf("%d of %d objects, and no room for another tenant", counts.all, most)
		}
	}
	counts.forget(h)
	if counts.all != 0 || len(counts.of) > 0 || len(h.from) > 0 {
		t.Errorf("%d objects of %v are left", counts.all, counts.of)
	}
}

// The objects that all targets of an owner list together are bounded.
func TestBound(t *testing.T) {
	bound := &Bound{Most: 15}
	var all []*tally
	var held []*holding
	for range 2 {
		counts := &tally{most: 10, bound: bound, of: map[kcp.ClusterName]int{}}
		all, held = append(all, counts), append(held, &holding{counts: counts, from: map[kcp.ClusterName]int{}})
	}
	add := func(i, n int) (err error) {
		for range n {
			err = errors.Join(err, all[i].add(held[i], "a", 1))
		}
		return err
	}
	if err := add(0, 10); err != nil {
		t.Error(err)
	}
	if err := add(0, 1); !errors.Is(err, errTooMany) || !strings.Contains(err.Error(), "more than 10") {
		t.Errorf("the eleventh of ten: %v", err)
	}
	if err := add(1, 4); err != nil {
		t.Error(err)
	}
	if err := add(1, 1); !errors.Is(err, errTooMany) || !strings.Contains(err.Error(), "more than 15 together") {
		t.Errorf("the sixteenth of fifteen: %v", err)
	}
	all[0].drop(held[0])
	if err := add(0, 20); err != nil || all[0].all != 0 {
		t.Errorf("a kind that is not watched any more is counted: %d, %v", all[0].all, err)
	}
	if err := add(1, 5); err != nil {
		t.Error(err)
	}
}

// Objects that come, change and go by events count with their size, and those that are too many are not kept.
func TestWeights(t *testing.T) {
	counts := &tally{most: 5, of: map[kcp.ClusterName]int{}}
	h := &holding{counts: counts, from: map[kcp.ClusterName]int{}, sizes: map[string]counted{}}
	event := func(of watch.EventType, name string, size int) (kept, all int) {
		o := &object{Object: map[string]any{"status": map[string]any{"text": strings.Repeat("x", size)}}}
		o.SetName(name)
		change, ok := h.admit(watch.Event{Type: of, Object: o})
		if !ok {
			return -1, counts.all
		}
		text, _ := change.Object.(*object).Object["status"].(string)
		return len(text), counts.all
	}
	for i, c := range []struct {
		of        watch.EventType
		name      string
		size      int
		kept, all int
	}{
		{watch.Added, "a", 100, 111, 1},
		{watch.Added, "b", 3 * heavy, 3*heavy + 11, 5},
		{watch.Modified, "a", 2 * heavy, 0, 5}, // it is in the cache, without its status
		{watch.Added, "c", 1, -1, 5},
		{watch.Modified, "c", 1, -1, 5}, // it is not in the cache
		{watch.Modified, "b", 1, 12, 2},
		{watch.Modified, "c", 1, 12, 3},
		{watch.Bookmark, "", 1, 0, 3},
		{watch.Deleted, "b", 3 * heavy, 3*heavy + 11, 2},
		{watch.Deleted, "b", 1, 12, 2},
		{watch.Added, "d", mostStatus, 0, 3}, // no controller of Kubernetes writes such a status
	} {
		if kept, all := event(c.of, c.name, c.size); kept != c.kept || all != c.all {
			t.Errorf("event %d: %d bytes are kept, %d are counted, want %d and %d", i, kept, all, c.kept, c.all)
		}
	}
}

// A packed object has a bounded size, whatever the physical cluster sends. The engine still sees in it whether
// labels and annotations are as it applied them.
func TestPack(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	want := &object{Object: map[string]any{"metadata": map[string]any{"labels": map[string]any{workload.OwnerLabel: "here", "app": "web"},
		"annotations": map[string]any{workload.LocatorAnnotation: "{}", "note": strings.Repeat("n", 100_000)}}}}
	have := func() *object {
		o := want.DeepCopy()
		o.SetName("web")
		o.SetUID("u1")
		o.SetGeneration(7)
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(
			`{"f:metadata":{"f:labels":{"f:app":{},"f:` + workload.OwnerLabel + `":{}},"f:annotations":{"f:note":{},"f:` + workload.LocatorAnnotation + `":{}}}}`)}})
		return o
	}
	for name, c := range map[string]struct {
		change func(o *object)
		marked bool
	}{
		"as it was applied": {func(*object) {}, true},
		"others add theirs": {func(o *object) { o.SetLabels(with(o.GetLabels(), "theirs", long)) }, true},
		"one is changed":    {func(o *object) { o.SetLabels(with(o.GetLabels(), "app", "other")) }, false},
		"one is removed":    {func(o *object) { o.SetAnnotations(map[string]string{workload.LocatorAnnotation: "{}"}) }, false},
		"all fields are large": {func(o *object) {
			o.SetLabels(map[string]string{workload.OwnerLabel: long})
			o.SetUID(types.UID(long))
			o.SetKind(long)
		}, false},
		"finalizers and owners": {func(o *object) {
			o.SetFinalizers([]string{long})
			o.SetOwnerReferences([]metav1.OwnerReference{{Name: long}})
		}, true},
	} {
		o := have()
		c.change(o)
		kept := pack(o)
		text, err := json.Marshal(kept)
		if err != nil || len(text) > 1000 {
			t.Errorf("%s: %d bytes are kept, %v", name, len(text), err)
		}
		if got := marked(want, unpack(kept)); got != c.marked {
			t.Errorf("%s: marked %t", name, got)
		}
		if kept.GetGeneration() != 7 {
			t.Errorf("%s: generation %d", name, kept.GetGeneration())
		}
	}
	o := have()
	o.Object["status"] = map[string]any{"replicas": int64(3), "conditions": []any{map[string]any{"type": "Available"}}}
	if got := unpack(pack(o)); !equality.Semantic.DeepEqual(got.Object["status"], o.Object["status"]) {
		t.Errorf("the status is %v", got.Object["status"])
	}
}

func with(of map[string]string, key, value string) map[string]string {
	of[key] = value
	return of
}
