package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unforked/kcp/internal/cluster"
)

// Whatever changes, is deleted or read again, an index finds what looking at every row
// would.
func TestIndex(t *testing.T) {
	resource := NativeResource(configMaps)
	table := &Table[[]string]{resource: resource, rows: map[cluster.Name][]tableRow[[]string]{}, watchers: map[int]func(Key){}}
	var next []string
	table.convert = func(Event) ([]string, error) { return next, nil }
	table.IndexBy(func(values []string) []string { return values })
	r := rand.New(rand.NewPCG(3, 4))
	names := []cluster.Name{"aa", "bb", "cc"}
	for range 3000 {
		k := Key{Resource: resource, Cluster: names[r.IntN(3)], Name: fmt.Sprint("n", r.IntN(5))}
		next = nil
		for range r.IntN(3) {
			next = append(next, fmt.Sprint("v", r.IntN(4)))
		}
		e := Event{Key: k, Revision: 1}
		if r.IntN(4) > 0 {
			e.value = []byte("x")
		}
		switch r.IntN(50) {
		case 0: // read again, with one row more or less
			before := table.rows
			table.Reset()
			for c, rows := range before {
				for _, row := range rows {
					put(table.building, c, row, true)
				}
			}
			table.Apply(e)
			table.Done()
		default:
			table.Apply(e)
		}
		for _, v := range []string{"v0", "v1", "v2", "v3"} {
			var want []cluster.Name
			for _, c := range names {
				n := 0
				for _, row := range table.List(c, "") {
					if slices.Contains(row, v) {
						n++
					}
				}
				if got := len(table.By(v, c)); got != n {
					t.Fatalf("%s in %s: found %d, want %d", v, c, got, n)
				}
				if n > 0 {
					want = append(want, c)
				}
			}
			if diff := cmp.Diff(want, table.ClustersBy(v)); diff != "" {
				t.Fatalf("clusters of %s: %s", v, diff)
			}
		}
	}
}
