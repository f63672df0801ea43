package arch

import (
	"errors"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// constant has functions whose results are never changed. A package variable with such a result is
// a constant that the language cannot express.
func constant() []string {
	return []string{
		"errors.New", "fmt.Errorf", "regexp.MustCompile", "strings.NewReplacer",
		"sets.New", "resource.MustParse", "version.MustParse", "field.NewPath",
		"sync.OnceValue", "sync.OnceValues", // computed late, but once
		"runtime.NewSchemeBuilder", "GroupVersion.WithKind", "GroupVersion.WithResource",
		"SchemeGroupVersion.WithKind", "SchemeGroupVersion.WithResource",
	}
}

// globals finds package variables that can change while the program runs: variables with an
// assignment, with an address operator, or with a mutable initial value. Tables, errors, patterns,
// embedded files and assertions like "var _ Interface = T{}" are allowed.
func globals(r *repo) []finding {
	byPackage := map[string][]file{}
	var order []string
	for _, f := range r.files {
		if !f.test {
			if byPackage[f.pkg] == nil {
				order = append(order, f.pkg)
			}
			byPackage[f.pkg] = append(byPackage[f.pkg], f)
		}
	}
	var out []finding
	for _, pkg := range order {
		changed := changedIn(r.fset, byPackage[pkg])
		for _, f := range byPackage[pkg] {
			for _, d := range f.ast.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
					out = append(out, mutable(g, f.path, changed)...)
				}
			}
		}
	}
	return out
}

func mutable(g *ast.GenDecl, path string, changed map[string]bool) []finding {
	var out []finding
	for _, spec := range g.Specs {
		s := spec.(*ast.ValueSpec)
		embedded := strings.Contains(rawText(first(s.Doc, g.Doc)), "//go:embed ")
		for i, name := range s.Names {
			what := ""
			switch {
			case name.Name == "_" || embedded:
			case changed[name.Name]:
				what = "a package variable that is changed"
			case len(s.Values) <= i:
				what = "a package variable without a value is there to be changed"
			case !fixed(s.Values[i]):
				what = "a package variable whose value can change"
			}
			if what != "" {
				out = append(out, finding{check: "global", place: path + ":" + name.Name,
					what: what + ": make it a field, so that two servers can live in one process"})
			}
		}
	}
	return out
}

// first is either for comments that hold directives, which Text leaves out.
func first(a, b *ast.CommentGroup) *ast.CommentGroup {
	if a != nil {
		return a
	}
	return b
}

func rawText(g *ast.CommentGroup) string {
	if g == nil {
		return ""
	}
	var text strings.Builder
	for _, c := range g.List {
		text.WriteString(c.Text + "\n")
	}
	return text.String()
}

// fixed reports whether an initial value is immutable.
func fixed(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit, *ast.FuncLit, *ast.Ident, *ast.SelectorExpr:
		return true
	case *ast.BinaryExpr:
		return fixed(e.X) && fixed(e.Y)
	case *ast.ParenExpr:
		return fixed(e.X)
	case *ast.UnaryExpr:
		return e.Op != token.AND && fixed(e.X)
	case *ast.CompositeLit:
		sel, ok := e.Type.(*ast.SelectorExpr)
		return !ok || !strings.HasPrefix(selector(sel), "sync.") && !strings.HasPrefix(selector(sel), "atomic.")
	case *ast.CallExpr:
		return fixedCall(e)
	}
	return false
}

func fixedCall(call *ast.CallExpr) bool {
	fun := call.Fun
	if generic, ok := fun.(*ast.IndexExpr); ok {
		fun = generic.X
	}
	switch fun := fun.(type) {
	case *ast.SelectorExpr:
		return slices.Contains(constant(), selector(fun))
	case *ast.ArrayType: // []byte("text")
		return true
	}
	return false
}

// changedIn returns the package variables that a package assigns, increments, deletes from or takes
// the address of. It resolves types without imports, which is enough to distinguish a package
// variable from a local one of the same name.
func changedIn(fset *token.FileSet, files []file) map[string]bool {
	var parsed []*ast.File
	for _, f := range files {
		parsed = append(parsed, f.ast)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := cfg.Check(files[0].pkg, fset, parsed, info) // imports are missing by intent
	changed := map[string]bool{}
	mark := func(e ast.Expr) {
		if v, ok := info.Uses[base(e)].(*types.Var); ok && v.Parent() == pkg.Scope() {
			changed[v.Name()] = true
		}
	}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, e := range n.Lhs {
					mark(e)
				}
			case *ast.IncDecStmt:
				mark(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					mark(n.X)
				}
			case *ast.CallExpr:
				if fun, ok := n.Fun.(*ast.Ident); ok && (fun.Name == "delete" || fun.Name == "clear") && len(n.Args) > 0 {
					mark(n.Args[0])
				}
			}
			return true
		})
	}
	return changed
}

// base returns x of x, x.f, x[i] and (*x), or nil.
func base(e ast.Expr) *ast.Ident {
	for {
		switch t := e.(type) {
		case *ast.Ident:
			return t
		case *ast.SelectorExpr:
			e = t.X
		case *ast.IndexExpr:
			e = t.X
		case *ast.StarExpr:
			e = t.X
		case *ast.ParenExpr:
			e = t.X
		default:
			return nil
		}
	}
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) {
	return nil, errors.New("imports are not read")
}

func TestGlobals(t *testing.T) {
	src := `package p
import "sync"
var errGone = errors.New("gone")
var table = []rule{{1}, {2}}
var pattern, group = regexp.MustCompile("x"), schema.GroupVersion{Group: "x"}
var known = sets.New[string]("a")
var _ Interface = T{}
var f = func() {}
var raw = []byte("x")
//go:embed x.txt
var text string
var mu sync.Mutex
var cache = map[string]int{}
var count = 0
var server = &Server{}
var once = sync.Once{}
var loaded = load()
func g() {
	cache["x"] = 1
	count++
	table := 1
	table = 2
	other := known
	_ = other
}
`
	want := []string{
		"global p/a.go:mu", "global p/a.go:cache", "global p/a.go:count",
		"global p/a.go:server", "global p/a.go:once", "global p/a.go:loaded",
	}
	if diff := cmp.Diff(want, keys(globals(repoOf(t, "p", "a.go", src)))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
