package cli

import (
	"context"
	"errors"
	"strings"
	"time"

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
  kubectl ws :root:org:team`,
		Args: cobra.MaximumNArgs(1),
	}
	a.navigation(cmd)
	cmd.AddCommand(a.useCommand(), a.currentCommand(), a.treeCommand(), a.listCommand(),
		a.createCommand("create <name>", "kubectl ws create"), a.createContextCommand())
	return cmd
}

func (a *app) useCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "use <workspace>",
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
	cmd.ValidArgsFunction = a.complete
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		to := home
		if len(args) > 0 {
			to = args[0]
		}
		return a.navigate(cmd.Context(), to, *short)
	}
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
  kubectl ws current --short`,
		Args: cobra.NoArgs,
	}
	short := shortFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.navigate(cmd.Context(), ".", *short)
	}
	return cmd
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
	typ, remark, err := srv.visit(ctx, path)
	if err != nil {
		return err
	}
	if err := s.enter(s.here.at(path)); err != nil {
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
	if err := s.enterAs(previous); err != nil {
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
	first, rest, below := strings.Cut(arg, ":")
	if first == home {
		at, err := srv.home(ctx)
		if err != nil || !below {
			return at, err
		}
		return resolve(at, rest)
	}
	if absolute := absoluteForm(arg); absolute != arg {
		a.print.note("note: %q is taken as an absolute path, which is now written %q; a workspace of that name below this one is %q", arg, absolute, ".:"+arg)
	}
	return resolve(srv.base.path, arg)
}

// completeWithin bounds how long pressing the tab key may take.
const completeWithin = 5 * time.Second

// complete completes the last word of a path of a workspace.
func (a *app) complete(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	_, srv, err := a.open(ctx)
	if err != nil {
		return nil, directive
	}
	before, at := "", srv.base.path
	if i := strings.LastIndexByte(text, ':'); i == 0 {
		return []string{":" + string(cluster.Root)}, directive
	} else if i > 0 {
		before = text[:i+1]
		if at, err = resolve(srv.base.path, text[:i]); err != nil {
			return nil, directive
		}
	}
	children, err := srv.list(ctx, at)
	if err != nil {
		return nil, directive
	}
	var names []string
	for _, w := range children {
		if name := before + w.Name; strings.HasPrefix(name, text) {
			names = append(names, name)
		}
	}
	return names, directive
}
