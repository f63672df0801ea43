package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

func assignmentKey(i int) kcp.Key {
	return kcp.Key{Cluster: "shop", Namespace: "default", Name: fmt.Sprint(i)}
}

// The spans of a namespace are those of its workloads, whatever comes and goes, and only a difference is a change.
func TestSpans(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		s, have := newSpans(nil), map[kcp.Key][]span{}
		at := kcp.Key{Cluster: "shop", Namespace: "default"}
		var last []span
		for range 2000 {
			key := assignmentKey(random.IntN(5))
			var now []span
			for range random.IntN(4) {
				now = append(now, span{fmt.Sprint(random.IntN(4)), fmt.Sprint(random.IntN(2))})
			}
			have[key] = now
			_, changed := s.count(key, now)
			var want []span
			for _, all := range have {
				want = append(want, all...)
			}
			want = distinct(want)
			var got []span
			if n := s.in[at]; n != nil {
				got = n.all
			}
			if !slices.Equal(got, want) || changed == slices.Equal(want, last) {
				t.Fatalf("seed %d: got %v, want %v, changed %v", seed, got, want, changed)
			}
			last = want
		}
		for key := range have {
			s.count(key, nil)
		}
		if len(s.of)+len(s.in) > 0 {
			t.Errorf("without workloads, %v and %v are left", s.of, s.in)
		}
	}
}

// The work for a change does not grow with the number of workloads in the namespace.
func TestSpansCostTheSame(t *testing.T) {
	costs := func(workloads int) float64 {
		s := newSpans(nil)
		east, both := []span{{"east", ""}}, []span{{"east", ""}, {"west", ""}}
		for i := range workloads {
			s.count(assignmentKey(i), east)
		}
		one := assignmentKey(0)
		return testing.AllocsPerRun(100, func() {
			s.count(one, both)
			s.count(one, nil)
			s.count(one, east)
		})
	}
	if few, many := costs(10), costs(5000); many > few {
		t.Errorf("%v allocations with 10 workloads, %v with 5,000", few, many)
	}
}

// A scheduler that follows changes knows the same as one that does not.
func TestSpansFollow(t *testing.T) {
	web, service, claim := idOf("deployments", "web"), idOf("services", "web"), idOf("persistentvolumeclaims", "data")
	var s store
	part := func(key string) workload.AssignedTarget { return workload.AssignedTarget{Key: key, Location: "here"} }
	s.assignments.Items = append(s.assignments.Items, at(web, part("west"), part("east")), at(service, part("north")), at(claim, part("south")))
	scheduler := s.open(t)
	want := []span{{"east", "here"}, {"west", "here"}}
	if got := scheduler.spanned(web.Key); !slices.Equal(got, want) {
		t.Errorf("before: %v", got)
	}
	for i := range s.assignments.Items {
		scheduler.spans.change(kcp.KeyOf(&s.assignments.Items[i]))
	}
	scheduler.spans.follow()
	if got := scheduler.spanned(web.Key); !slices.Equal(got, want) {
		t.Errorf("after: %v", got)
	}
	if got := scheduler.spanned(kcp.Key{Cluster: "shop", Namespace: "other"}); len(got) > 0 {
		t.Errorf("another namespace has %v", got)
	}
}
