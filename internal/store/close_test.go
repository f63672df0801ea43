package store

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimachineryruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/etcd"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

// stacks counts goroutines by the function that started them.
func stacks() map[string]int {
	buf := make([]byte, 1<<20)
	for n := 0; ; buf = make([]byte, 2*len(buf)) {
		if n = runtime.Stack(buf, true); n < len(buf) {
			buf = buf[:n]
			break
		}
	}
	all := map[string]int{}
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		if _, by, ok := strings.Cut(g, "created by "); ok {
			by, _, _ = strings.Cut(by, " in goroutine")
			all[by]++
		}
	}
	return all
}

// noneLeft checks that f leaves no goroutines. Goroutines that are still ending have a
// minute.
func noneLeft(t *testing.T, f func()) {
	t.Helper()
	f() // libraries start some goroutines once per process
	before, began := stacks(), time.Now()
	f()
	for {
		left := ""
		for by, n := range stacks() {
			if n > before[by] {
				left += fmt.Sprintf("\n%d more started by %s", n-before[by], by)
			}
		}
		if left == "" {
			return
		}
		if deadline, ok := t.Deadline(); ok && time.Until(deadline) < time.Minute || time.Since(began) > time.Minute {
			t.Fatalf("goroutines are left:%s", left)
		}
		runtime.Gosched()
	}
}

// A closed store leaves no goroutines after lists and watches of all kinds.
func TestCloseLeavesNothing(t *testing.T) {
	noneLeft(t, func() {
		s, cm, stop := open(t, t.TempDir())
		w := widgetsOf(t, s, "v1")
		create(t, s, "c1")
		for _, c := range []cluster.Name{"c1", cluster.All} {
			for _, k := range []struct {
				api  storage.Interface
				root string
				list apimachineryruntime.Object
			}{{cm, cmRoot, &corev1.ConfigMapList{}}, {w, "/c/example.com/widgets", emptyWidgets()}} {
				if err := k.api.GetList(in(c), k.root, everything(""), k.list); err != nil {
					t.Error(err)
				}
				for _, rv := range []string{"", "0"} {
					if _, err := k.api.Watch(in(c), k.root, everything(rv)); err != nil { // never stopped by the client
						t.Error(err)
					}
				}
			}
		}
		for i := range 20 {
			name := fmt.Sprint("x", i)
			if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
				t.Error(err)
			}
		}
		stop()
	})
}

// A store that fails to open leaves no goroutines.
func TestFailedOpenLeavesNothing(t *testing.T) {
	dir := filled(t, 1)
	used := t.TempDir()
	unlock, err := etcd.LockDir(used)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	noneLeft(t, func() {
		for _, test := range [][2]string{{dir, "1.30"}, {used, "1.36"}, {dir, ""}} {
			if s, err := tryOpen(t, test[0], test[1]); err == nil {
				s.Close()
				t.Errorf("%v opened", test)
			}
		}
	})
}

// Close returns even if the caches are behind the feed.
func TestCloseWhileBehind(t *testing.T) {
	for range 3 {
		s, cm, stop := open(t, t.TempDir())
		create(t, s, "c1")
		if n := count(t, cm); n != 0 {
			t.Fatal(n)
		}
		for i := range 3000 {
			key := s.prefix + keys.NativeResource(configMaps).Key("c1", "ns", fmt.Sprint("x", i)).Path()
			if _, err := s.RawClient().Put(t.Context(), key, "{"); err != nil {
				t.Fatal(err)
			}
		}
		stop()
	}
}

// A watch can buffer a burst of events. A watch that is not read ends without a delay for
// other watches, and can be resumed after its last event.
func TestSlowWatch(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	first := fmt.Sprint(s.guard.latest.Load())
	slow, err := cm.Watch(in("c1"), cmRoot, everything(first))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Stop()
	const n = feed.MaxPending + 500
	quick, err := cm.Watch(in("c1"), cmRoot, everything(first))
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Stop()
	for i := range n {
		name := fmt.Sprint("x", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
			t.Fatal(err)
		}
		expect(t, quick, "ADDED c1/"+name)
	}
	got, last := 0, ""
	for e := range slow.ResultChan() {
		last = bare(e.Object).(*corev1.ConfigMap).ResourceVersion
		got++
	}
	if got < feed.MaxPending || got >= n {
		t.Errorf("a watch that was not read got %d of %d events", got, n)
	}
	resumed, err := cm.Watch(in("c1"), cmRoot, everything(last))
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Stop()
	for ; got < n; got++ {
		expect(t, resumed, fmt.Sprint("ADDED c1/x", got))
	}

	replay, err := cm.Watch(in("c1"), cmRoot, everything("0")) // more events than the buffer holds
	if err != nil {
		t.Fatal(err)
	}
	defer replay.Stop()
	for range n {
		next(t, replay)
	}
}
