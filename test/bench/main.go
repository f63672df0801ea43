// Command bench compares kcp with a stock Kubernetes API server of the same version, in one
// run on one machine, and prints a table in Markdown. It starts the servers as child
// processes, uses their public APIs, and deletes all their data at the end.
//
//	go build -o bin/ ./cmd/kcp
//	go -C test/tools build -o "$PWD/bin/" ./cmd/kube
//	go run ./test/bench                       # everything
//	go run ./test/bench -run workspaces       # one case
//	go run ./test/bench -short                # every case with tiny counts
//
// What the figures mean:
//
//   - CPU is the processor time, user and kernel, of the API server and etcd on
//     both sides. The CPU of the stock controller manager is shown, but it is not in
//     the ratio; kcp's controllers are in its one process.
//   - Memory is anonymous resident memory. It includes etcd's index, but not etcd's
//     mapped file.
//   - Both serve TLS and HTTP/2 to the same client with bearer tokens. RBAC grants the
//     user everything. Both sync to disk.
//   - Memory of a server at rest is measured after -settle, a minute by default. After
//     a tree of workspaces is deleted, memory is measured after five times that.
//   - A workspace is usable when a config map is written in it. A namespace is usable
//     when its default service account exists and a config map is written.
//
// It does not judge the figures: it fails only if an operation fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/test/child"
)

func main() {
	child.Main("bench", func(ctx context.Context, args []string) error { return run(ctx, args, os.Stdout, os.Stderr) })
}

// options are the values of the flags.
type options struct {
	kcp, kube string
	subjects  string
	pattern   string
	short     bool
	json      bool
	dir       string
	timeout   time.Duration
	encoding  string
	plan      plan
}

// plan holds the amount of work of each case.
type plan struct {
	starts      int           // fresh starts; the median is reported
	rounds      int           // the subjects take turns this many times in a case
	clients     int           // concurrent clients
	operations  int           // of each kind, in all rounds together
	listed      int           // config maps in the list
	lists       int           // lists while others write, in all rounds together
	size        int           // bytes of a config map's value
	single      int           // workspaces made by one client, in all rounds together
	many        int           // workspaces made by all clients, in all rounds together
	definitions int           // of custom resources, made one after the other
	watches     int           // each in a workspace of its own
	tree        int           // workspaces in a tree
	children    int           // below each workspace of a tree, but below its leaves
	crowd       int           // workspaces below root
	data        int           // MiB in a server that is then started again
	object      int           // bytes of each of its objects; 0 for a mix of sizes
	viewed      string        // numbers of tenants of a provider's view
	footprints  string        // numbers of workspaces at which memory is measured
	featured    int           // workspaces that use features and drop them
	settle      time.Duration // between the last write and the measurement
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.kcp, "kcp", "bin/kcp", "the kcp binary")
	f.StringVar(&o.kube, "kube", "bin/kube", "the binary that test/tools builds")
	f.StringVar(&o.subjects, "subjects", "kcp,stock", "what to measure; the ratio is the first to the second")
	f.StringVar(&o.pattern, "run", "", "only cases whose name matches this regular expression")
	f.BoolVar(&o.short, "short", false, "every case with tiny counts: it shows that everything works, its figures mean little")
	f.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	f.StringVar(&o.dir, "dir", os.TempDir(), "where the servers keep their data: a disk, not tmpfs")
	f.DurationVar(&o.timeout, "timeout", 2*time.Hour, "give up after this time")
	f.StringVar(&o.encoding, "encoding", "json", "of config maps: json or protobuf")
	p := &o.plan
	f.IntVar(&p.starts, "starts", 5, "fresh starts")
	f.IntVar(&p.rounds, "rounds", 4, "turns that the subjects take in each case")
	f.IntVar(&p.clients, "clients", 8, "concurrent clients")
	f.IntVar(&p.operations, "operations", 8000, "config map operations of each kind")
	f.IntVar(&p.listed, "listed", 50, "config maps in a list")
	f.IntVar(&p.lists, "lists", 800, "consistent lists while others write")
	f.IntVar(&p.size, "size", 256, "bytes of the value in a config map")
	f.IntVar(&p.single, "workspaces-1", 200, "workspaces made by one client")
	f.IntVar(&p.many, "workspaces", 1600, "workspaces made by all clients")
	f.IntVar(&p.definitions, "definitions", 100, "definitions of custom resources made one after the other")
	f.IntVar(&p.watches, "watches", 5000, "watches, each in a workspace of its own")
	f.IntVar(&p.tree, "tree", 10000, "workspaces in a tree that is made and deleted")
	f.IntVar(&p.children, "children", 10, "workspaces below each in a tree; as many as there are make it flat")
	f.IntVar(&p.crowd, "crowd", 100000, "workspaces of a server that is then started again; they need about 2 GB on disk, and 4 minutes or more")
	f.IntVar(&p.data, "data", 1200, "MiB of objects in a server that is then started again; they need about three times that on disk")
	f.IntVar(&p.object, "data-object", 0, "bytes of each of these objects; 0 for a mix of sizes")
	f.StringVar(&p.footprints, "footprints", "1000,10000", "numbers of workspaces at which memory is measured")
	f.IntVar(&p.featured, "featured", 1000, "workspaces that use policies, webhooks, quotas and definitions, and drop them")
	f.StringVar(&p.viewed, "viewed", "10,1000,10000", "numbers of tenants of a provider's view")
	f.DurationVar(&p.settle, "settle", time.Minute, "between the last write and measuring memory")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: cases are chosen with -run", f.Arg(0))
	}
	if o.short {
		o.plan = plan{starts: 1, rounds: 1, clients: p.clients, operations: 40, listed: p.listed, lists: 20,
			size: p.size, single: 4, many: 16, definitions: 3, watches: 20, tree: 13, children: p.children, crowd: 13, data: 4, viewed: "3", featured: 3, footprints: "8,24", settle: 100 * time.Millisecond}
	}
	return o, p.check()
}

func (p *plan) check() error {
	for name, n := range map[string]int{"starts": p.starts, "rounds": p.rounds, "clients": p.clients, "tree": p.tree, "children": p.children, "crowd": p.crowd, "data": p.data, "featured": p.featured} {
		if n < 1 {
			return fmt.Errorf("-%s is %d, want at least 1", name, n)
		}
	}
	for name, n := range map[string]int{"operations": p.operations, "lists": p.lists, "workspaces-1": p.single, "workspaces": p.many} {
		if n < p.rounds {
			return fmt.Errorf("-%s is %d, want at least one in each of the %d rounds", name, n, p.rounds)
		}
	}
	return nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	klog.SetOutput(stderr)
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not finished after -timeout=%s", o.timeout))
	defer cancel()
	dir, err := os.MkdirTemp(o.dir, "kcp-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b, err := newBench(o, dir, stderr)
	if err != nil {
		return err
	}
	defer b.close()
	chosen, err := child.Chosen(o.pattern, cases(), func(c benchCase) string { return c.name })
	if err != nil {
		return err
	}
	for _, c := range chosen {
		begin := time.Now()
		if err := c.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(stderr, "bench: %s took %s\n", c.name, time.Since(begin).Round(time.Second/10))
	}
	if o.json {
		return b.report.json(stdout)
	}
	return b.report.markdown(stdout)
}

// newBench finds the binaries and describes the machine.
func newBench(o *options, dir string, log io.Writer) (*bench, error) {
	b := &bench{plan: o.plan, short: o.short, dir: dir, log: log, report: &report{}}
	var err error
	if b.encoding, err = newEncoding(o.encoding); err != nil {
		return nil, err
	}
	var binaries []string
	for name := range strings.SplitSeq(o.subjects, ",") {
		file, build := o.kcp, "go build -o bin/ ./cmd/kcp"
		if name == "stock" {
			file, build = o.kube, `go -C test/tools build -o "$PWD/bin/" ./cmd/kube`
		} else if name != "kcp" {
			return nil, fmt.Errorf("-subjects: no subject %q, there are kcp and stock", name)
		}
		if file, err = filepath.Abs(file); err != nil {
			return nil, err
		}
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%w; run: %s", err, build)
		}
		if slices.Contains(b.report.Subjects, name) {
			return nil, fmt.Errorf("-subjects: %q twice", name)
		}
		binaries = append(binaries, file)
		b.report.Subjects = append(b.report.Subjects, name)
		if name == "stock" {
			b.subjects = append(b.subjects, &kube{file})
		} else {
			b.subjects = append(b.subjects, &kcp{file})
		}
	}
	b.report.Machine, err = machine(dir, binaries...)
	return b, err
}
