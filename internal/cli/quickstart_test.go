package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestQuickstartTree checks that trees have the requested size, that each workspace comes after its
// parent, and that equal seeds give equal trees.
func TestQuickstartTree(t *testing.T) {
	for seed := range uint64(20) {
		q := quickstart{prefix: "q", depth: int(seed%4) + 1, count: int(seed) * 2, seed: seed}
		paths := q.tree("root:q")
		if diff := cmp.Diff(paths, q.tree("root:q")); diff != "" {
			t.Errorf("%+v: another tree: %s", q, diff)
		}
		if len(paths) != q.count+1 {
			t.Errorf("%+v: %d workspaces", q, len(paths))
		}
		for i, path := range paths[1:] {
			if up, _, _ := parent(path); !slices.Contains(paths[:i+1], up) || strings.Count(string(path), ":") > q.depth+1 {
				t.Errorf("%+v: %s comes after %v", q, path, paths[:i+1])
			}
		}
	}
}
