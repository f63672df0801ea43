package store

import (
	"bytes"
	"strings"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// A key is read back as it was built, or refused when it is built; and what reads
// as a key is built the same, but for the two words that stand for nothing.
func FuzzKey(f *testing.F) {
	f.Add("n", "", "configmaps", "", "c1", "default", "x")
	f.Add("c", "example.com", "widgets", "1f0e", "system:admin", "", "x")
	f.Add("s", "core", "fences", "-", "*", "a/b", "")
	f.Add("x", "/", "", "", "c1", "", "/x")
	f.Fuzz(func(t *testing.T, root, group, resource, identity, c, namespace, name string) {
		k := Key{Resource{Root(root), group, resource, identity}, cluster.Name(c), namespace, name}
		back, ok := parseKey(k.full())
		if err := k.check(); (err == nil) != (ok && back == k) {
			t.Errorf("%q reads as %q, %v, and is checked with %v", k.full(), back, ok, err)
		}
		if plain(root, group, resource, identity, c, namespace, name) && name != "" && c != "" && resource != "" && (root == "n" || root == "c" || root == "s") {
			if !ok || back != k {
				t.Errorf("%q reads as %+v, %v", k.full(), back, ok)
			}
		}
		if !ok {
			return
		}
		if again := back.full(); again != k.full() && !strings.Contains(k.full(), "/-") && !strings.Contains(k.full(), "/core") {
			t.Errorf("%q is built again as %q", k.full(), again)
		}
		r, tail, ok := cutHead(back.full())
		if !ok || r != back.Resource || tail != back.tail() {
			t.Errorf("%q is cut into %v and %q, %v", back.full(), r, tail, ok)
		}
		if c, namespace, name, ok := splitTail(tail); !ok || tailOf(c, namespace, name) != tail {
			t.Errorf("%q is split into %q, %q, %q, %v", tail, c, namespace, name, ok)
		}
	})
}

// plain reports whether segments can stand for themselves.
func plain(segments ...string) bool {
	for _, s := range segments {
		if strings.Contains(s, "/") || s == none || s == coreGroup {
			return false
		}
	}
	return true
}

// A frame is cut where it was put together, and what is no frame is an error.
func FuzzFrame(f *testing.F) {
	f.Add("c1/ns/x", []byte("{}"), []byte{})
	f.Add("", []byte{}, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(strings.Repeat("x", 300), []byte{0}, []byte{200})
	f.Fuzz(func(t *testing.T, tail string, value, garbage []byte) {
		got, rest, err := cutFrame(appendFrame(nil, tail, value))
		if err != nil || got != tail || !bytes.Equal(rest, value) {
			t.Errorf("got %q, %q, %v", got, rest, err)
		}
		if got, rest, err := cutFrame(garbage); err == nil && len(got)+len(rest) >= len(garbage) {
			t.Errorf("%q is cut into %q and %q", garbage, got, rest)
		}
	})
}

// The cache of custom resources takes in any value, under the name of its key.
func FuzzRawDecode(f *testing.F) {
	f.Add(`{"metadata":{"name":"other","namespace":"n","labels":{"a":"b"},"annotations":{"kcp.io/cluster":"c9"},"resourceVersion":"7"}}`)
	f.Add(`{"Metadata":{"labels":{"a":"b"}}}`)
	f.Add(`{"metadata":{"labels":{"a":1}}}`)
	f.Add(`{"metadata":`)
	f.Add("")
	codec := rawCodec{newStamps(func(cluster.Name) bool { return true })}
	f.Fuzz(func(t *testing.T, value string) {
		framed := appendFrame(nil, "c1/ns/x", []byte(value))
		o, _, err := codec.Decode(framed, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := o.(*Raw)
		if r.Namespace != "ns" || r.Name != "x" || cluster.Of(r) != "c1" || len(r.Annotations) != 1 || r.ResourceVersion != "" {
			t.Errorf("taken in as %s/%s in %v at %q", r.Namespace, r.Name, r.Annotations, r.ResourceVersion)
		}
		var back bytes.Buffer
		if err := codec.Encode(r, &back); err != nil || !bytes.Equal(back.Bytes(), framed) {
			t.Errorf("given back as %q, %v", back.Bytes(), err)
		}
	})
}
