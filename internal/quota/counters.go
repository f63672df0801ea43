package quota

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
)

// A Subject is what a counter counts: the objects of a group and resource in one namespace, or
// in a whole cluster if Namespace is empty.
type Subject struct {
	schema.GroupResource
	Namespace string
}

// A Demand is an addition to a subject, of which there may be Most.
type Demand struct {
	Subject
	// Cluster is the cluster of the subject.
	Cluster cluster.Name
	Most    int64
	// Size is what is added: 0 means one object.
	Size int64
	// Margin is how near a limit has to be for [Charge.Near].
	Margin int64
	// Stored returns what is stored of the subject, if others count it; else nil.
	Stored func() int64
}

const (
	// idleCounter is how long a counter is kept without use.
	idleCounter = 10 * time.Minute
	// uncertainFor is how long a write of unknown outcome counts. etcd has decided by then.
	uncertainFor = time.Minute
)

// Counters count the objects of subjects that have a limit. A subject is counted from its first
// use: the caller reads the number of its objects from etcd, and from then on the counters
// follow the changes. Clusters without limits have no counters. Methods may be called
// concurrently.
type Counters struct {
	mu       sync.Mutex
	clusters shrink.Map[cluster.Name, map[Subject]*counter]
	charges  shrink.Map[string, []*Charge] // by key
	number   int                           // of counters
	sweepAt  int
}

// A counter counts one subject. While a number is read from etcd, since has the changes.
type counter struct {
	objects int64
	stored  func() int64 // returns objects, if others count them
	counted bool
	reading bool
	since   []change
	// charges are admitted creations that objects does not include, the oldest first.
	charges []*Charge
	touched time.Time
}

type change struct{ revision, objects int64 }

// A Charge is an admitted creation. The caller settles it.
type Charge struct {
	of       *Counters
	key      string
	began    time.Time
	counters []*counter
	demands  []Demand
	rev      int64 // at which the object was created; 0 while that is not known
	seen     int64 // revision of the last creation of the key
	ended    bool
}

// A Change is a change of the objects of a cluster.
type Change struct {
	Cluster   cluster.Name
	Resource  schema.GroupResource
	Namespace string
	Revision  int64
	Objects   int64 // 1 for a creation, -1 for a deletion, else 0
	// Key identifies the object.
	Key func() string
}

// Changed counts a change, which count counts for others.
func (t *Counters) Changed(e Change, count func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count()
	if e.Objects == 0 {
		return
	}
	if of, ok := t.clusters.Get(e.Cluster); ok {
		for _, namespace := range namespaces(e.Namespace) {
			if c := of[Subject{e.Resource, namespace}]; c != nil {
				c.add(e)
			}
		}
	}
	if e.Objects > 0 && t.charges.Len() > 0 {
		key := e.Key()
		charges, _ := t.charges.Get(key)
		for _, c := range charges {
			c.seen = e.Revision
			if c.rev != 0 && c.seen >= c.rev {
				c.end()
				break
			}
		}
	}
}

// namespaces returns the namespaces of the subjects that count an object.
func namespaces(of string) []string {
	if of == "" {
		return []string{""}
	}
	return []string{"", of}
}

func (c *counter) add(e Change) {
	if c.reading {
		c.since = append(c.since, change{e.Revision, e.Objects})
	}
	if c.counted {
		c.objects += e.Objects
	}
}

// Reset makes all counters uncounted: changes may have been missed.
func (t *Counters) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range t.clusters.All() {
		for _, c := range of {
			c.counted, c.reading, c.since, c.objects = c.stored != nil, false, nil, 0
		}
	}
}

// Read begins to count a subject: from now on its changes are recorded. When the caller has
// read the number of objects in etcd at a revision, and all changes up to it were given to
// [Counters.Changed], it calls counted.
func (t *Counters) Read(in cluster.Name, s Subject) (counted func(objects, revision int64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counter(in, s)
	if !c.counted {
		c.reading = true
	}
	return func(objects, revision int64) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if c.counted || !c.reading {
			return // another caller was first, or changes were missed
		}
		for _, e := range c.since {
			if e.revision > revision {
				objects += e.objects
			}
		}
		c.objects, c.counted, c.reading, c.since = objects, true, false, nil
	}
}

// counter returns the counter of a subject, and makes it if there is none. The caller holds
// the lock.
func (t *Counters) counter(in cluster.Name, s Subject) *counter {
	of, _ := t.clusters.Get(in)
	if of == nil {
		of = map[Subject]*counter{}
		t.clusters.Put(in, of)
	}
	c := of[s]
	if c == nil {
		if t.number >= max(t.sweepAt, 1024) {
			t.sweep()
		}
		c = &counter{}
		of[s] = c
		t.clusters.Put(in, of) // the sweep may have dropped it
		t.number++
	}
	c.touched = time.Now()
	return c
}

// sweep drops counters that were not used for a while.
func (t *Counters) sweep() {
	t.number = 0
	t.clusters.DropFunc(func(_ cluster.Name, of map[Subject]*counter) bool {
		for s, c := range of {
			if len(c.charges) == 0 && !c.reading && time.Since(c.touched) > idleCounter {
				delete(of, s)
			}
		}
		t.number += len(of)
		return len(of) == 0
	})
	t.sweepAt = 2 * t.number
}

// Drop forgets the counters of a cluster, except those of creations whose outcome is not known yet:
// limits apply to these, too.
func (t *Counters) Drop(in cluster.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, _ := t.clusters.Get(in)
	for s, c := range of {
		if len(c.charges) == 0 {
			delete(of, s)
			t.number--
		}
	}
	if len(of) == 0 {
		t.clusters.Drop(in)
	}
}

// Count returns the number of stored objects of a subject, and whether it is counted.
func (t *Counters) Count(in cluster.Name, s Subject) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, _ := t.clusters.Get(in)
	c := of[s]
	if c == nil || !c.counted {
		return 0, false
	}
	c.touched = time.Now()
	return c.objects, true
}

// Tracked reports whether a cluster has counters of its own or of its namespaces.
func (t *Counters) Tracked(in cluster.Name) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.clusters.Get(in)
	return ok
}

// A Refusal says which of the demands is refused, and what its subject uses.
type Refusal struct {
	Demand int
	Used   int64
}

// Reserve admits the creation of the object at key, or refuses it. If the counters of some
// subjects have to be read first, it returns these. With dry set it reserves nothing.
func (t *Counters) Reserve(key string, demands []Demand, dry bool) (*Charge, *Refusal, []Demand) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var unread []Demand
	c := &Charge{of: t, key: key, began: time.Now(), demands: demands}
	for _, d := range demands {
		n := t.counter(d.Cluster, d.Subject)
		if d.Stored != nil {
			n.stored, n.counted = d.Stored, true
		}
		if !n.counted {
			unread = append(unread, d)
		}
		c.counters = append(c.counters, n)
	}
	if len(unread) > 0 {
		return nil, nil, unread
	}
	for i, n := range c.counters {
		n.expire(c.began)
		if used := n.used(nil); used+demands[i].size() > demands[i].Most {
			return nil, &Refusal{i, used}, nil
		}
	}
	if dry {
		return c, nil, nil
	}
	seen := map[*counter]bool{}
	for _, n := range c.counters {
		if !seen[n] { // two quotas may count the same
			n.charges, seen[n] = append(n.charges, c), true
		}
	}
	same, _ := t.charges.Get(key)
	t.charges.Put(key, append(same, c))
	return c, nil, nil
}

func (d Demand) size() int64 { return max(1, d.Size) }

// used returns what is stored and what was admitted before a charge; all that was admitted if
// that is nil.
func (n *counter) used(before *Charge) int64 {
	used := n.objects
	if n.stored != nil {
		used = n.stored()
	}
	for _, c := range n.charges {
		if c == before {
			break
		}
		used += c.demands[slices.Index(c.counters, n)].size()
	}
	return used
}

// expire drops charges whose outcome must be known by now.
func (n *counter) expire(now time.Time) {
	for len(n.charges) > 0 && now.Sub(n.charges[0].began) > uncertainFor {
		n.charges[0].end()
	}
}

// Near returns the clusters whose limits are so near that writes by other processes, of which
// this one has not heard yet, could exceed them.
func (c *Charge) Near() []cluster.Name {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	var near []cluster.Name
	for i, n := range c.counters {
		if d := c.demands[i]; n.used(nil) > d.Most-d.Margin && !slices.Contains(near, d.Cluster) {
			near = append(near, d.Cluster)
		}
	}
	return near
}

// Check decides again on a charge, after changes by other processes. Charges have a claim in
// the order in which they were made.
func (c *Charge) Check() *Refusal {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	for i, n := range c.counters {
		if used := n.used(c); used+c.demands[i].size() > c.demands[i].Most {
			return &Refusal{i, used}
		}
	}
	return nil
}

// Created settles the charge: the object was created at a revision.
func (c *Charge) Created(revision int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.rev = revision; c.seen >= revision {
		c.end()
	}
}

// Failed settles the charge: the object was not created.
func (c *Charge) Failed() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.end()
}

// end removes the charge. The caller holds the lock.
func (c *Charge) end() {
	if c.ended {
		return
	}
	c.ended = true
	for _, n := range c.counters {
		n.charges = without(n.charges, c)
	}
	same, _ := c.of.charges.Get(c.key)
	if same = without(same, c); len(same) == 0 {
		c.of.charges.Drop(c.key)
		return
	}
	c.of.charges.Put(c.key, same)
}

// without returns all but one, in a new slice: others may be iterating.
func without(all []*Charge, one *Charge) []*Charge {
	left := make([]*Charge, 0, len(all))
	for _, c := range all {
		if c != one {
			left = append(left, c)
		}
	}
	return left
}
