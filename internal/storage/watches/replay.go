package watches

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/etcd"
)

const (
	// ReplayPage is the number of objects in a page of the initial list of a watch.
	ReplayPage = 500
	// SlowReader is how long a reader may take for a change from etcd's history before the
	// watch of etcd is cancelled: etcd's client keeps the changes that are not read.
	SlowReader = time.Second
)

// replay delivers the existing objects, and subscribes to later changes.
func (w *feedWatch) replay() bool {
	o := storage.ListOptions{ResourceVersion: w.options.ResourceVersion, Recursive: w.options.Recursive, Predicate: storage.Everything}
	if w.cursor > 0 {
		o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	w.cursor = 0
	if w.scope != nil && w.scope.Sparse {
		return w.replayMembers()
	}
	ctx, done := w.ctx, paged(w.ctx)
	for {
		var page RawList
		done() // of the page before
		o.Predicate.Limit = ReplayPage
		if err := w.Raws(ctx, w.key, o, &page); err != nil {
			return w.fail(err)
		}
		if w.cursor == 0 {
			rev, err := w.all.store.Epoch().Revision(page.ResourceVersion)
			if err != nil {
				return w.fail(err)
			}
			if w.cursor = rev; !w.subscribe(rev) || !w.scopeAt(rev) {
				return false
			}
		}
		for i := range page.Items {
			r := &page.Items[i]
			p, _ := w.covers(cluster.Of(r), w.cursor)
			if ok, err := w.selected(r, p); err != nil {
				return w.fail(err)
			} else if ok && !w.deliverEvent(watch.Added, r) {
				return false
			}
		}
		if page.Continue == "" {
			done()
			break
		}
		o.ResourceVersion, o.ResourceVersionMatch, o.Predicate.Continue = "", "", page.Continue
	}
	return w.replayed()
}

// replayed delivers the bookmark after the existing objects, if the reader wants one.
func (w *feedWatch) replayed() bool {
	if w.options.SendInitialEvents == nil || !w.options.Predicate.AllowWatchBookmarks {
		return true
	}
	return w.bookmark(w.cursor, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

// paged returns a function that gives back the memory counted since paged was called: a
// list in pages holds one page at a time.
func paged(ctx context.Context) func() {
	before := fair.Held(ctx)
	return func() { _ = fair.Grow(ctx, before-fair.Held(ctx)) } // less memory is always granted
}

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

// errStopped ends pages.
var errStopped = errors.New("the reader has stopped")

// pages calls each for the objects of a range as of a revision, until it returns false.
func (all *Watches) pages(ctx context.Context, s Source, key string, at int64, each func(*Raw) (bool, error)) error {
	o := storage.ListOptions{
		ResourceVersion: all.store.ResourceVersion(at), ResourceVersionMatch: metav1.ResourceVersionMatchExact, Recursive: true, Predicate: storage.Everything,
	}
	done := paged(ctx)
	for {
		var page RawList
		o.Predicate.Limit = ReplayPage
		if err := s.Past(ctx, key, o, &page); err != nil {
			return err
		}
		for i := range page.Items {
			if more, err := each(&page.Items[i]); err != nil {
				return err
			} else if !more {
				return errStopped
			}
		}
		done()
		if page.Continue == "" {
			return nil
		}
		o.ResourceVersion, o.ResourceVersionMatch, o.Predicate.Continue = "", "", page.Continue
	}
}
