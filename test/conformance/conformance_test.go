// Package conformance checks that a workspace answers as a stock kube-apiserver of
// the same version does: both are sent the same requests, and all answers must be
// equal but for what no two servers have in common, such as uids and times.
package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// patience is how long the tests wait for what a server does after its answer.
const patience = time.Minute

// TestConformance runs a short form, with a sample of everything. The variable
// CONFORMANCE has what else is wanted: "long" runs all of it; "stock" compares
// two stock servers, between which there is no difference, if the test is right.
func TestConformance(t *testing.T) {
	c := &comparison{long: wanted("long"), want: startStock(t)}
	if wanted("stock") {
		other := startStock(t)
		c.workspace = func(*testing.T, string) *side { return other }
	} else {
		c.known, c.separate, c.workspace = known(), true, startKCP(t)
	}
	c.got = c.workspace(t, "natives")
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".http"), func(t *testing.T) {
			names := map[string]bool{}
			for _, r := range parse(t, file) {
				r.name = filepath.Base(file) + ": " + r.name
				names[r.name] = true
				c.compare(t, r)
			}
			for name := range c.known {
				if strings.HasPrefix(name, filepath.Base(file)+": ") && !names[name] {
					t.Errorf("a known difference is listed for %q, which is no request", name)
				}
			}
		})
	}
	t.Run("explain", func(t *testing.T) { c.explainNatives(t) })
	t.Run("bundles", func(t *testing.T) { c.bundles(t, bundles(t, c.long)) })
}

func wanted(word string) bool {
	return slices.Contains(strings.Split(os.Getenv("CONFORMANCE"), ","), word)
}

// comparison is of two servers.
type comparison struct {
	long      bool // all requests, not only a sample
	want, got *side
	known     map[string]difference
	// workspace returns an empty cluster of the server that is checked; where they
	// are not separate, it is always the same.
	workspace func(t *testing.T, name string) *side
	separate  bool

	requests atomic.Int64
}

// compare sends a request to both servers, and reports how the answers differ. It
// returns what the stock server said.
func (c *comparison) compare(t *testing.T, r request) answer {
	t.Helper()
	want, got := c.both(t, r)
	if wrong := c.judge(r.name, want, got); wrong != "" {
		t.Errorf("%s %s: %s", r.method, r.path, wrong)
	}
	return want
}

// settle is compare for what servers do a moment after their answer: it repeats a
// request that changes nothing until the answers are equal.
func (c *comparison) settle(t *testing.T, r request) {
	t.Helper()
	var wrong string
	if !eventually(t, func() bool {
		want, got := c.both(t, r)
		wrong = c.judge(r.name, want, got)
		return wrong == "" && want.Status < 300
	}) {
		t.Errorf("%s %s, after %v: %s", r.method, r.path, patience, wrong)
	}
}

// both sends a request to both servers at the same time.
func (c *comparison) both(t *testing.T, r request) (want, got answer) {
	t.Helper()
	c.requests.Add(1)
	var other sync.WaitGroup
	other.Go(func() { got = c.got.send(t, r) })
	want = c.want.send(t, r)
	other.Wait()
	return want, got
}

// judge says what is wrong with an answer, if anything is.
func (c *comparison) judge(name string, want, got answer) string {
	is := differences(want, got)
	k, listed := c.known[name]
	switch {
	case len(is) > 0 && !listed:
		return fmt.Sprintf("%s differs:\n%s", name, show(is))
	case listed && len(is) == 0:
		return fmt.Sprintf("%s does not differ any more, though this is listed: %s", name, k.why)
	case listed && !maps.Equal(is, k.at):
		return fmt.Sprintf("%s differs:\n%sand what is known (%s) is:\n%s", name, show(is), k.why, show(k.at))
	}
	return ""
}

// pair is what the stock server and the other say in one place of an answer: JSON,
// or nothing.
type pair struct{ stock, kcp string }

// differences returns by their path the places in which two answers differ.
func differences(want, got answer) map[string]pair {
	out := map[string]pair{}
	walk("", generic(want), generic(got), out)
	return out
}

func walk(path string, a, b any, out map[string]pair) {
	if l, ok := a.([]any); ok {
		if m, ok := b.([]any); ok && len(l) == len(m) {
			for i := range l {
				walk(fmt.Sprintf("%s[%d]", path, i), l[i], m[i], out)
			}
			return
		}
	}
	l, ok1 := a.(map[string]any)
	m, ok2 := b.(map[string]any)
	if !ok1 || !ok2 {
		if p := (pair{text(a), text(b)}); p.stock != p.kcp {
			out[path] = p
		}
		return
	}
	for k := range l {
		if _, ok := m[k]; !ok {
			out[path+"."+k] = pair{stock: text(l[k])}
			continue
		}
		walk(path+"."+k, l[k], m[k], out)
	}
	for k := range m {
		if _, ok := l[k]; !ok {
			out[path+"."+k] = pair{kcp: text(m[k])}
		}
	}
}

// generic returns v as JSON decodes it.
func generic(v any) (out any) {
	if json.Unmarshal([]byte(text(v)), &out) != nil {
		return nil // not reached: v has been decoded from JSON
	}
	return out
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// show prints at most a few differences, and of each at most the beginning.
func show(all map[string]pair) string {
	var b strings.Builder
	for i, path := range slices.Sorted(maps.Keys(all)) {
		if i == 12 {
			fmt.Fprintf(&b, "  and %d more\n", len(all)-i)
			break
		}
		fmt.Fprintf(&b, "  %s\n    - %.600s\n    + %.600s\n", path, all[path].stock, all[path].kcp)
	}
	return b.String()
}

// eventually tries until ok says that it is, or patience is at its end.
func eventually(t *testing.T, ok func() bool) bool {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(patience)
	defer end.Stop()
	for {
		if ok() {
			return true
		}
		select {
		case <-tick.C:
		case <-end.C:
			return false
		case <-t.Context().Done():
			return false
		}
	}
}

func TestDifferences(t *testing.T) {
	a := answer{Status: 200, Body: map[string]any{"a": []any{1, 2}, "b": "x", "c": nil}}
	b := answer{Status: 404, Body: map[string]any{"a": []any{1, 3}, "c": nil, "d": []any{}}}
	got := differences(a, b)
	want := map[string]pair{".Status": {"200", "404"}, ".Body.a[1]": {"2", "3"}, ".Body.b": {stock: `"x"`}, ".Body.d": {kcp: "[]"}}
	if !maps.Equal(got, want) {
		t.Errorf("differences are\n%swant\n%s", show(got), show(want))
	}
}
