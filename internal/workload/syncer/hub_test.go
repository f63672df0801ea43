package syncer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/engine"
)

// Agents that connect at the same time share a hub, which is opened once. A request that gives up harms no other. After
// an error, the next request tries again.
func TestOneHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, stop := context.WithCancel(t.Context())
		defer stop()
		var opened, ended atomic.Int32
		answer := make(chan error)
		v := &View{hubs: map[kcp.ClusterName]*held{}}
		v.spawn = func(f func(context.Context)) error { go f(server); return nil }
		v.open = func(context.Context, kcp.ClusterName) (*Source, func(), error) {
			opened.Add(1)
			if err := <-answer; err != nil {
				return nil, nil, err
			}
			return &Source{Ended: make(chan struct{}), Ready: func(context.Context) error { return nil },
				Follow: func(func(string, engine.ID)) func() { return func() {} }}, func() { ended.Add(1) }, nil
		}
		type got struct {
			hub     *hub
			release func()
			err     error
		}
		results := make(chan got)
		ask := func(ctx context.Context) {
			go func() {
				h, release, err := (&call{View: v, Identity: Identity{Compute: "compute"}}).hub(ctx)
				results <- got{h, release, err}
			}()
			synctest.Wait()
		}
		asked := func(want error) (all []got) {
			answer <- want
			for range 5 {
				r := <-results
				if !errors.Is(r.err, want) {
					t.Errorf("got %v, want %v", r.err, want)
				}
				all = append(all, r)
			}
			return all
		}
		first, leave := context.WithCancel(t.Context())
		refused := errors.New("refused")
		for n, want := range []error{refused, nil} {
			ask(first)
			for range 5 {
				ask(t.Context())
			}
			if got := opened.Load(); got != int32(n+1) {
				t.Fatalf("opened %d times, want %d", got, n+1)
			}
			leave()
			if r := <-results; !errors.Is(r.err, context.Canceled) {
				t.Errorf("the request that gave up: %v", r.err)
			}
			all := asked(want)
			first, leave = context.WithCancel(t.Context())
			if want != nil {
				continue
			}
			for _, r := range all {
				if r.hub == nil || r.hub != all[0].hub {
					t.Fatal("not one hub for all")
				}
				r.release()
			}
		}
		leave()
		if ended.Load() > 0 {
			t.Error("the hub ends at once")
		}
		<-time.After(idle)
		synctest.Wait()
		if ended.Load() != 1 || len(v.hubs) > 0 {
			t.Errorf("the hub without agents ended %d times", ended.Load())
		}
	})
}
