package workspaces

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cluster"
)

// forest has the workspaces at each path; users may not list those that end in "!".
func forest(open ...string) func(context.Context, cluster.Path) ([]*tenancy.Workspace, error) {
	return func(_ context.Context, in cluster.Path) (all []*tenancy.Workspace, err error) {
		for _, path := range open {
			path, closed := strings.CutSuffix(path, "!")
			if closed && path == string(in) {
				return nil, errors.New("closed")
			}
			if up, name, _ := paths.Parent(cluster.Path(path)); up == in {
				w := &tenancy.Workspace{}
				w.Name, w.Status.Phase = name, core.PhaseReady
				all = append(all, w)
			}
		}
		return all, nil
	}
}

func TestBrowse(t *testing.T) {
	list := forest("root:a", "root:a:x", "root:a:y", "root:b!", "root:c")
	const start = "root|├── a +|├── b +|└── c +"
	for _, c := range []struct{ at, keys, want, cursor string }{
		{"root", "", start, "root"},
		{"root:a:y", "", "root|├── a|│   ├── x +|│   └── y +|├── b +|└── c +", "root:a:y"},
		{"root:a:gone", "", "root|├── a|│   ├── x +|│   └── y +|├── b +|└── c +", "root:a"},
		{"root", "k", start, "root"},
		{"root", "jj", start, "root:b"},
		{"root", "\x1b[B\x1b[B\x1b[A", start, "root:a"},
		{"root", "\x1bOB", start, "root:a"},
		{"root", "jjjjj", start, "root:c"},
		{"root", "G", start, "root:c"},
		{"root:c", "g", start, "root"},
		{"root", "\x1b[F", start, "root:c"},
		{"root", "jl", "root|├── a|│   ├── x +|│   └── y +|├── b +|└── c +", "root:a"},
		{"root", "j\x1b[C\x1b[C", "root|├── a|│   ├── x +|│   └── y +|├── b +|└── c +", "root:a:x"},
		{"root", "jllh", "root|├── a|│   ├── x +|│   └── y +|├── b +|└── c +", "root:a"},
		{"root", "jllhh", start, "root:a"},
		{"root", "jllhhh", start, "root"},
		{"root", "jlh\x1b[C", "root|├── a|│   ├── x +|│   └── y +|├── b +|└── c +", "root:a"},
		{"root", "jj ", "root|├── a +|├── b (closed)|└── c +", "root:b"},
		{"root", "jjjl", "root|├── a +|├── b +|└── c", "root:c"},
		{"root", "\x1b[D", "root +", "root"},
		{"root", "z\x1b[15~\x1b[1;5Qj", start, "root:a"},
	} {
		b := browse(t.Context(), list, "root", cluster.Path(c.at))
		pressed, rest := keys([]byte(c.keys))
		if len(rest) > 0 {
			t.Errorf("%q: left over: %q", c.keys, rest)
		}
		for _, k := range pressed {
			if _, over := b.press(t.Context(), k); over {
				t.Errorf("%q: over", c.keys)
			}
		}
		lines, cursor := b.lines(80, 24)
		if diff := cmp.Diff(strings.Split(c.want, "|"), lines[1:]); diff != "" || string(b.at.path) != c.cursor {
			t.Errorf("at %s, %q: at %s, want %s: %s", c.at, c.keys, b.at.path, c.cursor, diff)
		}
		if got := lines[cursor]; !strings.Contains(got, c.cursor[strings.LastIndex(c.cursor, ":")+1:]) {
			t.Errorf("at %s, %q: the cursor is in line %q, want %s", c.at, c.keys, got, c.cursor)
		}
	}
}

func TestBrowseEnds(t *testing.T) {
	for sent, want := range map[string]bool{"\r": true, "\n": true, "q": false, "\x1b": false, "\x03": false, "\x04": false} {
		pressed, _ := keys([]byte(sent))
		chosen, over := browse(t.Context(), forest(), "root", "root").press(t.Context(), pressed[0])
		if !over || chosen != want {
			t.Errorf("%q: %v, %v", sent, chosen, over)
		}
	}
}

// TestBrowseScrolls checks that the cursor is always in a visible line, and that no line is wider
// than the screen.
func TestBrowseScrolls(t *testing.T) {
	var open []string
	for c := 'a'; c <= 'z'; c++ {
		open = append(open, "root:"+strings.Repeat(string(c), 30))
	}
	b := browse(t.Context(), forest(open...), "root", "root")
	for _, k := range strings.Repeat("j", 40) + strings.Repeat("k", 13) + "gG" + strings.Repeat("k", 40) {
		b.press(t.Context(), plainKey(byte(k)))
		lines, cursor := b.lines(20, 8)
		if len(lines) != 7 || cursor < 1 || cursor > 6 {
			t.Fatalf("%d lines, cursor in %d", len(lines), cursor)
		}
		for _, line := range lines {
			if len([]rune(line)) >= 20 {
				t.Fatalf("%q does not fit", line)
			}
		}
		name := string(b.at.path)[strings.LastIndex(string(b.at.path), ":")+1:]
		if !strings.Contains(lines[cursor], name[:4]) {
			t.Fatalf("the cursor is in line %q, want %s", lines[cursor], name)
		}
	}
}

// TestKeysInPieces checks escape sequences that arrive in several pieces.
func TestKeysInPieces(t *testing.T) {
	got, rest := keys([]byte("j\x1b["))
	more, _ := keys(append(rest, 'A'))
	if diff := cmp.Diff([]key{keyDown, keyUp}, append(got, more...)); diff != "" {
		t.Error(diff)
	}
}

func FuzzKeys(f *testing.F) {
	for _, s := range []string{"jk", "\x1b[A", "\x1b[", "\x1b[1;2", "\x1bO", "\x1b\x1b[B", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		pressed, rest := keys(sent)
		if len(pressed)+len(rest) > len(sent) {
			t.Fatalf("%q: %d keys and %q", sent, len(pressed), rest)
		}
		b := browse(t.Context(), forest("root:a", "root:b"), "root", "root")
		for _, k := range pressed {
			if _, over := b.press(t.Context(), k); over {
				return
			}
		}
	})
}
