package syncer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
)

// A watcher has what a client of a watch has.
type watcher struct {
	version int64
	objects map[id]bool
}

// only is the beginning of a watch of workloads.
func only(version int64) map[schema.GroupResource]int64 {
	return map[schema.GroupResource]int64{workloads(): version}
}

// follow brings a watcher up to date: it resumes, or lists again.
func (w *watcher) follow(s *stream) (listed bool) {
	changes, newest, _, ok := s.since(only(w.version))
	if !ok {
		var found []change
		found, w.version = s.all(workloads())
		w.objects = map[id]bool{}
		for _, c := range found {
			w.objects[c.id] = true
		}
		return true
	}
	for _, c := range changes {
		if c.gone {
			delete(w.objects, c.id)
		} else {
			w.objects[c.id] = true
		}
	}
	w.version = newest
	return false
}

// Watches that resume at any time have what is there, whatever came and went meanwhile.
func TestWatchesResume(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		s, now := newStream(1000), map[id]int{}
		all := []*watcher{{}, {}, {}, {}}
		relisted := 0
		for step := range 3000 {
			of := id{of: workloads(), key: kcp.Key{Cluster: "c", Name: fmt.Sprint(random.IntN(200))}}
			if random.IntN(3) == 0 {
				delete(now, of)
			} else {
				now[of] = step
			}
			s.set(of, func() *unstructured.Unstructured {
				n, ok := now[of]
				if !ok {
					return nil
				}
				return &unstructured.Unstructured{Object: map[string]any{"n": int64(n)}}
			})
			w := all[random.IntN(len(all))]
			if random.IntN(50) > 0 {
				continue
			}
			if w.follow(s) {
				relisted++
			}
			if len(w.objects) != len(now) {
				t.Fatalf("seed %d, step %d: %d objects, want %d", seed, step, len(w.objects), len(now))
			}
			for of := range now {
				if !w.objects[of] {
					t.Fatalf("seed %d, step %d: %v is missing", seed, step, of)
				}
			}
		}
		if relisted > len(all) {
			t.Errorf("seed %d: %d lists, want one for each watch", seed, relisted)
		}
	}
}

// A change that the target does not see is no event, and what is forgotten is said.
func TestStream(t *testing.T) {
	s := newStream(5)
	object := func(text string) func() *unstructured.Unstructured {
		return func() *unstructured.Unstructured {
			if text == "" {
				return nil
			}
			return &unstructured.Unstructured{Object: map[string]any{"text": text, "metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)}}}
		}
	}
	one := id{of: workloads(), key: kcp.Key{Name: "one"}}
	s.set(one, object(""))
	s.set(one, object("a"))
	s.set(one, object("a"))
	if _, version := s.all(workloads()); version != 6 {
		t.Errorf("version %d after one change", version)
	}
	if _, _, _, ok := s.since(only(4)); ok {
		t.Error("a watch resumes before the stream")
	}
	if _, _, _, ok := s.since(only(7)); ok {
		t.Error("a watch resumes in the future")
	}
	for i := range 20 * mostGone {
		of := id{of: workloads(), key: kcp.Key{Name: strings.Repeat("x", i%7) + fmt.Sprint(i)}}
		s.set(of, object("a"))
		s.set(of, object(""))
	}
	if len(s.entries) > 3*mostGone || len(s.log) > 3*mostGone {
		t.Errorf("%d entries, %d changes: deletions are never forgotten", len(s.entries), len(s.log))
	}
	if _, _, _, ok := s.since(only(6)); ok {
		t.Error("a watch resumes though deletions are forgotten")
	}
}
