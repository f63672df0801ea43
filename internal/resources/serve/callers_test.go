package serve

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unforked/kcp/internal/request/fair"
)

// A request that waits for a webhook holds no processor, whatever tenant it counts for: a loop of
// the server, or a provider in the cluster of a consumer.
func TestCallersLendTheirSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shares := fair.New(fair.Limits{Heavy: 1, HeavyEach: 1, Waiting: 5, Timeout: time.Second})
		begin := func(tenant string) (*fair.Work, context.Context) {
			w := shares.Begin()
			w.For(tenant)
			return w, fair.With(t.Context(), w)
		}
		c, key := newCallers(), handlerKey{tenant: "consumer"}
		caller, ctx := begin("loops:consumer")
		if err := caller.Compute(ctx, fair.Heavy); err != nil {
			t.Fatal(err)
		}
		leave := c.enter(ctx, key)
		other, ctx := begin("other")
		c.lend(handlerKey{tenant: "another"}, func() {
			if other.Compute(ctx, fair.Heavy) == nil {
				t.Error("a call for another handler lends the seat")
			}
		})
		c.lend(key, func() {
			if err := other.Compute(ctx, fair.Heavy); err != nil {
				t.Error(err)
			}
			other.Pause()
		})
		if other.Compute(ctx, fair.Heavy) == nil {
			t.Error("the seat was not given back")
		}
		leave()
		caller.End()
		other.End()
		if len(c.of) > 0 || !shares.Idle() {
			t.Errorf("left: %v %+v", c.of, shares)
		}
	})
}
