package quickstart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unforked/kcp/internal/cli/paths"
)

// TestQuickstartTree checks that trees have the requested size, that each workspace comes after its
// parent, and that equal seeds give equal trees.
func TestQuickstartTree(t *testing.T) {
	for seed := range uint64(20) {
		q := quickstart{prefix: "q", depth: int(seed%4) + 1, count: int(seed) * 2, seed: seed}
		tree := q.tree("root:q")
		if diff := cmp.Diff(tree, q.tree("root:q")); diff != "" {
			t.Errorf("%+v: another tree: %s", q, diff)
		}
		if len(tree) != q.count+1 {
			t.Errorf("%+v: %d workspaces", q, len(tree))
		}
		for i, path := range tree[1:] {
			if up, _, _ := paths.Parent(path); !slices.Contains(tree[:i+1], up) || strings.Count(string(path), ":") > q.depth+1 {
				t.Errorf("%+v: %s comes after %v", q, path, tree[:i+1])
			}
		}
	}
}
