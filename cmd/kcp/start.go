package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/build"
	"github.com/unforked/kcp/internal/cli"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/kubectl"
	"github.com/unforked/kcp/internal/workload"
)

const (
	rootDirectory = ".kcp"
	startTimeout  = 10 * time.Minute // a start reads the whole database
	goRun         = "go run ./cmd/kcp"
	// leastTargetGrace is the least --sync-target-grace-period. A probe has half of it to succeed.
	leastTargetGrace = 4 * time.Second
	signalled        = 128 // plus the number of a signal is the exit code of a process that it ends
)

// rootCommand returns kcp with all its subcommands.
func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kcp",
		Short: "Serve thousands of isolated logical clusters through the Kubernetes API",
		Long: `kcp serves thousands of cheap, isolated logical clusters (workspaces) through the
ordinary Kubernetes API, from one process.`,
		Example: `  # Start a server with its data in .kcp
  kcp start

  # In another terminal: create a workspace, enter it, and create an object
  kcp kubectl ws create team-a --enter
  kcp kubectl create configmap hello --from-literal=who=world`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	start := start()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	root.AddCommand(optionsCommand(start), backupCommand(), restoreCommand(), defragmentCommand(), doctorCommand(), agentCommand(), builtinKubectl(), cli.Version(streams, "kcp"), cli.Man("KCP"))
	refuseUnknownShells(root)
	command.WithUsage(root)
	root.AddCommand(start) // it explains its arguments itself
	root.SetFlagErrorFunc(misplaced(start))
	root.SetHelpCommand(command.Help())
	return root
}

// refuseUnknownShells makes the command completion fail for a shell that it does not know. That of
// cobra prints its help to standard output, which users redirect to a file for their shell.
func refuseUnknownShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		cmd.Args, cmd.DisableFlagsInUseLine = cobra.NoArgs, true
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

// builtinKubectl returns the command for the help. Main runs kubectl before any flags are
// parsed.
func builtinKubectl() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [command]",
		Short:              "Run the built-in kubectl, with the ws and kcp plugins",
		SuggestFor:         []string{"ws", "workspace", "workspaces", "kcp", "get", "apply", "create", "delete", "config"},
		Long:               "Run the built-in kubectl, with the ws and kcp plugins. Without a kubeconfig, it uses .kcp/admin.kubeconfig in the current directory.",
		Example:            "  # Print all workspaces\n  kcp kubectl ws tree :\n\n  # List the config maps in the current workspace\n  kcp kubectl get configmaps",
		DisableFlagParsing: true,
		Run:                func(_ *cobra.Command, args []string) { os.Exit(kubectl.Main(args, kcp.KubernetesVersion)) },
	}
}

// version returns the versions of kcp and of Kubernetes in one line.
func version() string { return build.Read().Version + ", Kubernetes " + kcp.KubernetesVersion }

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
	host string
	// peerIP and peerPort are the address for the other servers on the same etcd.
	peerIP, peerPort string
	targetGrace      time.Duration // --sync-target-grace-period
	logging          logging
}

func start() *cobra.Command {
	o := &options{gates: gates{}}
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Start a server",
		Long: `Start a server. It keeps its data, in an etcd inside the process, and its
credentials in one directory. SIGINT and SIGTERM stop it.`,
		Example: `  # Start a server at https://127.0.0.1:6443 with its data in .kcp
  kcp start

  # Start a server that other machines can reach
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
	f.StringVar(&o.server.Dir, "root-directory", rootDirectory, "Directory for data and credentials; empty for a temporary directory, which the server removes when it stops.")
	f.StringVar(&o.bind, "bind-address", "127.0.0.1", "IP address to listen at; 0.0.0.0 or :: for all interfaces.")
	f.IntVar(&o.port, "secure-port", 6443, "Port to listen at; 0 for any free port.")
	f.StringVar(&o.server.ExternalURL, "shard-external-url", "", "URL of the server for clients, if it differs from the address that it listens at.")
	f.StringVar(&o.server.Kubeconfig, "kubeconfig-path", "", "File to which the server writes the kubeconfig of the administrators. (default <root-directory>/admin.kubeconfig)")
	o.access(f)
	mounts(f, &o.server.MountProxy)
	o.homes.flags(f, &o.server.HomeWorkspaces.CreatorGroups)
	o.etcd.add(f, &o.server)
	o.egress.flags(f)
	f.DurationVar(&o.targetGrace, "sync-target-grace-period", workload.GracePeriod, "Time without an answer after which a physical cluster is unreachable. The server probes it four times in this time.")
	o.operation(f)
	f.Var(o.gates, "feature-gates", o.gates.usage())
	o.logging.add(f)
}

// untilSignal returns a context that the first SIGINT or SIGTERM cancels, and a function
// that stops handling signals. The second signal exits the process. The default action of
// a signal would not be enough: processes in the background of a shell ignore SIGINT.
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

// workloads adds the extension for physical clusters.
func (o *options) workloads() error {
	if o.targetGrace < leastTargetGrace {
		return fmt.Errorf("--sync-target-grace-period %s is too short; use %s or more", o.targetGrace, leastTargetGrace)
	}
	o.server.Extensions = []kcp.Extension{workload.Extension(o.targetGrace)}
	return nil
}

// run serves until ctx ends.
func (o *options) run(ctx context.Context, out io.Writer) error {
	if net.ParseIP(o.bind) == nil {
		return fmt.Errorf("--bind-address %q is not an IP address; use one of this machine's, such as 127.0.0.1", o.bind)
	}
	if err := o.gates.apply(); err != nil {
		return err
	}
	flush, err := o.logging.apply()
	if err != nil {
		return err
	}
	defer flush()
	if err := errors.Join(o.externalHost(), o.peerAddress(), o.workloads()); err != nil {
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
	o.etcd.listen.report()
	o.server.Listen = net.JoinHostPort(o.bind, strconv.Itoa(o.port))
	o.server.Processors = useProcessors()
	if err := limitMemory(memlimit.FromCgroup); err != nil {
		klog.ErrorS(err, "The memory of the process has no limit")
	}
	started := tuneCollector(ctx)
	begun := time.Now()
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	switch err := o.server.Start(starting); {
	case err != nil && ctx.Err() != nil: // a signal stopped it, which is no failure
		o.say(out, "Stopped before the server was ready.")
		return nil
	case err != nil:
		return err
	}
	started()
	if o.logging.plain() {
		o.greet(out, time.Since(begun))
	} else {
		klog.InfoS("Serving", "url", o.server.URL(), "kubeconfig", absolute(o.server.Kubeconfig), "startup", time.Since(begun).Round(time.Millisecond))
	}
	select {
	case <-ctx.Done():
		o.say(out, "Stopping: waiting for requests in flight. A second signal stops at once.")
	case err := <-o.server.Failed():
		return fmt.Errorf("the server stopped: %w", err)
	}
	return o.server.Close()
}

// say tells the user about the life of the server.
func (o *options) say(out io.Writer, text string) {
	if o.logging.plain() {
		_, _ = fmt.Fprintln(out, text)
	} else {
		klog.InfoS(text)
	}
}

// checkURL checks a URL that the server writes to kubeconfigs and to objects.
func checkURL(external string) error {
	u, err := url.Parse(external)
	if external == "" || err == nil && u.Scheme == "https" && u.Host != "" && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil {
		return nil
	}
	return fmt.Errorf("--shard-external-url %q is not the URL of a server; write it like https://kcp.example.com:6443", external)
}

// greet prints the URL of the server and the first commands to try.
func (o *options) greet(out io.Writer, took time.Duration) {
	_, _ = fmt.Fprintf(out, `kcp serves at %s (ready after %s).
`, o.server.URL(), took.Round(time.Millisecond))
	switch ip := net.ParseIP(o.bind); {
	case ip.IsLoopback():
		_, _ = fmt.Fprintln(out, "Only this machine can reach it. To serve other machines, start it with --bind-address=0.0.0.0.")
	case ip.IsUnspecified() && o.server.ExternalURL == "":
		_, _ = fmt.Fprintln(out, "Other machines cannot use that URL. Set the URL that they use with --shard-external-url.")
	}
	if o.server.Dir == "" {
		_, _ = fmt.Fprintln(out, "All data is lost when it stops, because --root-directory is empty.")
	}
	_, _ = fmt.Fprintf(out, `
In another terminal:

  export KUBECONFIG=%[1]s
  %[2]s kubectl ws create my-first --enter
  %[2]s kubectl create configmap hello --from-literal=who=world
`, quoted(absolute(o.server.Kubeconfig)), quoted(self()))
}

// self returns the command that runs this program: a file path, or "go run", which deletes
// the file it ran.
func self() string {
	exe, err := os.Executable()
	if err == nil && strings.Contains(exe, string(filepath.Separator)+"go-build") {
		return goRun
	}
	return os.Args[0]
}

// quoted quotes a word for a shell if it contains special characters.
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
