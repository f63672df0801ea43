// Package arch checks the structure of the repository: allowed imports between packages, forbidden
// dependencies, and the maximum length of files and functions. It has only tests; run
// "go test ./internal/arch".
package arch
