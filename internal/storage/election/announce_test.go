package election_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// A process announces a value while it runs, and the others read it.
func TestSeveralAnnounce(t *testing.T) {
	_, all := several(t, 2, etcdtest.Options{})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { all[0].Election().Announce(ctx, "topic", "first") })
	until := func(topic string, want ...string) {
		t.Helper()
		for {
			got, err := all[1].Election().Announced(t.Context(), topic)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Equal(got, want) {
				return
			}
		}
	}
	until("topic", "first")
	until("other")
	end()
	until("topic")
}
