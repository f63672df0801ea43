package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// What a decoded value takes is known, about.
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

// Lists ask before they take memory, and watches that begin with a list let go of each
// page that they have given.
func TestLoadOfLists(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1")
	var last int64
	for i := range 5 {
		last = w.revision(w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, ""))
	}
	if err := w.store.Spine().WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	held, most := int64(0), int64(0)
	refused := errors.New("too much")
	counted := WithLoad(in("c1"), func(bytes int64) error {
		if held+bytes > most && most > 0 {
			return refused
		}
		held += bytes
		return nil
	})
	list := func() error { return w.apis[0].GetList(counted, w.root, everything(""), w.flavour.list()) }
	if err := list(); err != nil || held == 0 {
		t.Fatalf("a list takes %d bytes: %v", held, err)
	}
	for _, most = range []int64{1, held / 2, held - 1} { // before it is read, and while it is decoded
		if held = 0; !errors.Is(list(), refused) {
			t.Errorf("a list that may take %d bytes is not refused", most)
		}
	}
	held, most = 0, 0
	changes, err := w.apis[0].Watch(counted, w.root, everything(""))
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	for range 5 {
		if e := <-changes.ResultChan(); e.Type != watch.Added {
			t.Errorf("the watch begins with %v", e)
		}
	}
	w.put(space{cluster: "c1"}, object{"ns", "late"}, "")
	select {
	case <-changes.ResultChan(): // so that it has begun
	case <-time.After(time.Minute):
		t.Fatal("no change")
	}
	if held != 0 {
		t.Errorf("a watch that has begun holds %d bytes", held)
	}
}
