package conversion

import (
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// readBy returns the fields of self that an expression reads. A field of which only a part is read is
// not among them.
func readBy(a *ast.AST) []path {
	var all []path
	ast.MatchDescendants(ast.NavigateAST(a), func(e ast.NavigableExpr) bool {
		if p, ok := fieldOf(e); ok && len(p) > 0 {
			if parent, inside := e.Parent(); !inside || !leads(parent, e) {
				all = append(all, p)
			}
		}
		return false
	})
	return all
}

// leads reports whether an expression is a field of the field e.
func leads(parent, e ast.NavigableExpr) bool {
	of := selected(parent)
	return of != nil && of.ID() == e.ID()
}

// fieldOf returns the field of self that e is.
func fieldOf(e ast.Expr) (path, bool) {
	if e.Kind() == ast.IdentKind {
		return nil, e.AsIdent() == "self"
	}
	of := selected(e)
	if of == nil {
		return nil, false
	}
	p, ok := fieldOf(of)
	name, named := nameIn(e)
	return append(slices.Clip(p), name), ok && named
}

// selected returns the expression of which e is a field, nil if it is none. A test whether a field is
// set reads no field.
func selected(e ast.Expr) ast.Expr {
	switch e.Kind() {
	case ast.SelectKind:
		if s := e.AsSelect(); !s.IsTestOnly() {
			return s.Operand()
		}
	case ast.CallKind:
		call := e.AsCall()
		if name := call.FunctionName(); len(call.Args()) == 2 && (name == operators.Index || name == operators.OptIndex || name == operators.OptSelect) {
			return call.Args()[0]
		}
	}
	return nil
}

// nameIn returns the name of the field that e selects, if it is constant.
func nameIn(e ast.Expr) (string, bool) {
	if e.Kind() == ast.SelectKind {
		return unescaped(e.AsSelect().FieldName()), true
	}
	arg := e.AsCall().Args()[1]
	if arg.Kind() != ast.LiteralKind {
		return "", false
	}
	name, ok := arg.AsLiteral().Value().(string)
	if e.AsCall().FunctionName() == operators.OptSelect {
		name = unescaped(name)
	}
	return name, ok
}

// unescaped returns the name of the field that has a name in an expression.
func unescaped(name string) string {
	if field, ok := apiservercel.Unescape(name); ok {
		return field
	}
	return name
}
