// Package arch keeps the shape of the repository: which package may import
// which, what must never be linked, and how long a file or a function may get.
// It has no code of its own; "go test ./internal/arch" is the check.
package arch
