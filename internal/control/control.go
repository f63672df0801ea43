// Package control runs reconcile loops over every logical cluster at once.
//
// A loop is one function of a [Key]. Watching, queueing fairly between tenants,
// retry, logging and metrics live here, once, so that a controller holds
// nothing but its decision. Nothing here exists per cluster: no goroutine, no
// timer, no cache, and no memory for clusters in which nothing is to be done.
package control

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/cluster"
)

// A Key names one object in one logical cluster.
type Key struct {
	Cluster cluster.Name
	// Namespace is empty for objects that have none.
	Namespace string
	Name      string
}

// An Object is any API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// KeyOf returns the key of a served object.
func KeyOf(o metav1.Object) Key {
	return Key{Cluster: cluster.Of(o), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// String returns cluster|namespace/name, or cluster|name. Different keys have
// different strings, so it serves as the value of an index.
func (k Key) String() string { return string(k.Cluster) + "|" + k.object() }

// compare orders keys by cluster, namespace and name.
func (k Key) compare(other Key) int {
	return cmp.Or(
		cmp.Compare(k.Cluster, other.Cluster),
		cmp.Compare(k.Namespace, other.Namespace),
		cmp.Compare(k.Name, other.Name))
}

func (k Key) object() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// A Source is something that a loop reads. Any package can make one, of
// whatever it holds.
type Source struct {
	// Ready is closed once what the source stands for has been read completely.
	// No loop runs before all its sources are ready, so an object that is
	// absent then is truly absent. Nil means ready from the start.
	Ready <-chan struct{}

	// Subscribe makes the source wake a loop. Nil is for sources that are only
	// read: the loop waits for them, and nothing more.
	//
	// It must call wake with the key of everything that exists, before or
	// after it returns, and of everything that appears, changes or goes from
	// then on, whichever goroutine notices. It must miss nothing in between,
	// but may wake a key more often than needed: keys are merged. What a key
	// stands for must be visible to readers before wake is called for it.
	// wake never blocks and may be called while holding locks, at any time,
	// even after unsubscribe, when it does nothing.
	//
	// The loop calls unsubscribe once, when it stops; it may be nil.
	Subscribe func(wake func(Key)) (unsubscribe func())
}
