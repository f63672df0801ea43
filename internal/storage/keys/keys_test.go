package keys

import (
	"strings"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// A key parses as it was built, or Validate refuses it. A path that parses is built again,
// but for the words that stand for an empty group or identity.
func FuzzKey(f *testing.F) {
	f.Add("n", "", "configmaps", "", "c1", "default", "x")
	f.Add("c", "example.com", "widgets", "1f0e", "system:admin", "", "x")
	f.Add("s", "core", "fences", "-", "*", "a/b", "")
	f.Add("x", "/", "", "", "c1", "", "/x")
	f.Fuzz(func(t *testing.T, root, group, resource, identity, c, namespace, name string) {
		k := Key{Resource{Root(root), group, resource, identity}, cluster.Name(c), namespace, name}
		back, ok := Parse(k.Path())
		if err := k.Validate(); (err == nil) != (ok && back == k) {
			t.Errorf("%q reads as %q, %v, and is checked with %v", k.Path(), back, ok, err)
		}
		if plain(root, group, resource, identity, c, namespace, name) && name != "" && c != "" && resource != "" && (root == "n" || root == "c" || root == "s") {
			if !ok || back != k {
				t.Errorf("%q reads as %+v, %v", k.Path(), back, ok)
			}
		}
		if !ok {
			return
		}
		if again := back.Path(); again != k.Path() && !strings.Contains(k.Path(), "/-") && !strings.Contains(k.Path(), "/core") {
			t.Errorf("%q is built again as %q", k.Path(), again)
		}
		r, tail, ok := Split(back.Path())
		if !ok || r != back.Resource || tail != back.Tail() {
			t.Errorf("%q is cut into %v and %q, %v", back.Path(), r, tail, ok)
		}
		if c, namespace, name, ok := SplitTail(tail); !ok || Tail(c, namespace, name) != tail {
			t.Errorf("%q is split into %q, %q, %q, %v", tail, c, namespace, name, ok)
		}
	})
}

// plain reports whether segments are in the key as they are.
func plain(segments ...string) bool {
	for _, s := range segments {
		if strings.Contains(s, "/") || s == none || s == coreGroup {
			return false
		}
	}
	return true
}
