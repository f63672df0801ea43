// Package cli implements the kubectl plugins "kubectl ws" and "kubectl kcp". It hides the
// syntax of workspace paths, how a kubeconfig records the current workspace, and which
// requests each command sends.
package cli

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/quickstart"
	"github.com/unforked/kcp/internal/cli/sharing"
	"github.com/unforked/kcp/internal/cli/workload"
	"github.com/unforked/kcp/internal/cli/workspaces"
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
	cmd.SetHelpCommand(command.Help())
	cmd.CompletionOptions.DisableDefaultCmd = true // a workspace may be named "completion"
	return command.Finish(ctx, output.New(streams), cmd.ExecuteContext(ctx))
}

func commandFor(name string, streams genericiooptions.IOStreams) *cobra.Command {
	cmd, display := KCP(streams), "kubectl kcp"
	switch strings.ReplaceAll(name, "_", "-") {
	case "kubectl-ws", "kubectl-workspace", "kubectl-workspaces":
		cmd, display = workspaces.Workspaces(streams), strings.Replace(name, "-", " ", 1)
	case "kubectl-create-workspace", "kubectl-create-ws":
		cmd, display = workspaces.CreateWorkspace(streams), "kubectl create workspace"
	}
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: display}
	return cmd
}

// KCP returns the command "kubectl kcp", which contains all others.
func KCP(streams genericiooptions.IOStreams) *cobra.Command {
	a := command.New(streams)
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
	cmd.AddCommand(workspaces.Command(a), sharing.BindCommand(a, workload.BindCommand(a)), workload.Command(a), sharing.ExportsCommand(a), sharing.UsageCommand(a), sharing.ExplainAPICommand(a), sharing.DefinitionsCommand(a), sharing.SchemaCommand(a), sharing.ClaimsCommand(a), quickstart.Command(a), Version(streams, "kubectl kcp"), manCommand())
	return a.Program(cmd)
}
