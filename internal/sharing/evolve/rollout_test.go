package evolve

import (
	"slices"
	"strings"
	"testing"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// A ring by labels has a limited number of consumers, because the status names them.
func TestARingByLabelsHasALimit(t *testing.T) {
	ring := apis.RolloutRing{Name: "canary"}
	got, err := selected(ring, []cluster.Name{"a", "b"})
	if err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("selected are %q, %v", got, err)
	}
	if got, err = selected(ring, make([]cluster.Name, maxSelected)); err != nil || len(got) != maxSelected {
		t.Errorf("at the limit: %d, %v", len(got), err)
	}
	if _, err = selected(ring, make([]cluster.Name, maxSelected+1)); err == nil || !strings.Contains(err.Error(), "ring canary selects 1001 logical clusters, and may select 1000; use percent") {
		t.Errorf("over the limit: %v", err)
	}
}
