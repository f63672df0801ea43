package arch

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write deps.txt instead of comparing it")

// TestArchitecture checks the whole repository against the text files beside it.
func TestArchitecture(t *testing.T) {
	r := load(t)
	t.Run("layers", func(t *testing.T) { checkLayers(t, r) })
	t.Run("forbidden dependencies", func(t *testing.T) { checkForbidden(t, r) })
	t.Run("linked modules", func(t *testing.T) { checkLinked(t, r) })
	t.Run("platforms", func(t *testing.T) { checkPlatforms(t, r) })
	t.Run("go.mod", func(t *testing.T) { checkModule(t, r) })
	t.Run("budgets", func(t *testing.T) {
		found := slices.Concat(budgets(r), habits(r), globals(r), documented(r))
		left, stale := except(found, exceptions(t))
		for _, f := range left {
			t.Errorf("%s: %s; change it, or add a line to internal/arch/exceptions.txt:\n\t%s %s <why it is better so>",
				f.place, f.what, f.check, f.place)
		}
		for _, s := range stale {
			t.Errorf("internal/arch/exceptions.txt: %q is no longer needed: remove the line", s)
		}
	})
}

// finding is one violation of a check.
type finding struct {
	check, place string // together they name it in exceptions.txt
	what         string
	hard         bool // no exception can be made
}

// exceptions reads exceptions.txt into "check place" lines.
func exceptions(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, line := range lines(t, "exceptions.txt") {
		words := strings.Fields(line)
		if len(words) < 3 {
			t.Errorf("internal/arch/exceptions.txt: %q needs a check, a place and a reason", line)
			continue
		}
		out = append(out, words[0]+" "+words[1])
	}
	return out
}

// except returns the findings that have no exception, and the exceptions that
// match no finding.
func except(found []finding, allowed []string) (left []finding, stale []string) {
	used := map[string]bool{}
	for _, f := range found {
		key := f.check + " " + f.place
		used[key] = true
		if f.hard || !slices.Contains(allowed, key) {
			left = append(left, f)
		}
	}
	for _, a := range allowed {
		if !used[a] {
			stale = append(stale, a)
		}
	}
	return left, stale
}

// lines reads a text file of this folder, without comments and empty lines.
func lines(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

func TestExcept(t *testing.T) {
	found := []finding{
		{check: "file", place: "a.go"},
		{check: "file", place: "b.go"},
		{check: "file", place: "c.go", hard: true},
	}
	left, stale := except(found, []string{"file a.go", "file c.go", "file gone.go"})
	if got, want := fmt.Sprint(left, stale), "[{file b.go  false} {file c.go  true}] [file gone.go]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
