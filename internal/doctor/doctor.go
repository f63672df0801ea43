// Package doctor checks the machine, the files and the etcd of a server, and says what to do
// about each problem. The server may run or not. Nothing is changed, except for a temporary
// file that measures the disk.
package doctor

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/unforked/kcp/internal/storage/etcd"
)

// A Level says how serious a finding is.
type Level string

// The levels of findings.
const (
	OK      Level = "ok"
	Warning Level = "warning" // the server works, with less speed or safety
	Problem Level = "problem" // the server does not work, or not for long
)

// A Finding is the result of a check.
type Finding struct {
	// Check is the name of the check.
	Check string `json:"check"`
	// Level says how serious it is.
	Level Level `json:"level"`
	// Message is what was found.
	Message string `json:"message"`
	// Do is what to do about it; empty if nothing.
	Do string `json:"do,omitempty"`
}

// A Server is what to check.
type Server struct {
	// Dir is the root directory.
	Dir string
	// Etcd is the etcd; Prefix is that of the keys, without a slash at the end.
	Etcd   etcd.Config
	Prefix string
	// Kubernetes is the minor version of this program.
	Kubernetes string
	// Listen is the address that the server listens at.
	Listen string
	// URL is the one that clients use; empty if it is the address.
	URL string
	// CertFile and KeyFile are the serving certificate; empty for the server's own.
	CertFile, KeyFile string
}

// data returns the directory of the embedded etcd.
func (s Server) data() string {
	if s.Etcd.Dir != "" {
		return s.Etcd.Dir
	}
	return filepath.Join(s.Dir, "etcd-server")
}

func (s Server) external() bool { return len(s.Etcd.Servers) > 0 }

// report collects findings.
type report struct {
	check string
	all   []Finding
}

func (r *report) ok(format string, args ...any) {
	r.all = append(r.all, Finding{r.check, OK, fmt.Sprintf(format, args...), ""})
}

// warn adds a warning. do is what to do.
func (r *report) warn(do, format string, args ...any) {
	r.all = append(r.all, Finding{r.check, Warning, fmt.Sprintf(format, args...), do})
}

// problem adds a problem. do is what to do.
func (r *report) problem(do, format string, args ...any) {
	r.all = append(r.all, Finding{r.check, Problem, fmt.Sprintf(format, args...), do})
}

// Examine returns the findings of all checks.
func Examine(ctx context.Context, s Server) []Finding {
	r := &report{}
	running := false
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"directory", func() { running = s.directory(r) }},
		{"database", func() { s.database(ctx, r, running) }},
		{"disk", func() { s.disk(r) }},
		{"certificates", func() { s.certificates(r) }},
		{"server", func() { s.serving(ctx, r, running) }},
		{"limits", func() { limits(r) }},
		{"clock", func() { s.clock(r) }},
	} {
		r.check = c.name
		c.do()
	}
	return r.all
}

// Worst returns the highest level of findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Problem || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}
