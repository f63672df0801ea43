package watchcache

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/internal/request/fair"
)

// The estimate of the memory of decoded values is roughly right.
func TestWeigh(t *testing.T) {
	const n = 20_000
	for name, text := range map[string]string{
		"empty objects": `{"x":[` + strings.Repeat(`{},`, n) + `{}]}`,
		"small objects": `{"x":[` + strings.Repeat(`{"a":1},`, n) + `{}]}`,
		"numbers":       `{"x":[` + strings.Repeat(`1,`, n) + `1]}`,
		"arrays":        `{"x":[` + strings.Repeat(`[],`, n) + `[]]}`,
		"text":          `{"x":"` + strings.Repeat(`some words `, n) + `"}`,
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var o map[string]any
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		took, estimate := int64(after.HeapAlloc)-int64(before.HeapAlloc), weigh(o)
		if took > 2*estimate {
			t.Errorf("%s: %d bytes, estimated as %d", name, took, estimate)
		}
		runtime.KeepAlive(o)
	}
}

// Lists reserve memory before they use it. Watches that begin with a list release each page
// after they have sent it.
func TestLoadOfLists(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1")
	var last int64
	for i := range 5 {
		last = w.revision(w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, ""))
	}
	if err := w.store.Feed().WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	share := func(most int64) context.Context {
		work := fair.New(fair.Limits{Memory: fair.Memory{Tenant: most, All: most}}).Begin()
		work.For("c1")
		return fair.With(in("c1"), work)
	}
	list := func(ctx context.Context) error {
		return w.apis[0].GetList(ctx, w.root, everything(""), w.flavour.list())
	}
	counted := share(1 << 30)
	if err := list(counted); err != nil || fair.Held(counted) == 0 {
		t.Fatalf("a list takes %d bytes: %v", fair.Held(counted), err)
	}
	held := fair.Held(counted)
	for _, most := range []int64{1, held / 2, held - 1} { // refused before the read, and during decoding
		if err := list(share(most)); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("a list that may take %d bytes: %v", most, err)
		}
	}
	counted = share(1 << 30)
	changes, err := w.apis[0].Watch(counted, w.root, everything(""))
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	for range 5 {
		if e := next(t, changes); e.Type != watch.Added {
			t.Errorf("the watch begins with %v", e)
		}
	}
	w.put(space{cluster: "c1"}, object{"ns", "late"}, "")
	next(t, changes) // the watch has begun
	if held := fair.Held(counted); held != 0 {
		t.Errorf("a watch that has begun holds %d bytes", held)
	}
}
