// Package cli hides how people move between workspaces and manage them with
// kubectl: how a workspace is named, how a kubeconfig says which one is the
// current one, and what is asked of the server on the way.
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

// completer begins the names of the programs that kubectl asks to complete the
// arguments of a plugin.
const completer = "kubectl_complete-"

// Main runs the command that the program was called as, which the name in
// os.Args[0] decides: kubectl-ws (or kubectl-workspace, kubectl-workspaces),
// kubectl-create-workspace (or kubectl-create-ws), or else kubectl-kcp, which has them
// all. A name that begins with kubectl_complete- instead completes the arguments of that
// command. Main returns the exit code.
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
	cmd.CompletionOptions.DisableDefaultCmd = true // its name is free for a workspace
	return finish(ctx, newPrinter(streams), cmd.ExecuteContext(ctx))
}

// Exit codes. Every failure is 1, but for a command that was interrupted.
const (
	failed      = 1
	interrupted = 130
)

// finish says what went wrong, if anything, and returns the exit code.
func finish(ctx context.Context, p *printer, err error) int {
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
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

// KCP returns the command "kubectl kcp", under which all others are.
func KCP(streams genericiooptions.IOStreams) *cobra.Command {
	a := newApp(streams)
	cmd := &cobra.Command{
		Use:   "kcp",
		Short: "Work with the workspaces and APIs of kcp",
		Long:  "Work with the workspaces and APIs of kcp.",
		Example: `  # Where am I?
  kubectl kcp ws .

  # Make a workspace and go there
  kubectl kcp ws create team --enter`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.workspaces(), a.quickstartCommand())
	cmd.AddCommand(unserved("bind", "claims", "crd")...)
	return a.program(cmd)
}

// unserved returns commands of the existing kcp which say why they do nothing, whatever
// flags they are given.
func unserved(names ...string) []*cobra.Command {
	var all []*cobra.Command
	for _, name := range names {
		all = append(all, &cobra.Command{Use: name, Hidden: true, DisableFlagParsing: true, RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%q needs APIs to be shared between workspaces, which this version does not do", cmd.CommandPath())
		}})
	}
	return all
}

// readyWithin is how long a new workspace may take before the command that made it gives up.
const readyWithin = time.Minute

// An app is what the commands of one program share.
type app struct {
	flags   *genericclioptions.ConfigFlags
	from    string // the workspace to work in; empty for the current one
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

// program makes cmd a program of its own, or a part of kubectl: it gives cmd
// the flags that all commands below it share.
func (a *app) program(cmd *cobra.Command) *cobra.Command {
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	flags := cmd.PersistentFlags()
	a.flags.AddFlags(flags)
	flags.StringVarP(&a.from, "workspace", "w", "", "work in this workspace instead of the current one: a relative path, .. or an absolute path such as :root:org")
	var logs flag.FlagSet
	klog.InitFlags(&logs)
	flags.AddGoFlag(logs.Lookup("v"))
	flags.AddGoFlag(logs.Lookup("vmodule"))
	completeFlag(cmd, "workspace", a.completePath)
	completeFlag(cmd, "context", a.completeContext)
	withAdvice(cmd)
	withUsage(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return errors.New(err.Error() + "\nSee '" + cmd.CommandPath() + " --help' for usage")
	})
	return cmd
}

// open starts a session in the workspace that the user wants to work in.
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
