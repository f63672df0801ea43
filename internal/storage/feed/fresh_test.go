package feed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

// TestFreshTellsThatItGaveUp expects that a request whose changes were not applied in time is not refused for what the
// server does not know yet, also if no other process writes.
func TestFreshTellsThatItGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Feed{known: func() int64 { return 2 }, applied: 1, moved: make(chan struct{})}
		ctx := outage.WithNote(t.Context())
		if f.Fresh(ctx) || !apierrors.IsServiceUnavailable(outage.Noted(ctx)) {
			t.Errorf("nothing was applied, and the note is %v", outage.Noted(ctx))
		}
		gone, leave := context.WithTimeout(outage.WithNote(t.Context()), time.Second)
		defer leave()
		if f.Fresh(gone) || outage.Noted(gone) != nil {
			t.Errorf("the client has gone, and the note is %v", outage.Noted(gone))
		}
		f.applied = 2
		ctx = outage.WithNote(t.Context())
		if !f.Fresh(ctx) || outage.Noted(ctx) != nil {
			t.Errorf("everything was applied, and the note is %v", outage.Noted(ctx))
		}
	})
}
