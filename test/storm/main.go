// Command storm attacks a server as a hostile tenant would, and measures the latencies of
// another tenant. It starts the built server with an empty directory, and prints a table in
// Markdown.
//
//	go build -o bin/ ./cmd/kcp
//	go run ./test/storm                     # every storm, ten seconds each
//	go run ./test/storm -run 'reset|yaml'   # some of them
//	go run ./test/storm -short                 # two seconds each, small: checks, measures nothing
//
// One user has a hundred workspaces below their home. A quiet tenant, another user,
// continuously gets and creates config maps in its own home. Storms come from child
// processes at the lowest priority (nice 19): on one machine they would otherwise take
// the processors from the server, which no server can prevent.
//
// The whole form does not judge: it prints the figures beside the targets. The short form
// fails if the server answers 5xx, if a 429 lacks Retry-After, if no storm reaches a limit, or
// if memory grows beyond a generous limit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/unforked/kcp/test/child"
)

func main() { child.Main("storm", dispatch) }

// dispatch runs the program, or the part of a child process.
func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == attackCommand {
		return attack(ctx, os.Stdin, os.Stdout)
	}
	if len(args) > 0 && args[0] == etcdCommand {
		return runEtcd(ctx, args[1:], os.Stdin, os.Stdout)
	}
	return run(ctx, args, os.Stdout, os.Stderr)
}

// options are the flags.
type options struct {
	kcp, dir, pattern string
	short             bool
	lasts             time.Duration // of a storm
	back              time.Duration // time for memory and goroutines to fall again
	most              int64         // bytes of memory at which a storm ends early
	workspaces        int           // of the owner
	nice              int           // of the child processes
	stored            int           // bytes of config maps in each workspace for YAML lists
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("storm", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.kcp, "kcp", "bin/kcp", "the kcp binary")
	f.StringVar(&o.dir, "dir", os.TempDir(), "where servers keep their data: a disk, not tmpfs")
	f.StringVar(&o.pattern, "run", "", "only storms whose name matches this regular expression")
	f.BoolVar(&o.short, "short", false, "two seconds of each storm that is not in a mixture, on one server; figures mean little")
	f.DurationVar(&o.lasts, "for", 10*time.Second, "how long each storm lasts")
	f.DurationVar(&o.back, "back", 5*time.Minute, "how long to wait until memory and goroutines are back")
	f.Int64Var(&o.most, "most", 8<<30, "bytes of memory of the server at which a storm ends early")
	f.IntVar(&o.workspaces, "workspaces", 100, "workspaces of the owner")
	f.IntVar(&o.nice, "nice", 19, "priority of the child processes that attack; less on a machine where other programs run")
	f.IntVar(&o.stored, "stored", 60<<20, "bytes of config maps in each of 12 workspaces that are listed in YAML")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; to choose storms use -run", f.Arg(0))
	}
	if o.short {
		o.lasts, o.back, o.workspaces, o.stored = 2*time.Second, time.Minute, 20, 4<<20
	}
	if o.workspaces < 20 {
		return nil, fmt.Errorf("-workspaces is %d, want 20 or more", o.workspaces)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.kcp, err = filepath.Abs(o.kcp); err != nil {
		return err
	}
	if _, err := os.Stat(o.kcp); err != nil {
		return fmt.Errorf("%w; run: go build -o bin/ ./cmd/kcp", err)
	}
	chosen, err := child.Chosen(o.pattern, storms(), func(s storm) string { return s.name })
	if err != nil {
		return err
	}
	if o.short && o.pattern == "" {
		chosen = withoutMixed(chosen)
	}
	if o.dir, err = os.MkdirTemp(o.dir, "kcp-storm-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	results, err := weather(ctx, o, chosen, stderr)
	if printed := table(stdout, o, results); err == nil {
		err = printed
	}
	if err != nil || !o.short {
		return err
	}
	return judge(results)
}

// weather runs storms one after the other, each with its own server. In the short form, storms
// without flags share one.
func weather(ctx context.Context, o *options, chosen []storm, log io.Writer) (results []result, err error) {
	var w *world
	defer func() { w.stop() }()
	for i, s := range chosen {
		if w == nil || !o.short || s.slowEtcd != w.slowEtcd {
			w.stop()
			if w, err = newWorld(ctx, o, filepath.Join(o.dir, fmt.Sprint(i)), s.slowEtcd); err != nil {
				return results, fmt.Errorf("%s: %w", s.name, err)
			}
		}
		r, err := w.endure(ctx, s)
		if err != nil {
			return results, fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(log, "storm: %s\n", r.line())
		results = append(results, r)
	}
	return results, nil
}
