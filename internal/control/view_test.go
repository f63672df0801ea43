package control

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/unforked/kcp/internal/cluster"
)

// words are the values that an object has under the index of the same name.
func words(_ Key, p *corev1.Pod) []string { return strings.Fields(p.Spec.NodeName) }

func sorted(keys []Key) []Key {
	slices.SortFunc(keys, Key.compare)
	return keys
}

// checkView compares what a view shows with a map of the same objects.
func checkView(t *testing.T, v *view[*corev1.Pod], model map[Key]*corev1.Pod) {
	t.Helper()
	byWord, byCluster := map[string][]Key{}, map[cluster.Name][]Key{}
	for k, p := range model {
		byCluster[k.Cluster] = append(byCluster[k.Cluster], k)
		fields := strings.Fields(p.Spec.NodeName)
		slices.Sort(fields)
		for _, w := range slices.Compact(fields) {
			byWord[w] = append(byWord[w], k)
		}
		if got, ok := v.get(k); !ok || got != p {
			t.Fatalf("%s is %v, want %v", k, got, p)
		}
	}
	for _, w := range []string{"x", "y", "z"} {
		if diff := cmp.Diff(sorted(byWord[w]), sorted(v.by("words", w))); diff != "" {
			t.Fatalf("by %s (-want +got):\n%s", w, diff)
		}
	}
	for _, c := range []cluster.Name{"c0", "c1", "c2"} {
		var got []Key
		for _, p := range v.list(c) {
			got = append(got, KeyOf(p))
		}
		if diff := cmp.Diff(sorted(byCluster[c]), sorted(got)); diff != "" {
			t.Fatalf("cluster %s (-want +got):\n%s", c, diff)
		}
	}
	if n := len(v.list(cluster.All)); n != len(model) {
		t.Fatalf("%d objects in all, want %d", n, len(model))
	}
}

func TestViewShowsWhatAMapDoes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		v, model := newView[*corev1.Pod](), map[Key]*corev1.Pod{}
		indexed := random.IntN(50)
		for step := range 100 {
			if step == indexed {
				if err := v.addIndex("words", words); err != nil {
					t.Fatal(err)
				}
			}
			p := pod(fmt.Sprintf("c%d", random.IntN(3)), "", fmt.Sprint(random.IntN(5)))
			p.Spec.NodeName = []string{"", "x", "y x", "z", "x z z", "z y x"}[random.IntN(6)]
			k := KeyOf(p)
			var old *corev1.Pod
			var had bool
			want, existed := model[k]
			if random.IntN(3) == 0 {
				old, had = v.drop(k)
				delete(model, k)
			} else {
				old, had = v.put(k, p)
				model[k] = p
			}
			if old != want || had != existed {
				t.Fatalf("step %d replaced %v %v, want %v %v", step, old, had, want, existed)
			}
			if step >= indexed {
				checkView(t, v, model)
			}
		}
		for k := range model {
			v.drop(k)
		}
		for _, ix := range v.indexes {
			if ix.heads.Len() > 0 || v.entries.Len() > 0 {
				t.Fatalf("an empty view holds %d objects and %d values", v.entries.Len(), ix.heads.Len())
			}
		}
	}
}

// BenchmarkView prints what a view costs beside its objects, one per cluster.
func BenchmarkView(b *testing.B) {
	const tenants = 100_000
	objects := make([]*corev1.Pod, tenants)
	for i := range objects {
		objects[i] = pod(fmt.Sprintf("tenant-%d", i), "", "cluster")
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		before := heap()
		v := newView[*corev1.Pod]()
		for _, p := range objects {
			v.put(KeyOf(p), p)
		}
		b.ReportMetric(float64(heap()-before)/tenants, "B/tenant")
		runtime.KeepAlive(v)
	}
}
