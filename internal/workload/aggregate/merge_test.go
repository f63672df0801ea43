package aggregate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unforked/kcp/internal/workload/profile"
)

func profileOf(resource string) *profile.Profile {
	all := profile.Shipped()
	i := slices.IndexFunc(all, func(p profile.Profile) bool { return p.Resource == resource })
	return &all[i]
}

// Rule I7 for all kinds: a generation is observed only if all targets that keep a part applied it.
// Counters are sums.
func TestMergeIsOfOneGeneration(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, resource := range []string{"daemonsets", "replicasets", "statefulsets", "poddisruptionbudgets"} {
		o := Object{Profile: profileOf(resource), Generation: 5, Status: map[string]any{"observedGeneration": int64(4)}}
		for range 10_000 {
			var parts []Part
			want, kept, totals := true, 0, map[string]int64{}
			for range r.IntN(4) {
				p := Part{Generation: 4 + r.Int64N(2), Current: r.IntN(4) > 0, Leaving: r.IntN(4) == 0, Status: map[string]any{"observedGeneration": int64(77)}}
				for _, field := range o.Counters {
					n := r.Int64N(9)
					p.Status[field] = n
					if field != "updatedNumberScheduled" || p.Current && p.Generation == 5 {
						totals[field] += n
					}
				}
				parts = append(parts, p)
				if !p.Leaving {
					kept++
					want = want && p.Current && p.Generation == 5
				}
			}
			s := Merge(o, parts, now)
			if observed := s["observedGeneration"] == int64(5); observed != (want && kept > 0) {
				t.Fatalf("%s: %+v: %v", resource, parts, s)
			}
			for field, n := range totals {
				if s[field] != n {
					t.Fatalf("%s: %s is %v, want %d", resource, field, s[field], n)
				}
			}
		}
	}
}

func TestMerge(t *testing.T) {
	address := func(ip string) map[string]any {
		return map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": ip}}}}
	}
	s := Merge(Object{Profile: profileOf("services")}, []Part{{Status: address("2")}, {Status: address("1")}, {Status: address("2")}, {}}, now)
	if fmt.Sprint(s) != "map[loadBalancer:map[ingress:[map[ip:1] map[ip:2]]]]" {
		t.Errorf("addresses: %v", s)
	}
	// A Job that began anew goes on with its status.
	old := map[string]any{"startTime": "then", "failed": int64(2)}
	s = Merge(Object{Profile: profileOf("jobs"), Status: old}, []Part{{Status: map[string]any{"startTime": "now", "active": int64(1)}}}, now)
	if diff := cmp.Diff(map[string]any{"startTime": "then", "failed": int64(2), "active": int64(1)}, s); diff != "" {
		t.Error(diff)
	}
	// Between two targets, a StatefulSet has no pods, and a Job that ended stays so.
	if s = Merge(Object{Profile: profileOf("statefulsets"), Status: map[string]any{"readyReplicas": int64(3), "currentRevision": "x"}}, nil, now); s["readyReplicas"] != int64(0) {
		t.Error(s)
	}
	if s = Merge(Object{Profile: profileOf("jobs"), Status: map[string]any{"succeeded": int64(1)}}, nil, now); s["succeeded"] != int64(1) {
		t.Error(s)
	}
}

func TestPlacedCondition(t *testing.T) {
	of := profileOf("statefulsets")
	reasonOf := func(s map[string]any) (reason string, at any) {
		all, _ := s["conditions"].([]any)
		for _, c := range all {
			if typeOf(c) == Placed {
				m, _ := c.(map[string]any)
				reason, _ = m["reason"].(string)
				return reason, m["lastTransitionTime"]
			}
		}
		return "", nil
	}
	for want, c := range map[string]struct {
		why   string
		parts []Part
	}{
		"":                {parts: []Part{{Status: map[string]any{}}}},
		"NoTarget":        {why: "NoTarget"},
		"Conflict":        {parts: []Part{{Reason: "Conflict", Message: "it exists"}}},
		MissingDependency: {parts: []Part{{Missing: []string{`configmaps "x" does not exist`}}}},
	} {
		s := Merge(Object{Profile: of, NotScheduled: c.why}, c.parts, now)
		reason, at := reasonOf(s)
		if reason != want {
			t.Errorf("reason %q, want %q", reason, want)
		}
		if _, later := reasonOf(Merge(Object{Profile: of, NotScheduled: c.why, Status: s}, c.parts, now.Add(time.Hour))); later != at {
			t.Errorf("%s: since %v, was %v", want, later, at)
		}
	}
	if s := Merge(Object{Profile: profileOf("horizontalpodautoscalers")}, nil, now); fmt.Sprint(reasonOf(s)) == " <nil>" {
		t.Error("autoscalers are not refused")
	}
}
