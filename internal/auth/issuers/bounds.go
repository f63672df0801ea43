package issuers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp/syntax"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types/ref"
	celparser "github.com/google/cel-go/parser"
	"gopkg.in/go-jose/go-jose.v2"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"

	"github.com/unforked/kcp/internal/request/bounds"
)

// Limits of one identity provider of workspaces. The libraries trust identity providers, which
// operators configure elsewhere. Here tenants configure them, and tokens are verified before
// other limits of requests apply.
const (
	maxConfiguration = 64 << 10  // bytes of its configuration
	maxExpressions   = 32        // CEL expressions
	maxInstructions  = 10_000    // of all regular expressions in these, compiled
	maxDocument      = 256 << 10 // bytes of a document that it serves
	maxKeys          = 32        // keys that it serves
	maxKey           = 16 << 10  // bytes of a key, with its certificates
	maxModulus       = 4096      // bits of an RSA key: a verification takes less than a millisecond
)

// A boundedCompiler compiles the CEL expressions of one identity provider. It refuses expressions
// that take too much memory once they are compiled.
type boundedCompiler struct {
	authenticationcel.Compiler

	// compute runs an evaluation, and limits how many of a tenant run.
	compute      func(ctx context.Context, evaluate func()) error
	expressions  int
	instructions int
}

func newBoundedCompiler(compute func(context.Context, func()) error) *boundedCompiler {
	return &boundedCompiler{Compiler: authenticationcel.NewDefaultCompiler(), compute: compute}
}

// CompileClaimsExpression implements [authenticationcel.Compiler].
func (b *boundedCompiler) CompileClaimsExpression(e authenticationcel.ExpressionAccessor) (authenticationcel.CompilationResult, error) {
	return b.compile(e, b.Compiler.CompileClaimsExpression)
}

// CompileUserExpression implements [authenticationcel.Compiler].
func (b *boundedCompiler) CompileUserExpression(e authenticationcel.ExpressionAccessor) (authenticationcel.CompilationResult, error) {
	return b.compile(e, b.Compiler.CompileUserExpression)
}

func (b *boundedCompiler) compile(e authenticationcel.ExpressionAccessor, compile func(authenticationcel.ExpressionAccessor) (authenticationcel.CompilationResult, error)) (authenticationcel.CompilationResult, error) {
	if err := b.check(e.GetExpression()); err != nil {
		return authenticationcel.CompilationResult{}, &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: err.Error()}
	}
	r, err := compile(e)
	if err == nil {
		r.Program = computed{r.Program, b.compute}
	}
	return r, err
}

// check returns an error if an expression exceeds a limit. It does not compile the expression.
func (b *boundedCompiler) check(expression string) error {
	if b.expressions++; b.expressions > maxExpressions {
		return fmt.Errorf("an identity provider has at most %d expressions", maxExpressions)
	}
	parser, err := celparser.NewParser(celparser.Macros(celparser.AllMacros...))
	if err != nil {
		return err
	}
	parsed, errs := parser.Parse(common.NewTextSource(expression))
	if len(errs.GetErrors()) > 0 {
		return nil // the compiler reports it
	}
	ast.PostOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if pattern, ok := patternOf(e); ok && err == nil {
			err = b.checkPattern(pattern)
		}
	}))
	return err
}

// patternOf returns the regular expression of a call, and whether e is a call with one.
func patternOf(e ast.Expr) (ast.Expr, bool) {
	if e.Kind() != ast.CallKind {
		return nil, false
	}
	call := e.AsCall()
	args := call.Args()
	switch name := call.FunctionName(); {
	case name != "matches" && name != "find" && name != "findAll":
		return nil, false
	case call.IsMemberFunction() && len(args) > 0:
		return args[0], true
	case len(args) > 1: // matches(text, pattern)
		return args[1], true
	default:
		return nil, false
	}
}

// checkPattern refuses patterns that are compiled for each token, or that are too large.
func (b *boundedCompiler) checkPattern(pattern ast.Expr) error {
	if pattern.Kind() != ast.LiteralKind {
		return errors.New("a regular expression must be a literal")
	}
	text, _ := pattern.AsLiteral().Value().(string)
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil //nolint:nilerr // the compiler reports it
	}
	if b.instructions += bounds.Instructions(parsed); b.instructions > maxInstructions {
		return fmt.Errorf("the regular expressions of an identity provider repeat too much: they would be compiled to some %d instructions, and may have %d", b.instructions, maxInstructions)
	}
	return nil
}

// computed is a CEL program that is evaluated by compute.
type computed struct {
	cel.Program
	compute func(ctx context.Context, evaluate func()) error
}

// ContextEval implements [cel.Program].
func (c computed) ContextEval(ctx context.Context, input any) (result ref.Val, details *cel.EvalDetails, err error) {
	if refused := c.compute(ctx, func() { result, details, err = c.Program.ContextEval(ctx, input) }); refused != nil {
		return nil, nil, refused
	}
	return result, details, err
}

// boundedCalls is the transport to an identity provider. It fails calls whose response exceeds a
// limit, or is not a JSON object.
//
// So distributed claims are not supported: their source answers with a token. The library follows
// the issuer of each such token for as long as the provider is connected.
type boundedCalls struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b boundedCalls) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if err := checkDocument(body); err != nil {
		return nil, fmt.Errorf("%s: %w", req.URL.Path, err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// checkDocument returns an error if a document of an identity provider exceeds a limit.
func checkDocument(body []byte) error {
	if len(body) > maxDocument {
		return fmt.Errorf("the document has more than %d bytes", maxDocument)
	}
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return fmt.Errorf("the document is no JSON object: %w", err)
	}
	if len(document.Keys) > maxKeys {
		return fmt.Errorf("there are %d keys, and the limit is %d", len(document.Keys), maxKeys)
	}
	for n, text := range document.Keys {
		if err := checkKey(text); err != nil {
			return fmt.Errorf("key %d: %w", n, err)
		}
	}
	return nil
}

func checkKey(text []byte) error {
	if len(text) > maxKey {
		return fmt.Errorf("the key has %d bytes, and the limit is %d", len(text), maxKey)
	}
	var key jose.JSONWebKey
	if err := key.UnmarshalJSON(text); err != nil {
		return err
	}
	return bounds.PublicKey(key.Key, maxModulus)
}
