package paths

import (
	"strings"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		current cluster.Path
		arg     string
		want    cluster.Path // none: an error
	}{
		{"root", ".", "root"},
		{"root", ":", "root"},
		{"root:a", ":", "root"},
		{"root:a:b", "..", "root:a"},
		{"root:a:b", "..:..", "root"},
		{"root:a:b", "..:c", "root:a:c"},
		{"root:a:b", "..:..:c:.:d:..", "root:c"},
		{"root:a", "b", "root:a:b"},
		{"root:a", "b:c", "root:a:b:c"},
		{"root:a", "x", "root:a:x"},
		{"root:a", ":root", "root"},
		{"root:a", ":root:x:y", "root:x:y"},
		{"root:a", "root:x", "root:x"},
		{"root:a", "root", "root"},
		{"root:a", ".:root", "root:a:root"},
		{"root:a", "rooted", "root:a:rooted"},
		{"root:a", "..:root", "root:root"},
		{"root:a", ":system:admin", "system:admin"},
		{"root:a", ":system:cache:server", "system:cache:server"},
		{"root:a", ":2okdry95y5lkv:x", "2okdry95y5lkv:x"},
		{"root:a", ":user:alice:x", "user:alice:x"},
		{"user:alice:x", "..", "user:alice"},
		{"root:a", ":root:b:..:c", "root:c"},
		{"system:admin", ".", "system:admin"},

		{"root", "..", ""},
		{"root:a", "..:..", ""},
		{"user:alice", "..", ""},
		{"system:admin", "..", ""},
		{"system:admin", "a", ""},
		{"root", ":system:..", ""},
		{"root", "", ""},
		{"root", "a:", ""},
		{"root", "a::b", ""},
		{"root", "::", ""},
		{"root", "root:", ""},
		{"root", ":root:", ""},
		{"root", "...", ""},
		{"root", "A", ""},
		{"root", "-a", ""},
		{"root", "a/b", ""},
		{"root", "*", ""},
		{"root", ":*", ""},
		{"root", "~", ""},
		{"root", strings.Repeat("a", 64), ""},
	} {
		got, err := Resolve(c.current, c.arg)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("at %s: %q leads to %q, %v; want %q", c.current, c.arg, got, err, c.want)
		}
	}
}

func FuzzResolve(f *testing.F) {
	for _, s := range []string{".", "..", ":", "a", "..:b", ":root:a", "root:a", ":system:admin:..", ":user:a:..:..", "a:..:..:..", "~", "-"} {
		f.Add("root:org:team", s)
		f.Add("system:admin", s)
	}
	f.Fuzz(func(t *testing.T, at, arg string) {
		current, err := cluster.ParsePath(at)
		if err != nil {
			t.Skip()
		}
		got, err := Resolve(current, arg)
		if err != nil {
			return
		}
		// The result is a path, and its absolute form resolves to it from any workspace.
		if _, err := cluster.ParsePath(string(got)); err != nil {
			t.Fatalf("at %q: %q leads to %q: %v", at, arg, got, err)
		}
		for _, from := range []cluster.Path{"root", current} {
			if again, err := Resolve(from, ":"+string(got)); err != nil || again != got {
				t.Fatalf("at %q: %q leads to %q, but :%[3]s to %q, %v", from, arg, got, again, err)
			}
		}
		if up, name, ok := Parent(got); ok {
			if down, err := Resolve(up, ".:"+name); err != nil || down != got {
				t.Fatalf("%q below %q is %q, %v; want %q", name, up, down, err, got)
			}
		}
	})
}
