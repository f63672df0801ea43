package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsNameWhatExists checks that all paths in the documentation exist, in `code` and in links.
func TestDocsNameWhatExists(t *testing.T) {
	root := os.DirFS("../..")
	pages, err := fs.Glob(root, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	err = fs.WalkDir(root, "docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := fs.ReadFile(root, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range named(string(text), filepath.Dir(page)) {
			if _, err := fs.Stat(root, path); err != nil {
				t.Errorf("%s names %s, which is not there: correct the page", page, path)
			}
		}
	}
}

// named returns the paths in a page, relative to the root of the repository.
func named(text, folder string) []string {
	code := regexp.MustCompile("`\\.?/?((?:apis|client|cmd|docs|examples|internal|kcptest|provider|test)/[\\w./-]+)`")
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	var out []string
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		out = append(out, filepath.Clean(strings.TrimSuffix(m[1], "/...")))
	}
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		out = append(out, filepath.Join(folder, m[1]))
	}
	return out
}

func TestNamed(t *testing.T) {
	text := "`internal/a.go` `./docs/x/` `test/...` [b](../b.md#part) [c](https://c) `go test ./internal/a`"
	got := strings.Join(named(text, "docs/adr"), " ")
	if want := "internal/a.go docs/x test docs/b.md"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestEvidenceNamesTests checks that all tests in the pages of evidence exist.
func TestEvidenceNamesTests(t *testing.T) {
	root := os.DirFS("../..")
	pages, err := fs.Glob(root, "docs/evidence/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages of evidence", err)
	}
	known := map[string]bool{}
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	err = fs.WalkDir(root, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(root, path)
		for _, m := range defined.FindAllStringSubmatch(string(text), -1) {
			known[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mention := regexp.MustCompile("`(?:[\\w/]+: )?((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`")
	for _, page := range pages {
		text, err := fs.ReadFile(root, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mention.FindAllStringSubmatch(string(text), -1) {
			if !known[m[1]] {
				t.Errorf("%s names %s, which is no test: correct the page", page, m[1])
			}
		}
	}
}
