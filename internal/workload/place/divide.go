package place

import (
	"cmp"
	"math/bits"
	"slices"
)

// Divide divides total replicas among targets that have some already. Every target gets its
// floor at least and its cap at most, and otherwise an equal part. Only the difference to what
// is there moves, unless a floor or a cap asks for more. The result is less than total only if
// the caps are. Floors that exceed the total are ignored.
func Divide(total int32, have, floors, caps []int32) []int32 {
	if sum(floors) > int64(total) {
		floors = make([]int32, len(have))
	}
	kept := make([]int32, len(have))
	for i := range have {
		kept[i] = min(have[i], caps[i])
	}
	ideal := ideal(total, floors, caps)
	parts := slices.Clone(kept)
	if missing := sum(ideal) - sum(kept); missing >= 0 {
		for i, n := range apportion(missing, room(ideal, kept)) {
			parts[i] += n
		}
	} else {
		for i, n := range apportion(-missing, room(kept, ideal)) {
			parts[i] -= n
		}
	}
	for i := range parts {
		if parts[i] < floors[i] {
			return ideal
		}
	}
	return parts
}

// ideal divides total equally, within floors and caps.
func ideal(total int32, floors, caps []int32) []int32 {
	parts := slices.Clone(floors)
	left := min(int64(total), sum(caps)) - sum(parts)
	for left > 0 {
		// Raise the lowest, up to the next level or to a cap.
		var low []int
		level, next := int32(-1), int32(-1)
		for i := range parts {
			switch {
			case parts[i] >= caps[i]:
			case level < 0 || parts[i] < level:
				low, level, next = []int{i}, parts[i], least(next, level)
			case parts[i] == level:
				low = append(low, i)
			default:
				next = least(next, parts[i])
			}
		}
		step := max(1, left/int64(len(low)))
		for _, i := range low {
			up := min(step, left, int64(caps[i]-parts[i]))
			if next > 0 {
				up = min(up, int64(next-parts[i]))
			}
			parts[i] += int32(up)
			left -= up
		}
	}
	return parts
}

// least returns the smaller of two levels; a negative one is none.
func least(a, b int32) int32 {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// room returns by how much each part of a exceeds that of b.
func room(a, b []int32) []int32 {
	r := make([]int32, len(a))
	for i := range a {
		r[i] = max(0, a[i]-b[i])
	}
	return r
}

// apportion divides total in proportion to weights by the method of the largest remainder. No part
// exceeds its weight, and total does not exceed the sum of the weights.
func apportion(total int64, weights []int32) []int32 {
	parts := make([]int32, len(weights))
	all := sum(weights)
	if total <= 0 || all == 0 {
		return parts
	}
	type rest struct {
		i int
		r uint64
	}
	rests, left := make([]rest, len(weights)), total
	for i, w := range weights {
		high, low := bits.Mul64(uint64(w), uint64(total))
		whole, r := bits.Div64(high, low, uint64(all))
		parts[i], rests[i] = int32(whole), rest{i, r}
		left -= int64(whole)
	}
	slices.SortStableFunc(rests, func(a, b rest) int { return cmp.Compare(b.r, a.r) })
	for _, r := range rests[:left] {
		parts[r.i]++
	}
	return parts
}

func sum(parts []int32) (total int64) {
	for _, p := range parts {
		total += int64(p)
	}
	return total
}
