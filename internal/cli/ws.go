package cli

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

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
	a := newApp(streams)
	return a.program(a.workspaces())
}

func (a *app) workspaces() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ws [WORKSPACE]",
		Aliases: []string{"workspace", "workspaces"},
		Short:   "Move between workspaces and manage them",
		Long: `Enter a workspace, or manage workspaces with the subcommands. Without an argument, enter your home workspace.

` + pathHelp + `

The context "` + currentContext + `" of your kubeconfig holds the current workspace, and "` + previousContext + `" holds the previous one. Other contexts do not change.`,
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
	a.navigation(cmd)
	cmd.AddCommand(a.useCommand(), a.currentCommand(), a.treeCommand(), a.listCommand(), a.topCommand(),
		a.createCommand("create NAME", "kubectl ws create"), a.createContextCommand(), a.deleteCommand(),
		a.shareCommand(), a.unshareCommand(), a.kubeconfigCommand(), a.explainCommand())
	return cmd
}

func (a *app) useCommand() *cobra.Command {
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
	a.navigation(cmd)
	return cmd
}

// navigation makes cmd a command that enters a workspace.
func (a *app) navigation(cmd *cobra.Command) {
	short := shortFlag(cmd)
	interactive := cmd.Flags().BoolP("interactive", "i", false, "Choose the workspace from a tree in the terminal.")
	cmd.ValidArgsFunction = a.complete
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interactive {
			return a.pick(cmd.Context(), args, *short)
		}
		to := home
		if len(args) > 0 {
			to = args[0]
		}
		return a.navigate(cmd.Context(), to, *short)
	}
}

// pick shows a tree in the terminal and enters the workspace that the user chooses. The
// top of the tree is the workspace in args, or else the highest one that the user may list.
func (a *app) pick(ctx context.Context, args []string, short bool) error {
	s, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	top := topOf(s.here.path)
	if len(args) > 0 {
		if top, err = a.locate(ctx, srv, args[0]); err != nil {
			return err
		}
	} else if _, err := srv.list(ctx, top); err != nil {
		top = s.here.path
	}
	path, chosen, err := a.choose(ctx, srv, top, s.here.path)
	if err != nil {
		return err
	}
	if !chosen {
		path = s.here.path
		a.print.current(path, "", short)
		return nil
	}
	return a.enter(ctx, s, srv, path, short)
}

func shortFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("short", false, "Print only the path of the workspace.")
}

func (a *app) currentCommand() *cobra.Command {
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
	var f format
	outputFlag(cmd, &f, objectFormats())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, srv, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		if f != "" {
			return a.print.result(f, location{string(s.here.path), s.here.URL(), s.context}, string(s.here.path))
		}
		a.stay(cmd.Context(), s, srv, *short)
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
func (a *app) stay(ctx context.Context, s *session, srv *server, short bool) {
	a.print.current(s.here.path, "", short)
	if short { // scripts ask for the path often, and the answer needs no server
		return
	}
	ctx, cancel := context.WithTimeout(ctx, existsWithin)
	defer cancel()
	if up, gone := srv.missing(ctx, s.here.path); gone {
		a.print.note("note: workspace %q does not exist any more; to leave it, run: kubectl ws :%s", s.here.path, up)
	}
}

// existsWithin bounds how long "kubectl ws ." waits for the server: it answers without one.
const existsWithin = 2 * time.Second

// navigate enters the workspace that arg names, and prints its path.
func (a *app) navigate(ctx context.Context, arg string, short bool) error {
	s, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	switch arg {
	case ".":
		a.stay(ctx, s, srv, short)
		return nil
	case "-":
		return a.back(ctx, s, short)
	}
	path, err := a.locate(ctx, srv, arg)
	if err != nil {
		return err
	}
	return a.enter(ctx, s, srv, path, short)
}

// enter makes the workspace at path the current one, and prints its path.
func (a *app) enter(ctx context.Context, s *session, srv *server, path cluster.Path, short bool) error {
	typ, remark, err := srv.visit(ctx, path)
	if err != nil {
		return err
	}
	if err := s.enter(ctx, s.here.at(path)); err != nil {
		return err
	}
	a.arrived(path, typ, remark, short)
	return nil
}

// back enters the previous workspace.
func (a *app) back(ctx context.Context, s *session, short bool) error {
	config, err := s.access.GetStartingConfig()
	if err != nil {
		return err
	}
	if config.Contexts[previousContext] == nil {
		return errors.New("there is no previous workspace yet; enter one by its path, for example: kubectl ws :root")
	}
	flags := genericclioptions.NewConfigFlags(true).WithWarningPrinter(a.streams)
	name := previousContext
	flags.KubeConfig, flags.Context, flags.Timeout = a.flags.KubeConfig, &name, a.flags.Timeout
	previous, err := openSession(flags)
	if err != nil {
		return err
	}
	srv, err := previous.server()
	if err != nil {
		return err
	}
	typ, remark, err := srv.visit(ctx, previous.here.path)
	if err != nil {
		return err
	}
	if err := s.enterAs(ctx, previous); err != nil {
		return err
	}
	a.arrived(previous.here.path, typ, remark, short)
	return nil
}

func (a *app) arrived(path cluster.Path, typ, remark string, short bool) {
	if remark != "" {
		a.print.note("%s", remark)
	}
	a.print.current(path, typ, short)
}

// locate returns the absolute path that arg names, relative to the base of srv. It prints
// a note if arg is in the older form of absolute paths.
func (a *app) locate(ctx context.Context, srv *server, arg string) (cluster.Path, error) {
	if absolute := absoluteForm(arg); absolute != arg {
		a.print.note("note: %q is read as the absolute path %q; for a workspace of that name below the current one, use %q", arg, absolute, ".:"+arg)
	}
	return a.seek(ctx, srv, arg)
}

// seek is locate without the note.
func (a *app) seek(ctx context.Context, srv *server, arg string) (cluster.Path, error) {
	if dir, err := os.UserHomeDir(); err == nil && arg == dir {
		arg = home // the shell has expanded the tilde
	}
	first, rest, below := strings.Cut(arg, ":")
	if first != home {
		return resolve(srv.base.path, arg)
	}
	at, err := srv.home(ctx)
	if err != nil || !below {
		return at, err
	}
	return resolve(at, rest)
}
