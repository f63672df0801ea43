package watchcache

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/registry"
)

// watchForms returns the ways to watch a custom resource: from the change feed, from etcd
// for each watch, and from a cache.
func watchForms(b *testing.B, w *world) []struct {
	name  string
	watch func(context.Context) (watch.Interface, error)
} {
	custom := w.apis[0].(*registry.Storage).Interface.(*custom)
	key := w.resource("").Prefix() + "/c1"
	now := func() storage.ListOptions { return everything(fmt.Sprint(w.store.Latest())) }
	return []struct {
		name  string
		watch func(context.Context) (watch.Interface, error)
	}{
		{"relayed", func(ctx context.Context) (watch.Interface, error) { return w.apis[0].Watch(ctx, w.root, now()) }},
		{"etcd", func(ctx context.Context) (watch.Interface, error) {
			in, err := custom.Interface.Watch(ctx, key, now())
			if err != nil {
				return nil, err
			}
			return w.store.watches.Buffered(in, false, func(e watch.Event) (watch.Event, bool) { return e, true }), nil
		}},
		{"cached", func(ctx context.Context) (watch.Interface, error) {
			cache := warmed(b, w.apis[0], w.resource(""))
			defer w.store.customs.done(cache)
			o := now()
			o.Predicate = ofCluster(ctx, o.Predicate)
			o.Predicate.GetAttrs = rawAttrs
			in, err := cache.Watch(ctx, key, o)
			if err != nil {
				return nil, err
			}
			return w.store.watches.Buffered(in, false, func(e watch.Event) (watch.Event, bool) {
				e.Object = bare(e.Object)
				return custom.Event(e, false)
			}), nil
		}},
	}
}

// BenchmarkWatchForms measures a change with 1, 8 and 32 watches, and an idle watch.
func BenchmarkWatchForms(b *testing.B) {
	w := &world{TB: b, flavour: customs(), dir: b.TempDir()}
	w.start()
	defer func() { w.ended() }()
	create(b, w.store, "c1")
	at := object{"ns", "x"}
	w.put(space{cluster: "c1"}, at, "")
	for _, form := range watchForms(b, w) {
		for _, n := range []int{0, 1, 8, 32} {
			b.Run(fmt.Sprintf("%s/%d", form.name, n), func(b *testing.B) {
				w.TB = b
				var got, done sync.WaitGroup
				ctx, stop := context.WithCancel(in("c1"))
				for range n {
					watching, err := form.watch(ctx)
					w.ok(err, "watch")
					got.Add(1)
					done.Go(func() {
						for range watching.ResultChan() {
							got.Done()
						}
					})
				}
				change := func(i int) {
					w.ok(w.apis[0].GuaranteedUpdate(ctx, w.key(at), w.empty(), false, nil, setTo(w, at, fmt.Sprint(form.name, n, time.Now(), i)), nil), "update")
				}
				change(-1)
				got.Wait() // all watches have begun
				before := cpu()
				for i := 0; b.Loop(); i++ {
					got.Add(n)
					change(i)
					got.Wait()
				}
				b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/op")
				stop()
				done.Wait()
			})
		}
	}
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for this process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func setTo(w *world, at object, value string) storage.UpdateFunc {
	return func(apiruntime.Object, storage.ResponseMeta) (apiruntime.Object, *uint64, error) {
		return w.object(at, row{value: value}), nil, nil
	}
}

// BenchmarkIdleWatch measures an idle watch.
func BenchmarkIdleWatch(b *testing.B) {
	w := &world{TB: b, flavour: customs(), dir: b.TempDir()}
	w.start()
	defer func() { w.ended() }()
	create(b, w.store, "c1")
	w.put(space{cluster: "c1"}, object{"ns", "x"}, "")
	for _, form := range watchForms(b, w) {
		b.Run(form.name, func(b *testing.B) {
			w.TB = b
			for b.Loop() {
				const n = 1000
				ctx, stop := context.WithCancel(in("c1"))
				first, err := form.watch(ctx)
				w.ok(err, "watch")
				heap0, routines := heap(), runtime.NumGoroutine()
				all := make([]watch.Interface, 0, n)
				for range n {
					watching, err := form.watch(ctx)
					w.ok(err, "watch")
					all = append(all, watching)
				}
				at := object{"ns", "x"}
				w.ok(w.apis[0].GuaranteedUpdate(ctx, w.key(at), w.empty(), false, nil, setTo(w, at, fmt.Sprint(time.Now())), nil), "update")
				for _, watching := range all { // all watches have begun
					next(b, watching)
				}
				b.ReportMetric(float64(runtime.NumGoroutine()-routines)/n, "goroutines/watch")
				b.ReportMetric(float64(heap()-heap0)/n, "heap-B/watch")
				stop()
				for _, watching := range append(all, first) {
					for range watching.ResultChan() {
					}
				}
			}
		})
	}
}

// BenchmarkListForms measures a list of one namespace, and one that selects one of its
// objects, from etcd and from a cache.
func BenchmarkListForms(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		w := &world{TB: b, flavour: customs(), dir: b.TempDir()}
		w.start()
		create(b, w.store, "c1")
		for i := range n {
			at := object{"ns", fmt.Sprint("o", i)}
			out, r := w.empty(), row{value: "v", red: i == 0}
			w.ok(w.apis[0].Create(in("c1"), w.key(at), w.object(at, r), out, 0), "create")
		}
		for _, form := range []string{"cold", "warm"} {
			if w.store.limits.objects = 1 << 40; form == "warm" {
				cache := warmed(b, w.apis[0], w.resource(""))
				defer w.store.customs.done(cache)
			}
			for _, c := range []choice{{namespace: "ns"}, {namespace: "ns", red: true}} {
				b.Run(fmt.Sprintf("%d/%s/selected=%v", n, form, c.red), func(b *testing.B) {
					b.ReportAllocs()
					w.TB = b
					ctx, key := w.request(space{cluster: "c1"}, c)
					for b.Loop() {
						w.ok(w.apis[0].GetList(ctx, key, c.options(""), w.flavour.list()), "list")
					}
				})
			}
		}
		w.ended()
	}
}

// BenchmarkResource measures a resource that is listed and watched once, cold and warm.
func BenchmarkResource(b *testing.B) {
	for _, form := range []string{"cold", "warm"} {
		b.Run(form, func(b *testing.B) {
			for b.Loop() {
				w := &world{TB: b, flavour: customs(), dir: b.TempDir()}
				w.start()
				create(b, w.store, "c1")
				n := 200
				heap0, routines := heap(), runtime.NumGoroutine()
				for i := range n {
					s := space{"c1", fmt.Sprintf("%x", i)}
					w.put(s, object{"ns", "x"}, "")
					w.ok(w.apis[0].GetList(s.context(), w.root, everything(""), w.flavour.list()), "list")
					if form == "warm" {
						w.store.customs.done(warmed(b, w.apis[0], w.resource(s.identity)))
					}
				}
				b.ReportMetric(float64(runtime.NumGoroutine()-routines)/float64(n), "goroutines/resource")
				b.ReportMetric(float64(heap()-heap0)/float64(n), "heap-B/resource")
				w.ended()
			}
		})
	}
}
