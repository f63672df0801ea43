package admit

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cluster"
)

// The depth of the tree of workspaces is limited.
func TestDeepWorkspaces(t *testing.T) {
	for parent, deep := range map[string]bool{"root:a": false, "root" + strings.Repeat(":"+strings.Repeat("a", 63), 63): false, "root" + strings.Repeat(":a", 3000): true} {
		rule := Workspaces(WorkspaceTypes{PathOf: func(cluster.Name) cluster.Path { return cluster.Path(parent) }})
		err := rule.Validate(t.Context(), request("c", "workspaces", "w", nil, map[string]any{}))
		if apierrors.IsForbidden(err) != deep || deep && !strings.Contains(err.Error(), "the limit is 4096") {
			t.Errorf("in a path of %d bytes: %v", len(parent), err)
		}
	}
}
