// Package trigger wakes the loops of the server when stored objects change. It hides how a loop
// misses no change: the loop starts when the change feed has been read once, and keys wait for it
// while it does not run.
package trigger

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// On returns the sources of a loop, which the subscriptions wake. The loop starts when the
// change feed has been read once, so that an object which it does not find does not exist.
// Every loop of the server has its sources from here.
func On(f *feed.Feed, subscriptions ...func(wake func(control.Key)) (unsubscribe func())) []control.Source {
	sources := make([]control.Source, len(subscriptions))
	for i, subscribe := range subscriptions {
		sources[i] = control.Source{Ready: f.Ready(), Subscribe: subscribe}
	}
	return sources
}

// Once wakes a loop when it starts, with a key of the whole server.
func Once(wake func(control.Key)) (unsubscribe func()) {
	wake(control.Key{Cluster: cluster.Admin, Name: "all"})
	return nil
}

// Table returns a subscription that wakes a loop with the keys of the objects in a table, and
// again when they change.
func Table[T any](t *feed.Table[T]) func(wake func(control.Key)) (unsubscribe func()) {
	return func(wake func(control.Key)) (unsubscribe func()) {
		unsubscribe = t.Subscribe(func(k keys.Key) { wake(Key(k)) })
		for _, k := range t.Keys() {
			wake(Key(k))
		}
		return unsubscribe
	}
}

// Key converts the key of a stored object to that of a loop.
func Key(k keys.Key) control.Key {
	return control.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}
}

// Keys is [Key] for several keys.
func Keys(stored []keys.Key) []control.Key {
	all := make([]control.Key, len(stored))
	for i, k := range stored {
		all[i] = Key(k)
	}
	return all
}

// UntilChange returns nil for an error that an object does not exist or has changed: the change
// wakes the loop. It returns other errors, and an aggregate without these.
func UntilChange(err error) error {
	return utilerrors.FilterOut(err, apierrors.IsNotFound, apierrors.IsConflict, storage.IsConflict)
}
