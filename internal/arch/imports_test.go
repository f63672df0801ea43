package arch

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// layers has the words of each line of layers.txt.
type layers [][]string

// find returns the line and the word of a package. The longest matching word wins, so a tree and one
// package in it can be on different lines.
func (l layers) find(folder string) (line int, word string, ok bool) {
	best := -1
	for i, words := range l {
		for _, w := range words {
			exact := 2 * len(w)
			if tree, isTree := strings.CutSuffix(w, "/..."); isTree {
				exact = 2*len(tree) - 1
			}
			if under(folder, w) && exact > best {
				best, line, word = exact, i, w
			}
		}
	}
	return line, word, best >= 0
}

// under reports whether a word, "x" or "x/...", matches a folder.
func under(folder, word string) bool {
	tree, isTree := strings.CutSuffix(word, "/...")
	return folder == tree || isTree && strings.HasPrefix(folder, tree+"/")
}

// allows reports whether one of our packages may import another.
func (l layers) allows(from, to string) bool {
	fromLine, fromWord, _ := l.find(from)
	toLine, toWord, _ := l.find(to)
	return toLine < fromLine || fromWord == toWord && strings.HasSuffix(fromWord, "/...")
}

func checkLayers(t *testing.T, r *repo) {
	var l layers
	for _, line := range lines(t, "layers.txt") {
		l = append(l, strings.Fields(line))
	}
	for _, w := range slices.Concat(l...) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(r.packages)), func(folder string) bool { return under(folder, w) }) {
			t.Errorf("layers.txt names %s, which is no package", w)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(r.packages)) {
		if _, _, ok := l.find(folder); !ok {
			t.Errorf("package %s has no place: add it to a line of internal/arch/layers.txt", folder)
			continue
		}
		for _, imported := range r.packages[folder].Imports {
			if r.own(imported) && !l.allows(folder, r.folder(imported)) {
				t.Errorf("%s imports %s, which is not above it in internal/arch/layers.txt", folder, r.folder(imported))
			}
		}
	}
}

func TestLayers(t *testing.T) {
	l := layers{{"low"}, {"apis/..."}, {"mid", "other"}, {"."}, {"cmd/..."}, {"apis/top"}}
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"mid", "low", true},
		{"mid", "apis/core/v1", true},
		{"apis/a", "apis/b", true},
		{"cmd/x", ".", true},
		{"apis/top", "cmd/x", true},
		{"low", "mid", false},
		{"mid", "other", false},
		{"mid", ".", false},
		{"mid", "apis/top", false},
	} {
		if got := l.allows(c.from, c.to); got != c.want {
			t.Errorf("%s may import %s: got %v, want %v", c.from, c.to, got, c.want)
		}
	}
	if _, _, ok := l.find("lower"); ok {
		t.Error("a package with no line was found")
	}
}

// forbidden is a dependency that packages must not have.
type forbidden struct {
	from   []string // words as in layers.txt
	except string   // a folder that may
	reach  []string // trees of packages that must not be reached, even through others
	direct []string // packages that must not be imported by the package itself
	why    string
}

func rules(module string) []forbidden {
	return []forbidden{{
		from:  []string{"apis/..."},
		reach: []string{"k8s.io/apiserver", "k8s.io/kubernetes"},
		why:   "programs that only read or write our objects must not link an API server",
	}, {
		from:   []string{"client", "provider", "internal/cli/..."},
		except: "internal/cli/kubectl",
		reach:  []string{"k8s.io/apiserver", "k8s.io/kubernetes", module + "/internal/server"},
		why:    "programs that talk to a server must not link one",
	}, {
		from:   []string{"internal/cluster", "internal/sharing/conversion", "internal/workload/place"},
		reach:  []string{"k8s.io/client-go"},
		direct: []string{"net", "net/http", "os", "os/exec"},
		why:    "decisions are pure: what they need is handed to them",
	}}
}

// broken returns the forbidden dependencies of a package.
func (f forbidden) broken(folder string, p listed) []string {
	if folder == f.except || !slices.ContainsFunc(f.from, func(w string) bool { return under(folder, w) }) {
		return nil
	}
	var out []string
	for _, dep := range p.Deps {
		if slices.ContainsFunc(f.reach, func(tree string) bool { return under(dep, tree+"/...") }) {
			out = append(out, dep)
		}
	}
	for _, dep := range p.Imports {
		if slices.Contains(f.direct, dep) {
			out = append(out, dep)
		}
	}
	return out
}

func checkForbidden(t *testing.T, r *repo) {
	for _, f := range rules(r.module) {
		for _, w := range f.from {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(r.packages)), func(folder string) bool { return under(folder, w) }) {
				t.Errorf("the rule %q is for %s, which is no package", f.why, w)
			}
		}
		for folder, p := range r.packages {
			if bad := f.broken(folder, p); len(bad) > 0 {
				t.Errorf("%s must not reach %s (%d such packages): %s; find the path with: go mod why %s",
					folder, bad[0], len(bad), f.why, bad[0])
			}
		}
	}
}

func TestForbidden(t *testing.T) {
	f := forbidden{
		from: []string{"a/..."}, except: "a/free",
		reach: []string{"x/server"}, direct: []string{"net"},
	}
	p := listed{Imports: []string{"fmt", "net"}, Deps: []string{"net", "x/server/options", "x/serverless"}}
	want := []string{"x/server/options", "net"}
	if diff := cmp.Diff(want, f.broken("a/b", p)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, folder := range []string{"a/free", "other"} {
		if got := f.broken(folder, p); got != nil {
			t.Errorf("%s: got %v, want nothing", folder, got)
		}
	}
}

// checkLinked compares the modules that package kcp links with deps.txt, so that changes for
// embedding programs are reviewed.
func checkLinked(t *testing.T, r *repo) {
	root, ok := r.packages["."]
	if !ok {
		t.Fatal("there is no package in the root of the repository")
	}
	linked := map[string]bool{}
	for _, dep := range root.Deps {
		if m := r.modules[dep]; m != "" && m != r.module {
			linked[m] = true
		}
	}
	got := slices.Sorted(maps.Keys(linked))
	if *update {
		text := "# Modules that package kcp links. Written by: go test ./internal/arch -update\n" +
			strings.Join(got, "\n") + "\n"
		if err := os.WriteFile("deps.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(lines(t, "deps.txt"), got); diff != "" {
		t.Errorf("package kcp links other modules than internal/arch/deps.txt says (-file +linked); if that is meant: go test ./internal/arch -update\n%s", diff)
	}
}
