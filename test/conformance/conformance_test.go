// Package conformance compares the answers of a workspace with those of a stock kube-apiserver of
// the same version. All answers to equal requests must be equal, except for values that always
// differ between servers, such as uids and times.
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

// timeout is the maximum wait for effects after an answer.
const timeout = time.Minute

// TestConformance runs a short form, with a sample of all requests. The variable CONFORMANCE
// selects other forms: "long" runs all requests; "stock" compares two stock servers, which must
// not differ.
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

// comparison compares two servers.
type comparison struct {
	long      bool // all requests, not only a sample
	want, got *side
	known     map[string]difference
	// workspace returns an empty cluster of the tested server, or always the same one if
	// separate is false.
	workspace func(t *testing.T, name string) *side
	separate  bool

	requests atomic.Int64
}

// compare sends a request to both servers, and reports differences of the answers. It returns
// the answer of the stock server.
func (c *comparison) compare(t *testing.T, r request) answer {
	t.Helper()
	want, got := c.both(t, r)
	if wrong := c.judge(r.name, want, got); wrong != "" {
		t.Errorf("%s %s: %s", r.method, r.path, wrong)
	}
	return want
}

// settle is compare for effects after an answer: it repeats a read until the answers are equal.
func (c *comparison) settle(t *testing.T, r request) {
	t.Helper()
	var wrong string
	if !eventually(t, func() bool {
		want, got := c.both(t, r)
		wrong = c.judge(r.name, want, got)
		return wrong == "" && want.Status < 300
	}) {
		t.Errorf("%s %s, after %v: %s", r.method, r.path, timeout, wrong)
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

// judge returns the unexpected differences of an answer.
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

// pair has the JSON of the stock server and of kcp in one place of an answer; empty if there is
// none.
type pair struct{ stock, kcp string }

// differences returns the differences of two answers by their path.
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
		return nil // not reached: v was decoded from JSON
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

// show prints the first differences, with the beginning of each value.
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

// eventually calls ok until it returns true, or until the timeout.
func eventually(t *testing.T, ok func() bool) bool {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(timeout)
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
