// Package workspaces has the commands that create, find, enter, explain, share and delete
// workspaces.
package workspaces

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

const pathHelp = `WORKSPACE is a path, as of a file, with colons between the names:

  name, name:name   a workspace below the current one
  .                 the current workspace
  ..                the parent of the current workspace; also as in ..:name
  :                 the root workspace
  :root:org:team    an absolute path
  ~                 your home workspace
  -                 the previous workspace`

// Workspaces returns the command "kubectl ws".
func Workspaces(streams genericiooptions.IOStreams) *cobra.Command {
	a := command.New(streams)
	return a.Program(Command(a))
}

// Command returns the command "ws" with its subcommands.
func Command(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ws [WORKSPACE]",
		Aliases: []string{"workspace", "workspaces"},
		Short:   "Move between workspaces and manage them",
		Long: `Enter a workspace, or manage workspaces with the subcommands. Without an argument, enter your home workspace.

` + pathHelp + `

The context "` + kubeconfig.CurrentContext + `" of your kubeconfig holds the current workspace, and "` + kubeconfig.PreviousContext + `" holds the previous one. Other contexts do not change.`,
		Example: `  # Print the current workspace
  kubectl ws .

  # Enter a workspace below the current one, go up again, and go back
  kubectl ws team
  kubectl ws ..
  kubectl ws -

  # Enter a workspace by its absolute path
  kubectl ws :root:org:team

  # Choose a workspace from a tree
  kubectl ws -i`,
		Args: cobra.MaximumNArgs(1),
	}
	navigation(a, cmd)
	cmd.AddCommand(useCommand(a), currentCommand(a), treeCommand(a), listCommand(a), topCommand(a),
		createCommand(a, "create NAME", "kubectl ws create"), createContextCommand(a), deleteCommand(a),
		shareCommand(a), unshareCommand(a), kubeconfigCommand(a), explainCommand(a))
	return cmd
}

func useCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "use [WORKSPACE]",
		Aliases: []string{"cd"},
		Short:   "Enter a workspace",
		Long:    "Enter a workspace, as \"kubectl ws WORKSPACE\" does. It also works for a workspace with the name of a subcommand.\n\n" + pathHelp,
		Example: `  # Enter a workspace below the current one
  kubectl ws use team

  # Enter a workspace with the same parent
  kubectl ws cd ..:other`,
		Args: cobra.MaximumNArgs(1),
	}
	navigation(a, cmd)
	return cmd
}

// navigation makes cmd a command that enters a workspace.
func navigation(a *command.App, cmd *cobra.Command) {
	short := shortFlag(cmd)
	interactive := cmd.Flags().BoolP("interactive", "i", false, "Choose the workspace from a tree in the terminal.")
	cmd.ValidArgsFunction = a.Complete
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interactive {
			return browseOrNavigate(cmd.Context(), a, args, *short)
		}
		to := remote.HomeName
		if len(args) > 0 {
			to = args[0]
		}
		return navigate(cmd.Context(), a, to, *short)
	}
}

// browseOrNavigate shows a tree in the terminal and enters the workspace that the user chooses. The
// top of the tree is the workspace in args, or else the highest one that the user may list.
func browseOrNavigate(ctx context.Context, a *command.App, args []string, short bool) error {
	s, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	top := paths.TopOf(s.Here.Path)
	if len(args) > 0 {
		if top, err = a.Locate(ctx, srv, args[0]); err != nil {
			return err
		}
	} else if _, err := srv.List(ctx, top); err != nil {
		top = s.Here.Path
	}
	path, chosen, err := choose(ctx, a, srv, top, s.Here.Path)
	if err != nil {
		return err
	}
	if !chosen {
		path = s.Here.Path
		a.Print.CurrentWorkspace(path, "", short)
		return nil
	}
	typ, remark, err := enter(ctx, s, srv, path)
	if err == nil {
		arrived(a, path, typ, remark, short)
	}
	return err
}

func shortFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("short", false, "Print only the path of the workspace.")
}

func currentCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "current",
		Short: "Print the current workspace",
		Long:  "Print the current workspace of the kubeconfig, as \"kubectl ws .\" does. If somebody deleted the workspace, a note says so.",
		Example: `  # Print the current workspace
  kubectl ws current

  # Print only its path, for scripts
  kubectl ws current --short

  # Print its path, its URL and the context as JSON
  kubectl ws current -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	short := shortFlag(cmd)
	var f output.Format
	output.Flag(cmd, &f, output.ObjectFormats())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, srv, err := a.Open(cmd.Context())
		if err != nil {
			return err
		}
		if f != "" {
			return a.Print.Result(f, location{string(s.Here.Path), s.Here.URL(), s.Context}, string(s.Here.Path))
		}
		stay(cmd.Context(), a, s, srv, *short)
		return nil
	}
	return cmd
}

// A location is the current workspace as programs get it.
type location struct {
	Path    string `json:"path"`
	Server  string `json:"server"`
	Context string `json:"context"`
}

// stay prints the current workspace. A note follows if it is known not to exist any more:
// the kubeconfig alone cannot tell.
func stay(ctx context.Context, a *command.App, s *kubeconfig.Session, srv *remote.Server, short bool) {
	a.Print.CurrentWorkspace(s.Here.Path, "", short)
	if short { // scripts ask for the path often, and the answer needs no server
		return
	}
	ctx, cancel := context.WithTimeout(ctx, existsWithin)
	defer cancel()
	if up, gone := srv.Missing(ctx, s.Here.Path); gone {
		a.Print.Note("note: workspace %q does not exist any more; to leave it, run: kubectl ws :%s", s.Here.Path, up)
	}
}

// existsWithin bounds how long "kubectl ws ." waits for the server: it answers without one.
const existsWithin = 2 * time.Second

// navigate enters the workspace that arg names, and prints its path.
func navigate(ctx context.Context, a *command.App, arg string, short bool) error {
	s, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	switch arg {
	case ".":
		stay(ctx, a, s, srv, short)
		return nil
	case "-":
		return back(ctx, a, s, short)
	}
	path, err := a.Locate(ctx, srv, arg)
	if err != nil {
		return err
	}
	typ, remark, err := enter(ctx, s, srv, path)
	if err == nil {
		arrived(a, path, typ, remark, short)
	}
	return err
}

// Enter makes the workspace at path the current one, and prints its path and type.
func Enter(ctx context.Context, a *command.App, s *kubeconfig.Session, srv *remote.Server, path cluster.Path) error {
	typ, remark, err := enter(ctx, s, srv, path)
	if err == nil {
		arrived(a, path, typ, remark, false)
	}
	return err
}

// enter makes the workspace at path the current one. It returns what Visit does.
func enter(ctx context.Context, s *kubeconfig.Session, srv *remote.Server, path cluster.Path) (typ, remark string, err error) {
	if typ, remark, err = srv.Visit(ctx, path); err != nil {
		return "", "", err
	}
	return typ, remark, s.Enter(ctx, s.Here.At(path))
}

// back enters the previous workspace.
func back(ctx context.Context, a *command.App, s *kubeconfig.Session, short bool) error {
	config, err := s.Access.GetStartingConfig()
	if err != nil {
		return err
	}
	if config.Contexts[kubeconfig.PreviousContext] == nil {
		return errors.New("there is no previous workspace yet; enter one by its path, for example: kubectl ws :root")
	}
	flags := genericclioptions.NewConfigFlags(true).WithWarningPrinter(a.Streams)
	name := kubeconfig.PreviousContext
	flags.KubeConfig, flags.Context, flags.Timeout = a.Flags.KubeConfig, &name, a.Flags.Timeout
	previous, err := kubeconfig.Open(flags)
	if err != nil {
		return err
	}
	srv, err := remote.New(previous)
	if err != nil {
		return err
	}
	typ, remark, err := srv.Visit(ctx, previous.Here.Path)
	if err != nil {
		return err
	}
	if err := s.EnterAs(ctx, previous); err != nil {
		return err
	}
	arrived(a, previous.Here.Path, typ, remark, short)
	return nil
}

func arrived(a *command.App, path cluster.Path, typ, remark string, short bool) {
	if remark != "" {
		a.Print.Note("%s", remark)
	}
	a.Print.CurrentWorkspace(path, typ, short)
}
