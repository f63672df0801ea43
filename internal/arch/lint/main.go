// Command lint reports likely mistakes in the packages of the project. It runs the checks of
// staticcheck, go vet, errcheck and go-errorlint in one pass, because most of their time
// goes into loading source.
package main

import (
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/suite/vet"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/lintcmd"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

const project = "github.com/unforked/kcp"

func main() {
	cmd := lintcmd.NewCommand("lint")
	cmd.ParseFlags(os.Args[1:])
	all := slices.Concat(simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers, []*lint.Analyzer{unused.Analyzer, unchecked()})
	for _, a := range append(slices.Clone(vet.Suite), errorlint.NewAnalyzer()) {
		all = append(all, documented(a))
	}
	seen := map[*analysis.Analyzer]bool{}
	for _, a := range all {
		lighten(a.Analyzer, seen)
	}
	cmd.AddAnalyzers(all...)
	cmd.Run()
}

// documented returns a with the description that the command needs.
func documented(a *analysis.Analyzer) *lint.Analyzer {
	title, text, _ := strings.Cut(a.Doc, "\n")
	return &lint.Analyzer{Doc: &lint.RawDocumentation{Title: title, Text: text, Severity: lint.SeverityWarning}, Analyzer: a}
}

// unchecked returns errcheck for the code of the product. Tests may ignore errors.
func unchecked() *lint.Analyzer {
	a := *errcheck.Analyzer
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		if strings.Contains(pass.Pkg.Path(), "/test/") {
			return reflect.Zero(a.ResultType).Interface(), nil
		}
		product := *pass
		product.Files = nil
		for _, f := range pass.Files {
			if !strings.HasSuffix(pass.Fset.Position(f.Package).Filename, "_test.go") {
				product.Files = append(product.Files, f)
			}
		}
		return run(&product)
	}
	return documented(&a)
}

// lighten restricts an analyzer that follows code, and those that it requires, to the code of
// this project: the 2,000 packages of other modules would take minutes. Lighter analyzers
// still read the other modules. They find deprecated declarations, functions that format like
// Printf, and functions that never return. lighten reports whether a follows code.
func lighten(a *analysis.Analyzer, seen map[*analysis.Analyzer]bool) bool {
	if heavy, ok := seen[a]; ok {
		return heavy
	}
	heavy := len(a.FactTypes) > 0 && a != ctrlflow.Analyzer && a != printf.Analyzer && a.Name != "fact_deprecated"
	for _, r := range a.Requires {
		heavy = lighten(r, seen) || heavy
	}
	heavy = heavy || a.Name == "buildir"
	seen[a] = heavy
	if !heavy {
		return false
	}
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		if path := pass.Pkg.Path(); path == project || strings.HasPrefix(path, project+"/") {
			return run(pass)
		}
		if a.ResultType == nil {
			return nil, nil
		}
		return reflect.Zero(a.ResultType).Interface(), nil
	}
	return true
}
