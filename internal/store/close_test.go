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
)

// stacks counts the goroutines by where they were started.
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

// noneLeft checks that f leaves no goroutine: those that end on their own get the
// time of the test to do so.
func noneLeft(t *testing.T, f func()) {
	t.Helper()
	f() // what the libraries start once in a process
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

// A store that closes leaves nothing behind, whatever it was used for.
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
					if _, err := k.api.Watch(in(c), k.root, everything(rv)); err != nil { // never stopped
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

// Nor does one that could not open.
func TestFailedOpenLeavesNothing(t *testing.T) {
	dir := filled(t, 1)
	used := t.TempDir()
	unlock, err := lockDir(used)
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

// Close ends also while the caches have more to take in than there is room for.
func TestCloseWhileBehind(t *testing.T) {
	for range 3 {
		s, cm, stop := open(t, t.TempDir())
		create(t, s, "c1")
		if n := count(t, cm); n != 0 {
			t.Fatal(n)
		}
		for i := range 3000 {
			key := s.prefix + Key{NativeResource(configMaps), "c1", "ns", fmt.Sprint("x", i)}.full()
			if _, err := s.RawClient().Put(t.Context(), key, "{"); err != nil {
				t.Fatal(err)
			}
		}
		stop()
	}
}

// A watch has room for a burst, and one that is not read at all holds up nobody
// and ends; what it got can be resumed.
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
	const n = maxPending + 500
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
	if got < maxPending || got >= n {
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

	replay, err := cm.Watch(in("c1"), cmRoot, everything("0")) // more than there is room for
	if err != nil {
		t.Fatal(err)
	}
	defer replay.Stop()
	for range n {
		next(t, replay)
	}
}
