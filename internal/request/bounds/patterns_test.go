package bounds

import (
	"regexp/syntax"
	"testing"
)

// The compiled size of a regular expression is known before it is compiled.
func TestInstructions(t *testing.T) {
	for _, pattern := range []string{"", "a", "^[a-z0-9]([-a-z0-9]{0,251}[a-z0-9])?$", "(a|b){10,20}", "((a{3}){4}){5}", "x{1000}", "x{0,1000}", "(?i)stra(ss|ß)e", `\pL+\d*[^\x00-\x{10FFFF}]?`, "a*b+c?(?:d{2,})"} {
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		estimate := Instructions(parsed)
		compiled, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(compiled.Inst); n > 2*estimate+10 || estimate > 3*n+100 {
			t.Errorf("%q: %d instructions, estimated as %d", pattern, n, estimate)
		}
	}
}
