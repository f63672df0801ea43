package bounds

import (
	"fmt"
	"regexp/syntax"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	celparser "github.com/google/cel-go/parser"
)

// Limits of the regular expressions of one object. An expression with repetitions takes a few
// bytes, but compiled up to 128 MiB. The limits are many times those of the largest known
// definitions and policies.
const (
	maxPatterns    = 500     // distinct expressions
	maxPatternSize = 10_000  // instructions of one expression
	maxPatternsSum = 100_000 // instructions of all expressions
)

// Patterns counts the regular expressions of one object, which are kept compiled. It compiles
// none. The zero value is ready to use.
type Patterns struct {
	seen map[string]bool
	size int
	cel  *celparser.Parser
}

// Add adds a regular expression. It returns an error if a limit is exceeded. Texts that are no
// regular expressions do not count.
func (p *Patterns) Add(pattern string) error {
	if pattern == "" || p.seen[pattern] {
		return nil
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil //nolint:nilerr // its compiler reports the error
	}
	if p.seen == nil {
		p.seen = map[string]bool{}
	}
	p.seen[pattern] = true
	size := Instructions(parsed)
	p.size += size
	switch {
	case size > maxPatternSize:
		return fmt.Errorf("the regular expression %q repeats too much: it would be compiled to some %d instructions, and may have %d", Shortened(pattern), size, maxPatternSize)
	case p.size > maxPatternsSum:
		return fmt.Errorf("the regular expressions are too large: they may be compiled to %d instructions together", maxPatternsSum)
	case len(p.seen) > maxPatterns:
		return fmt.Errorf("there are too many regular expressions: at most %d are allowed", maxPatterns)
	}
	return nil
}

// AddCEL adds the string literals of a CEL expression, which may be regular expressions: these are
// compiled together with it. It returns an error if a limit is exceeded. Texts that are no CEL
// expressions do not count.
func (p *Patterns) AddCEL(expression string) (err error) {
	if !strings.Contains(expression, "matches") && !strings.Contains(expression, "find") {
		return nil
	}
	if p.cel == nil {
		if p.cel, err = celparser.NewParser(celparser.Macros(celparser.AllMacros...)); err != nil {
			return err
		}
	}
	parsed, errs := p.cel.Parse(common.NewTextSource(expression))
	if len(errs.GetErrors()) > 0 {
		return nil // its compiler reports the error
	}
	ast.PostOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.LiteralKind || err != nil {
			return
		}
		if literal, ok := e.AsLiteral().Value().(string); ok {
			err = p.Add(literal)
		}
	}))
	return err
}

// Instructions returns the estimated number of instructions of all regular expressions.
func (p *Patterns) Instructions() int { return p.size }

// Shortened returns the beginning of a text of a tenant, for messages.
func Shortened(pattern string) string {
	const enough = 64
	if len(pattern) > enough {
		return pattern[:enough] + "..."
	}
	return pattern
}

// Instructions estimates the number of instructions of a regular expression, without
// compiling it.
func Instructions(re *syntax.Regexp) int {
	sum := 1
	if re.Op == syntax.OpLiteral {
		sum = len(re.Rune)
	}
	for _, sub := range re.Sub {
		sum += Instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		sum *= max(re.Min, re.Max, 1)
	}
	return min(sum, 1<<30)
}
