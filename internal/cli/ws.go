package cli

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/cluster"
)

const pathHelp = `A workspace is named like a file:

  name, name:name   below the current workspace
  .                 the current workspace
  ..                the workspace above; also in longer paths, as in ..:name
  :                 the root
  :root:org:team    an absolute path
  ~                 your home workspace
  -                 the workspace you were in before`

// Workspaces returns the command "kubectl ws".
func Workspaces(streams genericiooptions.IOStreams) *cobra.Command {
	a := newApp(streams)
	return a.program(a.workspaces())
}

func (a *app) workspaces() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ws [workspace]",
		Aliases: []string{"workspace", "workspaces"},
		Short:   "Move between workspaces and manage them",
		Long: `Move between workspaces and manage them. Without an argument it leads to your home workspace.

` + pathHelp + `

The current workspace is kept in the context "` + currentContext + `" of your kubeconfig, the one before in "` + previousContext + `". Other contexts are left as they are.`,
		Example: `  # Where am I?
  kubectl ws .

  # Go to a workspace below this one, up again, and back
  kubectl ws team
  kubectl ws ..
  kubectl ws -

  # Go to a workspace by its absolute path
  kubectl ws :root:org:team

  # Choose one from a tree
  kubectl ws -i`,
		Args: cobra.MaximumNArgs(1),
	}
	a.navigation(cmd)
	cmd.AddCommand(a.useCommand(), a.currentCommand(), a.treeCommand(), a.listCommand(),
		a.createCommand("create <name>", "kubectl ws create"), a.createContextCommand(), a.deleteCommand(),
		a.shareCommand(), a.unshareCommand(), a.kubeconfigCommand(), a.explainCommand())
	return cmd
}

func (a *app) useCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "use [workspace]",
		Aliases: []string{"cd"},
		Short:   "Go to a workspace",
		Long:    "Go to a workspace. Does what \"kubectl ws <workspace>\" does, also for a workspace that is called like a command.\n\n" + pathHelp,
		Example: `  # Go to a workspace below this one
  kubectl ws use team

  # Go to a workspace beside this one
  kubectl ws cd ..:other`,
		Args: cobra.MaximumNArgs(1),
	}
	a.navigation(cmd)
	return cmd
}

// navigation makes cmd the command that goes to a workspace.
func (a *app) navigation(cmd *cobra.Command) {
	short := shortFlag(cmd)
	interactive := cmd.Flags().BoolP("interactive", "i", false, "choose the workspace from a tree, in a terminal")
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

// pick lets the user choose where to go: from the whole tree, or from what is
// below the workspace that the only argument names.
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
	} else if _, err := srv.list(ctx, top); err != nil { // not everybody may look around up there
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
	return cmd.Flags().Bool("short", false, "print the path of the workspace and nothing else")
}

func (a *app) currentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "current",
		Short: "Print the current workspace",
		Long:  "Print the current workspace, as the kubeconfig has it. Does what \"kubectl ws .\" does.",
		Example: `  # Where am I?
  kubectl ws current

  # The path alone, for scripts
  kubectl ws current --short

  # The path, the URL and the context, for programs
  kubectl ws current -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	short := shortFlag(cmd)
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, _, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		if f == "" {
			a.print.current(s.here.path, "", *short)
			return nil
		}
		return a.print.result(f, whereabouts{string(s.here.path), s.here.URL(), s.context}, string(s.here.path))
	}
	return cmd
}

// Whereabouts are what the kubeconfig tells programs of the current workspace.
type whereabouts struct {
	Path    string `json:"path"`
	Server  string `json:"server"`
	Context string `json:"context"`
}

// navigate goes to the workspace that arg names, and says where that is.
func (a *app) navigate(ctx context.Context, arg string, short bool) error {
	s, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	switch arg {
	case ".":
		a.print.current(s.here.path, "", short)
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

// enter makes the workspace at path the current one, and says so.
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

// back goes to the workspace that was the current one before.
func (a *app) back(ctx context.Context, s *session, short bool) error {
	config, err := s.access.GetStartingConfig()
	if err != nil {
		return err
	}
	if config.Contexts[previousContext] == nil {
		return errors.New("there is no previous workspace yet; name one, for example: kubectl ws :root")
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

// locate returns the path that arg means to somebody at the base of srv.
func (a *app) locate(ctx context.Context, srv *server, arg string) (cluster.Path, error) {
	if absolute := absoluteForm(arg); absolute != arg {
		a.print.note("note: %q is taken as an absolute path, which is now written %q; a workspace of that name below this one is %q", arg, absolute, ".:"+arg)
	}
	return a.seek(ctx, srv, arg)
}

// seek is locate without a word.
func (a *app) seek(ctx context.Context, srv *server, arg string) (cluster.Path, error) {
	if dir, err := os.UserHomeDir(); err == nil && arg == dir {
		arg = home // as shells write it before we see it
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
