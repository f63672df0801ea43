package cluster

import (
	"context"
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	for s, ok := range map[string]bool{
		"root": true, "a1": true, "0f9mt7goyif7": true, "system:admin": true, "system:cache:server": true,
		strings.Repeat("a", 63): true, "a-b": true,
		"": false, "a": false, "-": false, "*": false, "-a": false, "a-": false, "A1": false, "a/b": false, "a:b": false,
		"..": false, "a.b": false, "system:": false, "system": true, "system::a": false, "system:*": false,
		strings.Repeat("a", 64): false, "a\n": false, "system:a\n": false, "é1": false, "a\x00b": false,
	} {
		if n, err := ParseName(s); (err == nil) != ok || ok && string(n) != s {
			t.Errorf("ParseName(%q) = %q, %v; want ok=%v", s, n, err, ok)
		}
	}
}

func TestPath(t *testing.T) {
	for s, want := range map[string]struct {
		name  Name
		words int
	}{
		"root": {"root", 0}, "root:org": {"root", 1}, "root:org:a": {"root", 2}, "system:admin": {"system:admin", 0}, "abc:b": {"abc", 1},
	} {
		p, err := ParsePath(s)
		if err != nil {
			t.Errorf("ParsePath(%q): %v", s, err)
		}
		n, words := p.Split()
		if n != want.name || len(words) != want.words {
			t.Errorf("%q splits into %q %q", s, n, words)
		}
		up, ok := p.Join("x").Parent()
		if p.Join("x").Parent(); n.System() == ok && ok || !n.System() && up != p {
			t.Errorf("parent of %q is %q, %v", p.Join("x"), up, ok)
		}
	}
	for _, s := range []string{"", ":", "root:", ":root", "root::a", "root:A", "root:a/b", "root:*", "*:a", "a:b", "root:a\n"} {
		if p, err := ParsePath(s); err == nil {
			t.Errorf("ParsePath(%q) = %q, want an error", s, p)
		}
	}
}

func TestContext(t *testing.T) {
	if _, ok := From(context.Background()); ok {
		t.Error("a fresh context has a cluster")
	}
	if _, err := One(context.Background()); err == nil {
		t.Error("One accepts no cluster")
	}
	if _, err := One(With(context.Background(), All)); err == nil {
		t.Error("One accepts all clusters")
	}
	if n, err := One(With(context.Background(), "a1")); err != nil || n != "a1" {
		t.Errorf("One = %q, %v", n, err)
	}
}

func TestNewNamesAreNames(t *testing.T) {
	seen := map[Name]bool{}
	for range 1000 {
		n := NewName()
		if _, err := ParseName(string(n)); err != nil || len(n) != 16 || seen[n] {
			t.Fatalf("NewName() = %q, %v, seen before: %v", n, err, seen[n])
		}
		seen[n] = true
	}
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"root", "root:org:team", "system:admin", "*", "-", "a/../b", "root:\x00", "system::",
		"user:alice", "user:alice:a:b", "user:A@b.c", "user:A@b.c:x", "user:*:x", "user:", "user::", "user:a:", "user"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			return
		}
		// Every accepted name must be safe as a key segment and come back unchanged.
		n, words := p.Split()
		if _, err := ParseName(string(n)); err != nil {
			t.Fatalf("%q begins with %q: %v", s, n, err)
		}
		if strings.ContainsAny(string(p), "/*\x00\n ") {
			t.Fatalf("accepted %q", s)
		}
		if again, err := ParsePath(string(p)); err != nil || again != p {
			t.Fatalf("%q is parsed to %q, and that to %q, %v", s, p, again, err)
		}
		if user, ok := strings.CutPrefix(s, "user:"); ok {
			user, _, _ := strings.Cut(user, ":")
			if n != Home(user) {
				t.Fatalf("%q is in %q, and the home of %q is %q", s, n, user, Home(user))
			}
			return
		}
		back := Path(n)
		for _, w := range words {
			back = back.Join(w)
		}
		if string(back) != s {
			t.Fatalf("%q comes back as %q", s, back)
		}
	})
}
