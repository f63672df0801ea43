package history

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestCompactor checks the compactions in a simulation. Each minute has a revision and a
// number of deletions.
func TestCompactor(t *testing.T) {
	for name, c := range map[string]struct {
		kept    time.Duration
		gone    map[int]int64 // deletions by minute
		pressed int           // first minute with little space; 0 for never
		want    map[int]int64 // compacted revision by minute
	}{
		"by time":                        {kept: 5 * time.Minute, want: map[int]int64{6: 1, 11: 6}},
		"a few deletions do not matter":  {kept: 5 * time.Minute, gone: map[int]int64{2: manyDeleted - 1}, want: map[int]int64{6: 1, 11: 6}},
		"many go sooner":                 {kept: 5 * time.Minute, gone: map[int]int64{2: 3 * manyDeleted}, want: map[int]int64{5: 2, 10: 5}},
		"once few go any more":           {kept: 10 * time.Minute, gone: map[int]int64{2: manyDeleted, 3: manyDeleted, 4: manyDeleted, 5: 10}, want: map[int]int64{7: 4}},
		"but not before it was to":       {kept: time.Minute, gone: map[int]int64{2: 3 * manyDeleted}, want: map[int]int64{2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10}},
		"somebody else does it":          {gone: map[int]int64{2: 3 * manyDeleted}},
		"somebody else does it too late": {pressed: 4, want: map[int]int64{5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10}},
		"there is little room":           {kept: 5 * time.Minute, pressed: 4, want: map[int]int64{4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Unix(1000, 0)
			at := func(minute int) time.Time { return begin.Add(time.Duration(minute) * time.Minute) }
			var minute int
			k := &Compactor{Kept: c.kept, Pressed: func() bool { return c.pressed > 0 && minute >= c.pressed }, last: point{at: begin}}
			var gone int64
			var got map[int]int64
			for minute = 1; minute < 12; minute++ {
				gone += c.gone[minute]
				k.add(point{at(minute), int64(minute), gone})
				if rev := k.due(at(minute), gone); rev > 0 {
					if got == nil {
						got = map[int]int64{}
					}
					got[minute] = rev
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("compacted (-want +got):\n%s", d)
			}
		})
	}
}

// No revision is compacted twice, so an idle server does no work.
func TestCompactorRests(t *testing.T) {
	begin := time.Unix(1000, 0)
	k := &Compactor{Kept: time.Minute, Pressed: func() bool { return false }, last: point{at: begin}}
	compacted := 0
	for minute := range 10 {
		now := begin.Add(time.Duration(minute) * time.Minute)
		k.add(point{now, 7, 0})
		if k.due(now, 0) > 0 {
			compacted++
		}
	}
	if compacted != 1 || len(k.points) > 2 {
		t.Errorf("compacted %d times, want once; remembers %d points", compacted, len(k.points))
	}
}
