package watchcache

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/api/meta"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
)

// BenchmarkStore measures each operation on a namespace with ten objects.
func BenchmarkStore(b *testing.B) {
	for _, f := range []flavour{natives(), customs()} {
		w := &world{TB: b, flavour: f, dir: b.TempDir()}
		w.start()
		create(b, w.store, "c1")
		s, api := space{cluster: "c1"}, w.apis[0]
		for i := range 10 {
			out := w.empty()
			w.ok(api.Create(s.context(), w.key(object{"ns", fmt.Sprint("o", i)}), w.object(object{"ns", fmt.Sprint("o", i)}, row{}), out, 0), "create")
		}
		n := 0
		at := func(i int) object { return object{"others", fmt.Sprint("n", i)} }
		for _, op := range []struct {
			name string
			do   func(i int) error
		}{
			{"get", func(i int) error {
				return api.Get(s.context(), w.key(object{"ns", fmt.Sprint("o", i%10)}), storage.GetOptions{}, w.empty())
			}},
			{"list", func(int) error {
				return api.GetList(s.context(), w.root+"/ns", everything(""), w.flavour.list())
			}},
			{"update", func(i int) error {
				return api.GuaranteedUpdate(s.context(), w.key(object{"ns", "o1"}), w.empty(), false, nil, func(apiruntime.Object, storage.ResponseMeta) (apiruntime.Object, *uint64, error) {
					return w.object(object{"ns", "o1"}, row{value: fmt.Sprint(time.Now(), i)}), nil, nil
				}, nil)
			}},
			{"create and delete", func(int) error {
				n++
				if err := api.Create(s.context(), w.key(at(n)), w.object(at(n), row{}), w.empty(), 0); err != nil {
					return err
				}
				return api.Delete(s.context(), w.key(at(n)), w.empty(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
			}},
		} {
			b.Run(f.name+"/"+op.name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if err := op.do(i); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		w.ended()
	}
}

// BenchmarkConsistentList measures a list of one cluster while other clusters are written to.
// It must not wait for a progress report of etcd, which comes every 100 ms.
func BenchmarkConsistentList(b *testing.B) {
	w := &world{TB: b, flavour: natives(), dir: b.TempDir()}
	w.start()
	defer func() { w.ended() }()
	create(b, w.store, "c1", "c2")
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stopped.Load(); i++ {
			at := object{"ns", fmt.Sprint("o", i)}
			if err := w.apis[0].Create(in("c2"), w.key(at), w.object(at, row{}), nil, 0); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	for b.Loop() {
		if err := w.apis[0].GetList(in("c1"), cmRoot, everything(""), w.flavour.list()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/list")
	stopped.Store(true)
	<-done
}

// BenchmarkMemory measures the heap that each object adds to caches, ledger and index.
func BenchmarkMemory(b *testing.B) {
	for _, f := range []flavour{natives(), customs()} {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				w := &world{TB: b, flavour: f, dir: b.TempDir()}
				w.start()
				list := w.flavour.list()
				w.ok(w.apis[0].GetList(in(cluster.All), w.root, everything(""), list), "fill the cache")
				objects := 5000
				if testing.Short() {
					objects = 100
				}
				empty := heap()
				for i := range objects {
					c := cluster.Name(fmt.Sprint("c", i/10))
					if i%10 == 0 {
						create(b, w.store, c)
					}
					w.put(space{cluster: c}, object{"ns", fmt.Sprint("o", i%10)}, "value")
				}
				w.ok(w.apis[0].GetList(in(cluster.All), w.root, everything(""), list), "list")
				if n := meta.LenList(list); n != objects {
					b.Fatal(n)
				}
				list = nil
				b.ReportMetric(float64(heap()-empty)/float64(objects), "heap-B/object")
				w.ended()
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
