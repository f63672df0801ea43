package output

import (
	"fmt"
	"strings"
)

// OrDash returns text, or a dash if it is empty, so that a table has no empty cell.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// Sentence returns text with its first letter in upper case.
func Sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// Count returns a number and a noun in its singular or plural.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// shellPlain are the characters that need no quotes in a shell.
const shellPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:@.-_+"

// ShellWord quotes a word for a shell if it needs that.
func ShellWord(word string) string {
	if word != "" && strings.Trim(word, shellPlain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
