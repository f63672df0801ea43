package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocsAreTried checks that what the documentation tells people to type or to
// write is in something that tests run: commands in a script, Go code in an example
// or a test, YAML in either. The walk-through of the README is one script.
func TestDocsAreTried(t *testing.T) {
	root := filepath.Join("..", "..")
	scripts := sources(t, filepath.Join(root, "test", "script"), ".txtar")
	code := slices.Concat(sources(t, filepath.Join(root, "examples"), ".go", ".yaml"), sources(t, filepath.Join(root, "client"), "_test.go"),
		sources(t, filepath.Join(root, "kcptest"), "_test.go"), [][]string{lines(t, filepath.Join(root, "kcp_test.go"))}, scripts)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		tried := scripts
		if filepath.Base(page) == "README.md" {
			tried = [][]string{lines(t, filepath.Join(root, "test", "script", "readme.txtar"))}
		}
		for _, b := range blocks(lines(t, page)) {
			switch b.language {
			case "sh":
				for _, line := range b.lines {
					if !typed(line, tried) {
						t.Errorf("%s says to type %q, which is in no script that tests it", page, line)
					}
				}
			case "go", "yaml":
				if !slices.ContainsFunc(code, func(source []string) bool { return holds(source, b.lines) }) {
					t.Errorf("%s shows code that is in no test or example:\n%s", page, strings.Join(b.lines, "\n"))
				}
			case "text":
			default:
				t.Errorf("%s has a block of %q: say sh, go, yaml or text", page, b.language)
			}
		}
	}
}

type block struct {
	language string
	lines    []string
}

// blocks returns the fenced blocks of a page.
func blocks(page []string) (all []block) {
	open := false
	for _, line := range page {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open:
			open = false
		case fence:
			open = true
			all = append(all, block{language: language})
		case open && line != "":
			last := &all[len(all)-1]
			last.lines = append(last.lines, line)
		}
	}
	return all
}

// How scripts differ from what people type: they expect something of the outcome,
// run servers in the background, and leave the port to chance.
var (
	expected   = regexp.MustCompile(`^(! )?exec `)
	background = regexp.MustCompile(`( --secure-port 0)?( &\w*&)?$`)
)

// typed reports whether a script has the command in line.
func typed(line string, scripts [][]string) bool {
	if line == "make check" || line == goRun+" start" || strings.HasPrefix(line, "export ") || strings.HasPrefix(line, "#") {
		return true
	}
	line = strings.Replace(line, goRun, "kcp", 1)
	return slices.ContainsFunc(scripts, func(script []string) bool {
		return slices.ContainsFunc(script, func(s string) bool {
			return expected.MatchString(s) && background.ReplaceAllString(expected.ReplaceAllString(s, ""), "") == line
		})
	})
}

// holds reports whether part is in the whole, in one piece.
func holds(whole, part []string) bool {
	for i := 0; i+len(part) <= len(whole); i++ {
		if slices.Equal(whole[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// sources returns the lines of all files below dir whose names end so.
func sources(t *testing.T, dir string, suffixes ...string) (all [][]string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(path, s) }) {
			all = append(all, lines(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// lines returns the lines of a file that have anything in them, without indentation
// by tabs: code in a page begins further left.
func lines(t *testing.T, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.Trim(line, "\t\n"); line != "" {
			all = append(all, line)
		}
	}
	return all
}

func TestBlocks(t *testing.T) {
	script := [][]string{{"exec kcp start --secure-port 0 &server&", "! exec kubectl get x", "stdout y"}}
	for line, want := range map[string]bool{
		"kcp start": true, "go run ./cmd/kcp start": true, "kubectl get x": true, "export A=b": true,
		"stdout y": false, "kubectl get": false, "kcp start --secure-port 0": false,
	} {
		if typed(line, script) != want {
			t.Errorf("%q: %v", line, !want)
		}
	}
	got := blocks([]string{"a", "```sh", "b", "c", "```", "d", "```go", "e", "```"})
	if len(got) != 2 || got[0].language != "sh" || !slices.Equal(got[0].lines, []string{"b", "c"}) || !slices.Equal(got[1].lines, []string{"e"}) {
		t.Errorf("%+v", got)
	}
	if !holds([]string{"a", "b", "c"}, []string{"b", "c"}) || holds([]string{"a", "b", "c"}, []string{"a", "c"}) {
		t.Error("what is held in one piece is not told")
	}
}
