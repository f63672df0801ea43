// Package cli implements the kubectl plugins "kubectl ws" and "kubectl kcp". It hides the
// syntax of workspace paths, how a kubeconfig records the current workspace, and which
// requests each command sends.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
)

// completer is the prefix of the programs that kubectl runs to complete the arguments of
// a plugin.
const completer = "kubectl_complete-"

// Main runs the command that the file name in os.Args[0] selects, and returns the exit
// code. The names are kubectl-ws (also kubectl-workspace, kubectl-workspaces) and
// kubectl-create-workspace (also kubectl-create-ws). Any other name selects kubectl-kcp,
// which has all commands. A name with the prefix kubectl_complete- completes the arguments
// of that command.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, os.Args, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
}

// run runs the command that args[0] names with the arguments after it.
func run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	name := strings.TrimSuffix(filepath.Base(args[0]), ".exe")
	args = args[1:]
	if plugin, ok := strings.CutPrefix(name, completer); ok {
		name, args = "kubectl-"+plugin, append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	cmd := commandFor(name, streams)
	cmd.SetArgs(args)
	cmd.SetIn(streams.In)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	cmd.CompletionOptions.DisableDefaultCmd = true // a workspace may be named "completion"
	return finish(ctx, newPrinter(streams), cmd.ExecuteContext(ctx))
}

// Exit codes. An interrupted command exits as a shell reports one that SIGINT ended.
const (
	failed      = 1
	interrupted = 130
)

// errInterrupted is the error of a command that Ctrl-C ended while it read keys from a
// terminal: the terminal sends no signal then.
var errInterrupted = errors.New("interrupted")

// finish prints err, if there is one, and returns the exit code.
func finish(ctx context.Context, p *printer, err error) int {
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil, errors.Is(err, errInterrupted):
		p.note("interrupted")
		return interrupted
	}
	p.note("error: %v", err)
	return failed
}

func commandFor(name string, streams genericiooptions.IOStreams) *cobra.Command {
	cmd, display := KCP(streams), "kubectl kcp"
	switch strings.ReplaceAll(name, "_", "-") {
	case "kubectl-ws", "kubectl-workspace", "kubectl-workspaces":
		cmd, display = Workspaces(streams), strings.Replace(name, "-", " ", 1)
	case "kubectl-create-workspace", "kubectl-create-ws":
		cmd, display = CreateWorkspace(streams), "kubectl create workspace"
	}
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: display}
	return cmd
}

// KCP returns the command "kubectl kcp", which contains all others.
func KCP(streams genericiooptions.IOStreams) *cobra.Command {
	a := newApp(streams)
	cmd := &cobra.Command{
		Use:   "kcp",
		Short: "Work with the workspaces and APIs of kcp",
		Long:  "Work with the workspaces of kcp, and share APIs between them.",
		Example: `  # Print the current workspace
  kubectl kcp ws .

  # Create a workspace and enter it
  kubectl kcp ws create team --enter

  # Use an API of another workspace in the current one
  kubectl kcp bind apiexport root:provider:widgets

  # Print the version of this plugin
  kubectl kcp version`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.workspaces(), a.bindCommand(), a.workloadCommand(), a.exportsCommand(), a.usageCommand(), a.explainAPICommand(), a.definitionsCommand(), a.schemaCommand(), a.claimsCommand(), a.quickstartCommand(), Version(streams, "kubectl kcp"), manCommand())
	return a.program(cmd)
}

// readyWithin is the timeout for a new workspace to become ready.
const readyWithin = time.Minute

// An app is the state that all commands of one program share.
type app struct {
	flags   *genericclioptions.ConfigFlags
	from    string // --workspace; empty for the current workspace
	streams genericiooptions.IOStreams
	print   *printer
	ready   time.Duration
}

func newApp(streams genericiooptions.IOStreams) *app {
	return &app{
		flags:   genericclioptions.NewConfigFlags(true).WithWarningPrinter(streams),
		streams: streams,
		print:   newPrinter(streams),
		ready:   readyWithin,
	}
}

// program completes cmd as the root of a program or as a subcommand of kubectl. It adds
// the flags that all subcommands share, and how errors are reported.
func (a *app) program(cmd *cobra.Command) *cobra.Command {
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	flags := cmd.PersistentFlags()
	a.flags.AddFlags(flags)
	flags.StringVarP(&a.from, "workspace", "w", "", "Use this workspace instead of the current one: a relative path, .. or an absolute path such as :root:org")
	var logs flag.FlagSet
	klog.InitFlags(&logs)
	flags.AddGoFlag(logs.Lookup("v"))
	flags.AddGoFlag(logs.Lookup("vmodule"))
	completeFlag(cmd, "workspace", a.completePath)
	completeFlag(cmd, "context", a.completeContext)
	withAdvice(cmd)
	WithUsage(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage", err, cmd.CommandPath())
	})
	return cmd
}

// open starts a session in the workspace of --workspace, or in the current one.
func (a *app) open(ctx context.Context) (*session, *server, error) {
	s, err := openSession(a.flags)
	if err != nil {
		return nil, nil, err
	}
	srv, err := s.server()
	if err != nil || a.from == "" {
		return s, srv, err
	}
	path, err := a.locate(ctx, srv, a.from)
	if err != nil {
		return nil, nil, err
	}
	s.here = s.here.at(path)
	srv.base = s.here
	return s, srv, nil
}
