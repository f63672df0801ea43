package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	maxFile     = 500
	maxFileHard = 1000 // also for tests; no exception
	maxFunc     = 60
	maxFuncP99  = 100 // of all functions together; no exception
	maxParams   = 5
)

// budgets finds files and functions that are too long.
func budgets(r *repo) []finding {
	var out []finding
	var lengths []int
	for _, f := range r.files {
		switch {
		case f.lines > maxFileHard:
			out = append(out, finding{check: "file", place: f.path, hard: true,
				what: fmt.Sprintf("%d lines, and %d is the end: split it", f.lines, maxFileHard)})
		case f.lines > maxFile && !f.test:
			out = append(out, finding{check: "file", place: f.path,
				what: fmt.Sprintf("%d lines, the budget is %d", f.lines, maxFile)})
		}
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				length := r.fset.Position(fn.End()).Line - r.fset.Position(fn.Pos()).Line + 1
				lengths = append(lengths, length)
				out = append(out, function(fn, f.path+":"+funcName(fn), length)...)
			}
		}
	}
	if p := p99(lengths); p > maxFuncP99 {
		out = append(out, finding{check: "function-p99", place: ".", hard: true,
			what: fmt.Sprintf("one function in a hundred is longer than %d lines, the budget is %d", p, maxFuncP99)})
	}
	return out
}

func function(fn *ast.FuncDecl, place string, length int) []finding {
	var out []finding
	if length > maxFunc {
		out = append(out, finding{check: "function", place: place,
			what: fmt.Sprintf("%d lines, the budget is %d", length, maxFunc)})
	}
	if n := fn.Type.Params.NumFields(); n > maxParams {
		out = append(out, finding{check: "parameters", place: place,
			what: fmt.Sprintf("%d parameters, the budget is %d", n, maxParams)})
	}
	return out
}

// funcName returns "Name" or "Type.Name".
func funcName(fn *ast.FuncDecl) string {
	if recv := receiver(fn); recv != "" {
		return recv + "." + fn.Name.Name
	}
	return fn.Name.Name
}

// receiver returns the name of the type of a method.
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	e := fn.Recv.List[0].Type
	for {
		switch t := e.(type) {
		case *ast.StarExpr:
			e = t.X
		case *ast.IndexExpr:
			e = t.X
		case *ast.IndexListExpr:
			e = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

func p99(lengths []int) int {
	if len(lengths) == 0 {
		return 0
	}
	slices.Sort(lengths)
	return lengths[(len(lengths)-1)*99/100]
}

// habits finds init functions, sleeping, and notes about unfinished work.
func habits(r *repo) []finding {
	var out []finding
	for _, f := range r.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !f.test {
				out = append(out, finding{check: "init", place: f.path,
					what: "an init function runs in every program that links the package: make it a call or a table"})
			}
		}
		if !under(f.pkg, "kcptest/...") {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && selector(sel) == "time.Sleep" {
					out = append(out, finding{check: "sleep", place: f.path,
						what: fmt.Sprintf("line %d sleeps: wait for the event itself", r.fset.Position(n.Pos()).Line)})
				}
				return true
			})
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if note := unfinished(c.Text); note != "" {
					out = append(out, finding{check: "unfinished", place: f.path,
						what: fmt.Sprintf("line %d says %s: do it, or leave it out", r.fset.Position(c.Pos()).Line, note)})
				}
			}
		}
	}
	return out
}

func unfinished(comment string) string {
	for word := range strings.FieldsFuncSeq(comment, func(c rune) bool { return c < 'A' || c > 'Z' }) {
		if slices.Contains([]string{"TODO", "FIXME", "XXX"}, word) {
			return word
		}
	}
	return ""
}

// selector returns "x.Y" for a selector on an identifier, such as a package.
func selector(sel *ast.SelectorExpr) string {
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return ""
}

// documented finds packages and exported names without a comment.
func documented(r *repo) []finding {
	var out []finding
	hasDoc := map[string]bool{}
	for _, f := range r.files {
		if !f.test {
			hasDoc[f.pkg] = hasDoc[f.pkg] || f.ast.Doc != nil && len(f.ast.Doc.Text()) > 0
			out = append(out, undocumented(r.fset, f)...)
		}
	}
	for pkg, ok := range hasDoc {
		if !ok {
			out = append(out, finding{check: "package-comment", place: pkg, what: "the package has no comment"})
		}
	}
	slices.SortFunc(out, func(a, b finding) int { return strings.Compare(a.place, b.place) })
	return out
}

func undocumented(fset *token.FileSet, f file) []finding {
	var out []finding
	need := func(name string, doc *ast.CommentGroup) {
		if doc.Text() == "" {
			out = append(out, finding{check: "comment", place: f.path + ":" + name, what: "an exported name without a comment"})
		}
	}
	for _, d := range f.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			recv := receiver(d)
			if d.Name.IsExported() && (recv == "" || ast.IsExported(recv)) {
				need(funcName(d), d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						need(s.Name.Name, either(s.Doc, d.Doc))
						if under(f.pkg, "apis/...") {
							fields(s, need)
						}
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() {
						need(s.Names[0].Name, either(s.Doc, s.Comment, d.Doc))
					}
				}
			}
		}
	}
	return out
}

// fields finds fields of API types without a comment, which kubectl explain shows to users.
// Embedded fields and the items of lists need none.
func fields(s *ast.TypeSpec, need func(string, *ast.CommentGroup)) {
	st, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range st.Fields.List {
		for _, name := range field.Names {
			if name.IsExported() && name.Name != "Items" {
				need(s.Name.Name+"."+name.Name, either(field.Doc, field.Comment))
			}
		}
	}
}

func either(groups ...*ast.CommentGroup) *ast.CommentGroup {
	for _, g := range groups {
		if g.Text() != "" {
			return g
		}
	}
	return nil
}

// repoOf returns a repository with one file.
func repoOf(t *testing.T, folder, name, src string) *repo {
	t.Helper()
	r := &repo{fset: token.NewFileSet()}
	f, err := r.newFile(folder, name, []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	r.files = []file{f}
	return r
}

func keys(found []finding) []string {
	var out []string
	for _, f := range found {
		out = append(out, f.check+" "+f.place)
	}
	return out
}

func TestBudgets(t *testing.T) {
	long := "package p\nfunc (t *T[K]) Long(a, b, c int, d, e, f string) {\n" + strings.Repeat("\n", 58)
	for name, c := range map[string]struct {
		file, src string
		want      []string
	}{
		"60 lines":          {"a.go", long[:len(long)-1] + "}\n", []string{"parameters p/a.go:T.Long"}},
		"61 lines":          {"a.go", long + "\n}\n", []string{"function p/a.go:T.Long", "parameters p/a.go:T.Long"}},
		"not in tests":      {"a_test.go", long + "\n}\n", nil},
		"long file":         {"a.go", "package p\n" + strings.Repeat("\n", 500), []string{"file p/a.go"}},
		"long test":         {"a_test.go", "package p\n" + strings.Repeat("\n", 500), nil},
		"endless test":      {"a_test.go", "package p\n" + strings.Repeat("\n", 1000), []string{"file p/a_test.go"}},
		"endless function":  {"a.go", "package p\nfunc F() {" + strings.Repeat("\n", 101) + "}\n", []string{"function p/a.go:F", "function-p99 ."}},
		"nothing to say of": {"a.go", "package p\nfunc F(a, b, c, d, e int) {}\n", nil},
	} {
		if diff := cmp.Diff(c.want, keys(budgets(repoOf(t, "p", c.file, c.src)))); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestHabits(t *testing.T) {
	src := "package p\nfunc init() {}\nfunc f() { time.Sleep(1) } // TO" + "DO: later\n"
	want := []string{"init p/a.go", "sleep p/a.go", "unfinished p/a.go"}
	if diff := cmp.Diff(want, keys(habits(repoOf(t, "p", "a.go", src)))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := keys(habits(repoOf(t, "kcptest", "a.go", "package kcptest\nfunc f() { time.Sleep(1) }"))); got != nil {
		t.Errorf("kcptest may sleep, got %v", got)
	}
}

func TestDocumented(t *testing.T) {
	src := `package p
func F() {}
// G is documented.
func G() {}
func (t) M() {}
type T struct { A int; B int /* said */ }
const ( C = 1 // said
)
// All of them.
var ( V = 1 )
`
	want := []string{"comment p/a.go:F", "comment p/a.go:T", "package-comment p"}
	got := keys(documented(repoOf(t, "p", "a.go", src)))
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	got = keys(documented(repoOf(t, "apis/x", "a.go", "// Package x.\npackage x\n// T is.\ntype T struct { A int; Items []int; E }\n")))
	if diff := cmp.Diff([]string{"comment apis/x/a.go:T.A"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
