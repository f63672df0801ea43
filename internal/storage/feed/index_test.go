package feed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// After any change, deletion or rebuild, an index finds the same rows as a scan of all rows.
func TestIndex(t *testing.T) {
	resource := keys.Resource{Root: keys.Native, Resource: "configmaps"}
	table := &Table[[]string]{resource: resource, rows: &tableRows[[]string]{}, watchers: map[int]func(keys.Key){}}
	var next []string
	table.convert = func(Event) ([]string, error) { return next, nil }
	table.IndexBy(func(values []string) []string { return values })
	r := rand.New(rand.NewPCG(3, 4))
	names := []cluster.Name{"aa", "bb", "cc"}
	for range 3000 {
		k := keys.Key{Resource: resource, Cluster: names[r.IntN(3)], Name: fmt.Sprint("n", r.IntN(5))}
		next = nil
		for range r.IntN(3) {
			next = append(next, fmt.Sprint("v", r.IntN(4)))
		}
		e := Event{Key: k, Revision: 1}
		if r.IntN(4) > 0 {
			e.Value = []byte("x")
		}
		switch r.IntN(50) {
		case 0: // read again, with one row more or less
			before := table.rows
			table.Reset()
			for c, rows := range before.All() {
				for _, row := range rows {
					table.building.put(c, row, true)
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

// A table frees the memory of deleted rows.
func TestTableGivesMemoryBack(t *testing.T) {
	const many = 1000
	table := &Table[int]{rows: &tableRows[int]{}, convert: func(Event) (int, error) { return 0, nil }}
	change := func(n int, value []byte) {
		table.Apply(Event{Key: keys.Key{Cluster: "c1", Name: fmt.Sprint("n", n)}, Revision: 1, Value: value})
	}
	for n := range many {
		change(n, []byte("x"))
	}
	for n := range many - 3 {
		change(n, nil)
	}
	if rows := table.rows.of("c1"); len(rows) != 3 || cap(rows) > 64 {
		t.Errorf("%d rows, and room for %d", len(rows), cap(rows))
	}
	for n := range 3 {
		change(many-1-n, nil)
	}
	if n := table.rows.Len(); n > 0 {
		t.Errorf("%d clusters have rows", n)
	}
}
