package bounds

import "regexp/syntax"

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
