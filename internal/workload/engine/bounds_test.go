package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unforked/kcp"
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
