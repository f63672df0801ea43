package watches

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/storage/etcd"
)

// SlowReader is how long a reader may take for a change from etcd's history before the
// watch of etcd is cancelled: etcd's client keeps the changes that are not read.
const SlowReader = time.Second

// catchUp delivers changes from the history of etcd, until it has those that the feed had
// dropped from memory.
func (w *feedWatch) catchUp() bool {
	c := w.all
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(w.ctx))
	defer cancel()
	from, ask, done := w.historian()
	defer done()
	options := []clientv3.OpOption{clientv3.WithRev(w.cursor + 1), clientv3.WithPrevKV(), clientv3.WithProgressNotify()}
	if w.options.Recursive {
		options = append(options, clientv3.WithPrefix())
	}
	changes := from.Watch(ctx, c.store.Prefix()+w.key, options...)
	for {
		var resp clientv3.WatchResponse
		var ok bool
		select {
		case resp, ok = <-changes:
		case <-ask:
			_ = from.RequestProgress(ctx) // repeated
			continue
		case <-c.closing:
		}
		if err := resp.Err(); errors.Is(err, rpctypes.ErrCompacted) {
			return w.fail(expired(w.cursor))
		} else if !ok || err != nil {
			return false // the reader resumes
		}
		for _, e := range resp.Events {
			if e.Kv.ModRevision > w.missed {
				w.cursor = w.missed
				return true
			}
			slow, ok := w.change(e, cancel)
			if slow || !ok {
				return ok
			}
		}
		if resp.IsProgressNotify() && resp.Header.Revision >= w.missed {
			w.cursor = w.missed
			return true
		}
	}
}

// historian returns the client that reads the history of etcd, and a channel that says when to
// request progress from etcd. A watch within a scope delivers changes of the scope only after it has
// caught up. The next change of an object, and etcd's own report of progress, may take minutes. So
// such a watch requests progress. It has a stream of its own, because etcd reports progress only
// when all watches of a stream have caught up.
func (w *feedWatch) historian() (from clientv3.Watcher, ask <-chan time.Time, done func()) {
	c := w.all
	if w.scope == nil {
		return c.history, nil, func() {}
	}
	client, tick := c.store.Client(), time.NewTicker(progressEvery)
	return client, tick.C, func() {
		tick.Stop()
		_ = client.Close() // reports only that its context ended
	}
}

// change delivers a change from the history of etcd. slow reports that the reader was so slow
// that the watch of etcd was cancelled.
func (w *feedWatch) change(e *clientv3.Event, drop func()) (slow, ok bool) {
	if err := etcd.Previous(w.ctx, w.all.history.Client, e); errors.Is(err, rpctypes.ErrCompacted) {
		return false, w.fail(expired(w.cursor))
	} else if err != nil {
		return false, false // the reader resumes
	}
	w.cursor = e.Kv.ModRevision
	change, ok := w.feed().Event(e)
	if !ok {
		return false, true
	}
	late := time.AfterFunc(SlowReader, drop)
	ok = w.deliver(change)
	return !late.Stop(), ok
}

func expired(rev int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", rev))
}
