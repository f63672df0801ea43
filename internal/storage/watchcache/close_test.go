package watchcache

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apimachineryruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// A closed store leaves no goroutines after lists and watches of all kinds.
func TestCloseLeavesNothing(t *testing.T) {
	storetest.NoneLeft(t, func() {
		s, cm, stop := open(t, t.TempDir())
		w := widgetsOf(t, s, "v1")
		create(t, s, "c1")
		for _, c := range []cluster.Name{"c1", cluster.All} {
			for _, k := range []struct {
				api  storage.Interface
				root string
				list apimachineryruntime.Object
			}{{cm, cmRoot, &corev1.ConfigMapList{}}, {w, "/c/example.com/widgets", storetest.EmptyWidgets()}} {
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

// Close returns even if the caches are behind the feed.
func TestCloseWhileBehind(t *testing.T) {
	for range 3 {
		s, cm, stop := open(t, t.TempDir())
		create(t, s, "c1")
		if err := cm.GetList(in("c1"), cmRoot, everything(""), &corev1.ConfigMapList{}); err != nil {
			t.Fatal(err)
		}
		for i := range 3000 {
			key := s.Prefix() + keys.NativeResource(configMaps).Key("c1", "ns", fmt.Sprint("x", i)).Path()
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
	first := fmt.Sprint(s.Latest())
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
