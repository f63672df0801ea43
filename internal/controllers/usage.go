package controllers

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/usage"
	"github.com/unforked/kcp/internal/storage/election"
)

// lastWriteWithin is the timeout of the last write when a loop ends.
const lastWriteWithin = 2 * time.Second

// Usage measures what the consumers of exports store, while this process runs the loops, and
// writes the records of it.
func Usage(d Deps) control.Loop {
	var l lastWrite
	return control.Loop{
		Name: "usage", On: d.on(l.before(d.Usage.Stop)), Workers: 1,
		Do: func(ctx context.Context, _ control.Key) error { return l.again(ctx, d.Usage.Write, d.Usage.Every()) },
	}
}

// UsedVersions writes which versions of exported resources were requested in this process.
func UsedVersions(m *usage.Meter) control.Loop {
	var l lastWrite
	return control.Loop{
		Name: "used-versions", On: []control.Source{{Subscribe: l.before(m.WriteUses)}}, Workers: 1,
		Do: func(ctx context.Context, _ control.Key) error { return l.again(ctx, m.WriteUses, m.Every()) },
	}
}

// Requests writes the requests that this process has counted.
func Requests(r *usage.Requests, every time.Duration) control.Loop {
	var l lastWrite
	return control.Loop{
		Name: "requests", On: []control.Source{{Subscribe: l.before(r.Write)}}, Workers: 1,
		Do: func(ctx context.Context, _ control.Key) error { return l.again(ctx, r.Write, every) },
	}
}

// A lastWrite is for a loop that writes at intervals, and once more when it ends.
type lastWrite struct {
	ctx context.Context // of the loop, for the last write
}

// again writes, and returns when to do so again.
func (l *lastWrite) again(ctx context.Context, write func(context.Context) error, every time.Duration) error {
	l.ctx = context.WithoutCancel(ctx)
	if err := write(ctx); err != nil {
		return err
	}
	return control.After(every)
}

// before returns the subscription of a loop that starts at once, and calls write when it has
// ended.
func (l *lastWrite) before(write func(context.Context) error) func(wake func(control.Key)) (unsubscribe func()) {
	return func(wake func(control.Key)) (unsubscribe func()) {
		l.ctx = nil
		trigger.Once(wake)
		return func() {
			if l.ctx == nil {
				return
			}
			ctx, cancel := context.WithTimeout(l.ctx, lastWriteWithin)
			defer cancel()
			if err := write(ctx); err != nil && !errors.Is(err, election.ErrNotLeading) {
				klog.FromContext(ctx).Error(err, "Changes since the last write of usage are imprecise")
			}
		}
	}
}
