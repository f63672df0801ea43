package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the fingerprints of the functions into testdata/functions.txt")

// The functions of the libraries that code here depends on are those that it was written for.
func TestFunctions(t *testing.T) {
	const file = "testdata/functions.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	var packages []string
	for _, line := range lines {
		if fields := strings.Fields(line); len(fields) == 4 && fields[0] != "#" {
			packages = append(packages, fields[0])
		}
	}
	folders := foldersOf(t, packages...)
	for i, line := range lines {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(fields) != 4 {
			t.Errorf("%s:%d: want a package, a function, a fingerprint and a file", file, i+1)
			continue
		}
		pkg, name, known, ours := fields[0], fields[1], fields[2], fields[3]
		if _, err := os.Stat(filepath.Join("../..", ours)); err != nil {
			t.Errorf("%s:%d: %v; name the file that depends on %s", file, i+1, err, name)
		}
		sum := sha256.Sum256([]byte(functionIn(t, folders[pkg], name)))
		now := hex.EncodeToString(sum[:6])
		if *update {
			lines[i] = strings.Join([]string{pkg, name, now, ours}, " ")
		} else if now != known {
			t.Errorf("%s in %s has changed: adapt %s, and set the fingerprint %s", name, pkg, ours, now)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// sourceOf returns the code of a function, "Name" or "Type.Name", of a package.
func sourceOf(t *testing.T, pkg, name string) string {
	t.Helper()
	return functionIn(t, foldersOf(t, pkg)[pkg], name)
}

// foldersOf returns the folders of packages.
func foldersOf(t *testing.T, packages ...string) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-find", "-f", "{{.ImportPath}} {{.Dir}}"}, packages...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	folders := map[string]string{}
	for line := range strings.Lines(string(out)) {
		pkg, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		folders[pkg] = folder
	}
	return folders
}

// functionIn returns the code of a function without its comments. It is empty if the folder has
// no such function.
func functionIn(t *testing.T, folder, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(name[strings.LastIndexByte(name, '.')+1:]+"(")) {
			continue // parsing every file takes seconds
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && nameOf(fn) == name {
				var code bytes.Buffer
				if err := printer.Fprint(&code, token.NewFileSet(), fn); err != nil {
					t.Fatal(err)
				}
				return code.String()
			}
		}
	}
	t.Errorf("%s has no function %s any more", folder, name)
	return ""
}

func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	of := fn.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if ident, ok := of.(*ast.Ident); ok {
		return ident.Name + "." + fn.Name.Name
	}
	return ""
}
