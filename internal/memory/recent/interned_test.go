package recent

import (
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// collected runs the garbage collector until happened returns true.
func collected(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for range 10000 {
		runtime.GC()
		if happened() {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("not collected: %s", what)
}

// A value is kept while it is referenced.
func TestInterned(t *testing.T) {
	all := NewInterned[int, string]()
	built := 0
	build := func(s string) func() (*string, error) {
		return func() (*string, error) { built++; return &s, nil }
	}
	one, _ := all.Get(1, build("one"))
	if again, err := all.Get(1, build("other")); again != one || err != nil || built != 1 {
		t.Errorf("got %v, %v, built %d times", *again, err, built)
	}
	kept, _ := all.Get(2, build("two"))
	if kept == one {
		t.Error("two keys have one value")
	}
	failure := errors.New("cannot")
	if v, err := all.Get(3, func() (*string, error) { return nil, failure }); v != nil || !errors.Is(err, failure) {
		t.Errorf("got %v, %v", v, err)
	}
	if v, err := all.Get(3, build("three")); err != nil || *v != "three" {
		t.Errorf("after an error: %v", err)
	}
	collected(t, "unused values", func() bool { return all.Len() <= 2 })
	runtime.KeepAlive(one)
	collected(t, "unused values", func() bool { return all.Len() <= 1 })
	if v := all.find(2); v != kept {
		t.Errorf("a value that is in use was forgotten: %v", v)
	}
	if v, err := all.Get(1, build("one again")); err != nil || *v != "one again" {
		t.Errorf("a value that was forgotten: %v, %v", v, err)
	}
	runtime.KeepAlive(kept)
}

// The cleanup of an old value does not remove a new value of the same key.
func TestInternedAgain(t *testing.T) {
	all := NewInterned[string, [64]byte]()
	for i := range 200 {
		v, err := all.Get("key", func() (*[64]byte, error) { return &[64]byte{byte(i)}, nil })
		if err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			runtime.GC()
		}
		if all.find("key") != v {
			t.Fatalf("in round %d the value in use was forgotten", i)
		}
		runtime.KeepAlive(v)
	}
	collected(t, "the last", func() bool { return all.Len() == 0 })
}

// Concurrent callers get the same value.
func TestInternedConcurrently(t *testing.T) {
	all := NewInterned[string, int]()
	for round := range 20 {
		key := strconv.Itoa(round % 3)
		var wg sync.WaitGroup
		var got [16]*int
		var builds atomic.Int32
		for i := range got {
			wg.Go(func() {
				got[i], _ = all.Get(key, func() (*int, error) { builds.Add(1); return new(round), nil })
			})
		}
		runtime.GC()
		wg.Wait()
		for _, p := range got {
			if p != got[0] {
				t.Fatalf("in round %d there are two of one key", round)
			}
		}
		runtime.KeepAlive(got)
	}
	collected(t, "all", func() bool { return all.Len() == 0 })
}
