package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listed is the output of "go list" for a package.
type listed struct {
	ImportPath, Dir string
	DepOnly         bool
	Module          *struct{ Path string }
	GoFiles         []string
	CgoFiles        []string
	IgnoredGoFiles  []string
	TestGoFiles     []string
	XTestGoFiles    []string
	Imports, Deps   []string
}

// file is one parsed hand-written Go file.
type file struct {
	path  string // from the root of the repository
	pkg   string // likewise; "." is the root
	test  bool
	lines int
	ast   *ast.File
}

// repo is the data of the repository for the checks.
type repo struct {
	root     string // absolute
	module   string
	fset     *token.FileSet
	packages map[string]listed // ours, by folder from the root
	modules  map[string]string // import path -> module, standard library left out
	files    []file
}

// load runs "go list" once, and parses our own files.
func load(t *testing.T) *repo {
	t.Helper()
	r := &repo{
		root:     filepath.Dir(strings.TrimSpace(string(run(t, ".", "env", "GOMOD")))),
		module:   strings.TrimSpace(string(run(t, ".", "list", "-m"))),
		fset:     token.NewFileSet(),
		packages: map[string]listed{},
		modules:  map[string]string{},
	}
	fields := "-json=ImportPath,Dir,DepOnly,Module,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Imports,Deps"
	list := json.NewDecoder(bytes.NewReader(run(t, r.root, "list", "-e", "-deps", fields, "./...")))
	for {
		var p listed
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("read the answer of go list: %v", err)
		}
		if p.Module != nil {
			r.modules[p.ImportPath] = p.Module.Path
		}
		if !p.DepOnly {
			folder := r.folder(p.ImportPath)
			r.packages[folder] = p
			r.parse(t, folder, p)
		}
	}
	return r
}

func run(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// folder returns the folder of one of our packages, and the import path of other packages.
func (r *repo) folder(importPath string) string {
	if importPath == r.module {
		return "."
	}
	return strings.TrimPrefix(importPath, r.module+"/")
}

func (r *repo) own(importPath string) bool {
	return importPath == r.module || strings.HasPrefix(importPath, r.module+"/")
}

func (r *repo) parse(t *testing.T, folder string, p listed) {
	t.Helper()
	tests := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, tests) {
		if generated(name) {
			continue
		}
		src, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.newFile(folder, name, src)
		if err != nil {
			t.Fatal(err)
		}
		r.files = append(r.files, f)
	}
}

func (r *repo) newFile(folder, name string, src []byte) (file, error) {
	path := filepath.ToSlash(filepath.Join(folder, name))
	parsed, err := parser.ParseFile(r.fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	return file{
		path: path, pkg: folder, ast: parsed,
		test:  strings.HasSuffix(name, "_test.go"),
		lines: bytes.Count(src, []byte("\n")),
	}, err
}

func generated(name string) bool {
	return strings.HasPrefix(name, "zz_generated") || strings.HasSuffix(name, "_generated.go")
}
