package place

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestDivide(t *testing.T) {
	const none = 1 << 30
	for _, c := range []struct {
		total              int32
		have, floors, caps []int32
		want               []int32
	}{
		{10, []int32{0, 0}, []int32{0, 0}, []int32{none, none}, []int32{5, 5}},
		{11, []int32{0, 0}, []int32{0, 0}, []int32{none, none}, []int32{6, 5}},
		{10, []int32{5, 5, 0}, []int32{0, 0, 0}, []int32{none, none, none}, []int32{5, 5, 0}}, // a new target moves nothing
		{12, []int32{5, 5, 0}, []int32{0, 0, 0}, []int32{none, none, none}, []int32{5, 5, 2}}, // it takes what is new
		{4, []int32{5, 5}, []int32{0, 0}, []int32{none, none}, []int32{2, 2}},                 // scaled down
		{10, []int32{0, 10}, []int32{0, 0}, []int32{none, 3}, []int32{7, 3}},                  // a cap moves the rest
		{10, []int32{0, 0}, []int32{0, 0}, []int32{4, 3}, []int32{4, 3}},                      // not all fit
		{7, []int32{5, 0}, []int32{3, 3}, []int32{none, none}, []int32{4, 3}},                 // a floor moves one
		{2, []int32{0, 0}, []int32{3, 3}, []int32{2, 2}, []int32{1, 1}},                       // floors that exceed the total
		{2_000_000_000, []int32{0, 0}, []int32{0, 0}, []int32{2_000_000_000, 2_000_000_000}, []int32{1_000_000_000, 1_000_000_000}},
		{0, []int32{5, 5}, []int32{0, 0}, []int32{none, none}, []int32{0, 0}},
	} {
		if got := Divide(c.total, c.have, c.floors, c.caps); !slices.Equal(got, c.want) {
			t.Errorf("Divide(%d, %v, %v, %v) = %v, want %v", c.total, c.have, c.floors, c.caps, got, c.want)
		}
	}
}

// Replicas are neither lost nor made up, caps and floors hold, and without floors no more moves than
// must.
func TestDivideHoldsItsPromises(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range rounds(50_000) {
		n := 1 + r.IntN(6)
		total := r.Int32N(40)
		have, floors, caps := make([]int32, n), make([]int32, n), make([]int32, n)
		floor := r.IntN(3) == 0
		for i := range n {
			have[i], caps[i] = r.Int32N(20), r.Int32N(30)
			if floor {
				floors[i] = min(caps[i], r.Int32N(4))
			}
		}
		got := Divide(total, have, floors, caps)
		if sum(got) != min(int64(total), sum(caps)) {
			t.Fatalf("Divide(%d, %v, %v, %v) = %v: the sum is %d", total, have, floors, caps, got, sum(got))
		}
		kept, moved := make([]int32, n), int64(0)
		for i := range n {
			kept[i] = min(have[i], caps[i])
			if got[i] < 0 || got[i] > caps[i] || sum(floors) <= int64(total) && got[i] < floors[i] {
				t.Fatalf("Divide(%d, %v, %v, %v) = %v: part %d is out of bounds", total, have, floors, caps, got, i)
			}
			moved += int64(max(got[i]-kept[i], kept[i]-got[i]))
		}
		if least := sum(got) - sum(kept); !floor && moved != max(least, -least) {
			t.Fatalf("Divide(%d, %v, %v, %v) = %v: %d move, %d must", total, have, floors, caps, got, moved, max(least, -least))
		}
		if again := Divide(total, got, floors, caps); !slices.Equal(again, got) {
			t.Fatalf("Divide(%d, %v, …) = %v, not stable", total, got, again)
		}
	}
}
