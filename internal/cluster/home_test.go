package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHome(t *testing.T) {
	for user, want := range map[string]Name{"alice": "v1u4alow0iv9", "bob": "2okdry95y5lkv", "user172": "0f9mt7goyif7"} {
		if got := Home(user); got != want {
			t.Errorf("the home of %s is %s, want %s", user, got, want)
		}
	}
	for _, user := range []string{"", "*", "system:admin", "a/b", "..", "\x00", "Ünïcode 名", strings.Repeat("x", 100_000), "-", "\xff"} {
		if n, err := ParseName(string(Home(user))); err != nil || n.System() || len(n) < homeSeed {
			t.Errorf("the home of %.20q is %q: %v", user, n, err)
		}
	}
}

func TestHomePaths(t *testing.T) {
	type place struct {
		Path   Path
		Name   Name
		Words  []string
		Parent Path
	}
	odd := Home("Alice@example.com")
	for s, want := range map[string]place{
		"user:alice":               {Path: "user:alice", Name: "v1u4alow0iv9"},
		"user:alice:a:b":           {Path: "user:alice:a:b", Name: "v1u4alow0iv9", Words: []string{"a", "b"}, Parent: "user:alice:a"},
		"user:alice:a":             {Path: "user:alice:a", Name: "v1u4alow0iv9", Words: []string{"a"}, Parent: "user:alice"},
		"user:Alice@example.com":   {Path: Path(odd), Name: odd},
		"user:Alice@example.com:a": {Path: Path(odd).Join("a"), Name: odd, Words: []string{"a"}, Parent: Path(odd)},
		"user:x y/*":               {Path: Path(Home("x y/*")), Name: Home("x y/*")},
		"user":                     {Path: "user", Name: "user"},
	} {
		p, err := ParsePath(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
		}
		got := place{Path: p}
		got.Name, got.Words = p.Split()
		got.Parent, _ = p.Parent()
		if len(got.Words) == 0 {
			got.Words = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", s, diff)
		}
	}
	for _, s := range []string{"user:", "user::a", "user:a:", "user:a:B", "user:A@b:..", "user:A@b:x/y"} {
		if p, err := ParsePath(s); err == nil {
			t.Errorf("ParsePath(%q) = %q, want an error", s, p)
		}
	}
}
