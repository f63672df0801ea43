package control

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
)

func key(c, name string) Key { return Key{Cluster: cluster.Name(c), Name: name} }

// slowQueue is a reference implementation of queue with plain lists.
type slowQueue struct {
	share   int
	tenant  func(cluster.Name) cluster.Name
	turns   []cluster.Name // of tenants
	lanes   []cluster.Name // clusters with waiting keys
	fresh   []cluster.Name // clusters whose tenant is looked up after the step
	later   bool           // tenants are looked up so
	waiting []Key          // of all clusters, oldest first
	running []Key
	again   []Key
	resting []rest
}

type rest struct {
	key Key
	at  time.Time
}

func without[T comparable](s []T, x T) []T {
	i := slices.Index(s, x)
	return slices.Delete(slices.Clone(s), i, i+1)
}

func of(c cluster.Name) func(Key) bool { return func(k Key) bool { return k.Cluster == c } }

func (q *slowQueue) turn(c cluster.Name) {
	if !slices.Contains(q.lanes, c) && slices.ContainsFunc(q.waiting, of(c)) {
		q.lanes = append(q.lanes, c)
	}
	t := q.tenant(c)
	busy := 0
	for _, k := range q.running {
		if q.tenant(k.Cluster) == t {
			busy++
		}
	}
	mine := func(c cluster.Name) bool { return q.tenant(c) == t }
	if !slices.Contains(q.turns, t) && slices.ContainsFunc(q.lanes, mine) && busy < q.share {
		q.turns = append(q.turns, t)
	}
}

func (q *slowQueue) add(k Key) bool {
	switch {
	case slices.Contains(q.waiting, k), slices.Contains(q.again, k):
		return false
	case slices.Contains(q.running, k):
		q.again = append(q.again, k)
		return true
	}
	q.resting = slices.DeleteFunc(q.resting, func(r rest) bool { return r.key == k })
	q.wait(k)
	return true
}

func (q *slowQueue) wait(k Key) {
	known := slices.ContainsFunc(q.waiting, of(k.Cluster)) || slices.ContainsFunc(q.running, of(k.Cluster))
	q.waiting = append(q.waiting, k)
	switch {
	case q.later && !known:
		q.fresh = append(q.fresh, k.Cluster)
	case !slices.Contains(q.fresh, k.Cluster):
		q.turn(k.Cluster)
	}
}

func (q *slowQueue) place() {
	for _, c := range q.fresh {
		q.turn(c)
	}
	q.fresh = nil
}

func (q *slowQueue) take() (Key, bool) {
	if len(q.turns) == 0 {
		return Key{}, false
	}
	t := q.turns[0]
	q.turns = q.turns[1:]
	c := q.lanes[slices.IndexFunc(q.lanes, func(c cluster.Name) bool { return q.tenant(c) == t })]
	q.lanes = without(q.lanes, c)
	k := q.waiting[slices.IndexFunc(q.waiting, of(c))]
	q.waiting = without(q.waiting, k)
	q.running = append(q.running, k)
	q.turn(c)
	return k, true
}

func (q *slowQueue) done(k Key, until time.Time) {
	q.running = without(q.running, k)
	switch {
	case slices.Contains(q.again, k):
		q.again = without(q.again, k)
		q.waiting = append(q.waiting, k)
	case !until.IsZero():
		q.resting = append(q.resting, rest{k, until})
	}
	q.turn(k.Cluster)
}

func (q *slowQueue) wake(now time.Time) {
	slices.SortStableFunc(q.resting, func(a, b rest) int { return a.at.Compare(b.at) })
	for len(q.resting) > 0 && !q.resting[0].at.After(now) {
		k := q.resting[0].key
		q.resting = q.resting[1:]
		q.wait(k)
	}
}

// compare applies the operations in script to a queue and to a slowQueue.
func compare(t *testing.T, script []byte) {
	if len(script) == 0 {
		return
	}
	share := 1 + int(script[0])%3
	q, model := &queue{share: share}, &slowQueue{share: share, tenant: func(c cluster.Name) cluster.Name { return c }}
	if script[0] >= 128 { // c1 and c3 are of one tenant
		q.byTenant, model.later = true, true
		model.tenant = func(c cluster.Name) cluster.Name {
			if c == "c3" {
				return "c1"
			}
			return c
		}
	}
	now := time.Unix(0, 0)
	var running []*item
	for step, b := range script[1:] {
		argument := int(b >> 3)
		switch b % 8 {
		case 0, 1, 2:
			k := key("c"+strconv.Itoa(argument%4), strconv.Itoa(argument/4))
			if got, want := q.add(k), model.add(k); got != want {
				t.Fatalf("step %d: add %s made work: %v, want %v", step, k, got, want)
			}
		case 3, 4:
			it := q.take()
			want, ok := model.take()
			if (it != nil) != ok || ok && it.key != want {
				t.Fatalf("step %d: took %v, want %v %v", step, it, want, ok)
			}
			if ok {
				running = append(running, it)
			}
		case 5, 6:
			if len(running) == 0 {
				continue
			}
			it := running[argument%len(running)]
			running = without(running, it)
			var until time.Time
			if argument%3 > 0 {
				until = now.Add(time.Duration(argument%5) * time.Second)
			}
			q.done(it, until)
			model.done(it.key, until)
		case 7:
			now = now.Add(time.Duration(argument) * time.Second / 4)
			q.wake(now)
			model.wake(now)
		}
		placeAll(q, model.tenant)
		model.place()
		if q.waiting != len(model.waiting) || len(q.later) != len(model.resting) {
			t.Fatalf("step %d: %d wait and %d rest, want %d and %d", step, q.waiting, len(q.later), len(model.waiting), len(model.resting))
		}
	}
	q.wake(time.Unix(1<<40, 0))
	placeAll(q, model.tenant)
	drain(t, q, running)
}

func placeAll(q *queue, tenant func(cluster.Name) cluster.Name) {
	tenants := q.unplaced()
	for i, c := range tenants {
		tenants[i] = tenant(c)
	}
	q.place(tenants)
}

// drain ends all work and checks that the queue is empty then.
func drain(t *testing.T, q *queue, running []*item) {
	t.Helper()
	q.wake(time.Unix(1<<40, 0))
	for {
		for _, it := range running {
			q.done(it, time.Time{})
		}
		it := q.take()
		if it == nil {
			break
		}
		running = []*item{it}
	}
	if q.items.Len()+q.lanes.Len()+len(q.later)+q.waiting > 0 || q.tenants.Len() > 0 || q.next.first != nil || q.next.last != nil || q.fresh.first != nil {
		t.Fatalf("an empty queue holds %d items, %d lanes, %d resting, %d waiting", q.items.Len(), q.lanes.Len(), len(q.later), q.waiting)
	}
	if cap(q.later) > shrink.Small {
		t.Fatalf("an empty queue has room for %d resting", cap(q.later))
	}
}

func TestQueueDoesWhatASlowOneDoes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		script := make([]byte, 1+random.IntN(300))
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		compare(t, script)
	}
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 0, 3, 0, 5, 3})
	f.Add([]byte{2, 0, 8, 16, 24, 3, 3, 3, 13, 21, 255, 3})
	f.Add([]byte{200, 8, 24, 0, 3, 3, 3, 5, 13, 3})
	f.Add([]byte{1, 0, 3, 13, 7, 0, 255, 3, 0, 5})
	f.Fuzz(compare)
}

func TestQueueForgetsTenantsThatAreDone(t *testing.T) {
	q := &queue{share: 1}
	for i := range 10_000 {
		q.add(key(fmt.Sprintf("tenant-%d", i), "a"))
	}
	var running []*item
	for it := q.take(); it != nil; it = q.take() {
		running = append(running, it)
	}
	for _, it := range running {
		q.done(it, time.Unix(1, 0))
	}
	if q.lanes.Len() != 0 || len(q.later) != 10_000 {
		t.Fatalf("%d lanes and %d resting, want 0 and 10000: a key that rests needs no lane", q.lanes.Len(), len(q.later))
	}
	drain(t, q, nil)
}

func BenchmarkQueue(b *testing.B) {
	for _, clusters := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("clusters=%d", clusters), func(b *testing.B) {
			keys := make([]Key, 10_000)
			for i := range keys {
				keys[i] = key(fmt.Sprintf("tenant-%d", i%clusters), strconv.Itoa(i))
			}
			q := &queue{share: 4}
			for _, k := range keys[:len(keys)/2] {
				q.add(k)
			}
			b.ReportAllocs()
			i := len(keys) / 2
			for b.Loop() { // half of the keys wait at any time
				q.add(keys[i%len(keys)])
				i++
				q.done(q.take(), time.Time{})
			}
		})
	}
}
