package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/cli/kubectl"
)

const (
	rootDirectory = ".kcp"
	startTimeout  = 10 * time.Minute // much is read that is stored
	goRun         = "go run ./cmd/kcp"
	signalled     = 128 // and the number of a signal are the exit code of what it ends
)

// command is kcp with all its subcommands.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "kcp",
		Short: "Serve thousands of isolated logical clusters through the Kubernetes API",
		Long: `kcp serves thousands of cheap, isolated logical clusters (workspaces) through the
ordinary Kubernetes API, from one process.`,
		Example: `  # Start a server with its data in .kcp
  kcp start

  # In another terminal: make a workspace, enter it, work in it
  kcp kubectl ws create team-a --enter
  kcp kubectl create configmap hello --from-literal=who=world`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	start := start()
	root.AddCommand(start, optionsCommand(start), builtinKubectl())
	root.SetFlagErrorFunc(misplaced(start))
	return root
}

// builtinKubectl documents the command: main runs it before flags are read.
func builtinKubectl() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [command]",
		Short:              "Run the built-in kubectl, with the ws and kcp plugins",
		Example:            "  kcp kubectl ws tree\n  kcp kubectl get configmaps",
		DisableFlagParsing: true,
		Run:                func(_ *cobra.Command, args []string) { os.Exit(kubectl.Main(args, kcp.KubernetesVersion)) },
	}
}

// version says which kcp this is, and which Kubernetes it serves.
func version() string {
	own := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		own = info.Main.Version
	}
	return own + ", Kubernetes " + kcp.KubernetesVersion
}

// options are the flags of start.
type options struct {
	server kcp.Server
	bind   string
	port   int
	gates  gates
	egress egress
	homes  homes
	etcd   etcdFlags
	// host is --external-hostname.
	host    string
	logging logging
}

func start() *cobra.Command {
	o := &options{gates: gates{}}
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Start a server",
		Long: `Start a server. It keeps its data, in an etcd inside the process, and its
credentials in one directory, and serves until it gets SIGINT or SIGTERM.`,
		Example: `  # With data in .kcp, at https://127.0.0.1:6443
  kcp start

  # Reachable from other machines
  kcp start --bind-address=0.0.0.0 --shard-external-url=https://kcp.example.com:6443`,
		Args: flagsAlone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			if err := o.checkAccess(cmd.Flags()); err != nil {
				return err
			}
			return o.run(ctx, cmd.ErrOrStderr())
		},
	}
	o.flags(cmd.Flags())
	complete(cmd)
	cmd.SetUsageFunc(usage)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return explain(cmd.Flags(), err) })
	return cmd
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.server.Dir, "root-directory", rootDirectory, "Directory for data and credentials; empty for a temporary one, which is removed at the end.")
	f.StringVar(&o.bind, "bind-address", "127.0.0.1", "IP address to listen at; 0.0.0.0 or :: for all interfaces.")
	f.IntVar(&o.port, "secure-port", 6443, "Port to listen at; 0 for any that is free.")
	f.StringVar(&o.server.ExternalURL, "shard-external-url", "", "URL that clients reach the server at, if not the address it listens at.")
	f.StringVar(&o.server.Kubeconfig, "kubeconfig-path", "", "File for the kubeconfig of the administrators. (default <root-directory>/admin.kubeconfig)")
	o.access(f)
	mounts(f, &o.server.MountProxy)
	o.homes.flags(f, &o.server.HomeWorkspaces.CreatorGroups)
	o.etcd.add(f, &o.server)
	o.egress.flags(f)
	o.operation(f)
	f.Var(o.gates, "feature-gates", "Gates of the Kubernetes libraries; those of the existing kcp are accepted and change nothing.")
	o.logging.add(f)
}

// untilSignal returns a context that ends with the first SIGINT or SIGTERM, and what
// undoes that. The second signal ends the process, as no signal's default action does
// that for sure: shells have what they start in the background ignore SIGINT.
func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, undone := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for range 2 {
			select {
			case s := <-signals:
				if ctx.Err() != nil {
					os.Exit(signalled + int(s.(syscall.Signal)))
				}
				cancel()
			case <-undone:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(undone)
		cancel()
	}
}

// run serves until ctx ends.
func (o *options) run(ctx context.Context, out io.Writer) error {
	if net.ParseIP(o.bind) == nil {
		return fmt.Errorf("--bind-address %q is not an IP address; use one of this machine's, such as 127.0.0.1", o.bind)
	}
	if err := o.gates.apply(); err != nil {
		return err
	}
	if err := o.logging.apply(); err != nil {
		return err
	}
	if err := o.externalHost(); err != nil {
		return err
	}
	if err := o.egress.apply(&o.server); err != nil {
		return err
	}
	o.server.HomeWorkspaces.Disabled = !o.homes.on
	if err := checkURL(o.server.ExternalURL); err != nil {
		return err
	}
	if o.port < 0 || o.port > 65535 {
		return fmt.Errorf("--secure-port %d is not a port; use one from 1 to 65535, or 0 for any that is free", o.port)
	}
	if err := o.etcd.apply(&o.server.Etcd); err != nil {
		return err
	}
	defer klog.Flush()
	o.server.Listen = net.JoinHostPort(o.bind, strconv.Itoa(o.port))
	tuneCollector(ctx)
	begun := time.Now()
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := o.server.Start(starting); err != nil {
		return err
	}
	if o.logging.plain() {
		o.greet(out, time.Since(begun))
	} else {
		klog.InfoS("Serving", "url", o.server.URL(), "kubeconfig", absolute(o.server.Kubeconfig), "startup", time.Since(begun).Round(time.Millisecond))
	}
	select {
	case <-ctx.Done():
		if o.logging.plain() {
			_, _ = fmt.Fprintln(out, "Stopping: letting requests finish. A second signal ends it at once.")
		} else {
			klog.InfoS("Stopping")
		}
	case err := <-o.server.Failed():
		return fmt.Errorf("the server stopped: %w", err)
	}
	return o.server.Close()
}

// checkURL checks a URL that goes into kubeconfigs and into what is stored.
func checkURL(external string) error {
	u, err := url.Parse(external)
	if external == "" || err == nil && u.Scheme == "https" && u.Host != "" && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil {
		return nil
	}
	return fmt.Errorf("--shard-external-url %q is not the URL of a server; write it like https://kcp.example.com:6443", external)
}

// greet says what to type next.
func (o *options) greet(out io.Writer, took time.Duration) {
	_, _ = fmt.Fprintf(out, `kcp serves at %s (ready after %s).
`, o.server.URL(), took.Round(time.Millisecond))
	switch ip := net.ParseIP(o.bind); {
	case ip.IsLoopback():
		_, _ = fmt.Fprintln(out, "Only this machine can reach it; for others, start it with --bind-address=0.0.0.0.")
	case ip.IsUnspecified() && o.server.ExternalURL == "":
		_, _ = fmt.Fprintln(out, "Others can reach it, but not at that URL; tell it the one they use with --shard-external-url.")
	}
	_, _ = fmt.Fprintf(out, `
In another terminal:

  export KUBECONFIG=%[1]s
  %[2]s kubectl ws create my-first --enter
  %[2]s kubectl create configmap hello --from-literal=who=world
`, quoted(absolute(o.server.Kubeconfig)), quoted(self()))
}

// self is how the program can be called again: "go run" leaves nothing to call.
func self() string {
	exe, err := os.Executable()
	if err == nil && strings.Contains(exe, string(filepath.Separator)+"go-build") {
		return goRun
	}
	return os.Args[0]
}

// quoted is what the shell takes for word, as it is if nothing in it is special.
func quoted(word string) string {
	if strings.ContainsAny(word, " \t\n\"'`$&|;<>()*?[]#~\\!{}") && word != goRun {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
