// Package control runs reconcile loops over all logical clusters at once.
//
// A loop is one function of a [Key], and the sources that wake it. This package provides
// fair queueing between tenants, retry with back-off, logging and metrics, so that a
// controller contains only its decision. It is the only mechanism of loops in the server.
// No goroutine, timer or cache exists per cluster, and a cluster without queued keys uses
// no memory.
package control

import (
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

func (k Key) object() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// A Source is data that a loop reads. Any package can provide one.
type Source struct {
	// Ready is closed once the source has been read completely. A loop starts
	// after all its sources are ready, so an object that it does not find does
	// not exist. Nil means ready from the start.
	Ready <-chan struct{}

	// Subscribe connects the source to a loop that it wakes. Nil means that the
	// source wakes no loop; the loop only waits until it is ready.
	//
	// The source must call wake with the key of each existing object, before or
	// after Subscribe returns. From then on it must call wake with the key of each
	// object that is added, changed or deleted. It must not miss any, but may
	// repeat keys: the queue merges them. A change must be visible to readers
	// before wake is called for it.
	//
	// wake never blocks, and is safe to call from any goroutine and with locks
	// held. After the loop has stopped it does nothing.
	//
	// The loop calls unsubscribe once, when it stops. It may be nil.
	Subscribe func(wake func(Key)) (unsubscribe func())
}
