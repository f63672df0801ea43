package hooks

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// A tenant with slow hooks in many clusters takes the time of a few deletions by loops. One with a
// single such cluster is served in the others.
func TestTenantsWithSlowHooksTakeLittleOfTheLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(func(c cluster.Name) cluster.Name {
			tenant, _, _ := strings.Cut(string(c), "-")
			return cluster.Name(tenant)
		})
		ran := map[cluster.Name]int{}
		try := func(c cluster.Name, slow bool) error {
			return s.limited(t.Context(), c, func(ctx context.Context) error {
				ran[c]++
				if slow {
					<-ctx.Done()
				}
				return ctx.Err()
			})
		}
		served := func(c cluster.Name) {
			t.Helper()
			if err := try(c, false); err != nil {
				t.Errorf("%s: %v", c, err)
			}
		}
		for range 2 {
			clear(ran)
			if err := try("one-0", true); err == nil {
				t.Error("slow hooks do not fail")
			}
			if err := try("one-0", false); err == nil {
				t.Error("a cluster with slow hooks is served at once")
			}
			served("one-1")
			for i := range 100 {
				if err := try(cluster.Name(fmt.Sprintf("many-%d", i)), true); err == nil {
					t.Errorf("the slow hooks of cluster %d do not fail", i)
				}
			}
			served("one-1")
			served("other-0")
			if got := len(ran); got != 3+maxSlow {
				t.Errorf("hooks ran in %d clusters: %v", got, ran)
			}
			<-time.After(loopPause)
			served("one-0")
			served("many-99")
		}
		_ = try("other-0", true)
		if len(s.until) != 1 {
			t.Errorf("tenants are kept after their pause: %v", s.until)
		}
	})
}
