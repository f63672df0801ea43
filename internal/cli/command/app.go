// Package command has what all commands of the plugins share: the flags that choose a
// workspace, completions, and what users read when a command fails or is interrupted.
package command

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// ReadyWithin is the timeout for a new workspace to become ready.
const ReadyWithin = time.Minute

// An App is the state that all commands of one program share.
type App struct {
	Flags   *genericclioptions.ConfigFlags
	from    string // --workspace; empty for the current workspace
	Streams genericiooptions.IOStreams
	Print   *output.Printer
	Ready   time.Duration
}

// New returns the state of a program with these streams.
func New(streams genericiooptions.IOStreams) *App {
	return &App{
		Flags:   genericclioptions.NewConfigFlags(true).WithWarningPrinter(streams),
		Streams: streams,
		Print:   output.New(streams),
		Ready:   ReadyWithin,
	}
}

// Program completes cmd as the root of a program or as a subcommand of kubectl. It adds
// the flags that all subcommands share, and how errors are reported.
func (a *App) Program(cmd *cobra.Command) *cobra.Command {
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	flags := cmd.PersistentFlags()
	a.Flags.AddFlags(flags)
	flags.StringVarP(&a.from, "workspace", "w", "", "Use this workspace instead of the current one: a relative path, .. or an absolute path such as :root:org")
	var logs flag.FlagSet
	klog.InitFlags(&logs)
	flags.AddGoFlag(logs.Lookup("v"))
	flags.AddGoFlag(logs.Lookup("vmodule"))
	output.CompleteFlag(cmd, "workspace", a.CompletePath)
	output.CompleteFlag(cmd, "context", a.CompleteContext)
	withAdvice(cmd)
	WithUsage(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage", err, cmd.CommandPath())
	})
	return cmd
}

// Open starts a session in the workspace of --workspace, or in the current one.
func (a *App) Open(ctx context.Context) (*kubeconfig.Session, *remote.Server, error) {
	s, err := kubeconfig.Open(a.Flags)
	if err != nil {
		return nil, nil, err
	}
	srv, err := remote.New(s)
	if err != nil || a.from == "" {
		return s, srv, err
	}
	path, err := a.Locate(ctx, srv, a.from)
	if err != nil {
		return nil, nil, err
	}
	s.Here = s.Here.At(path)
	srv.Base = s.Here
	return s, srv, nil
}

// Locate returns the absolute path that arg names, relative to the base of srv. It prints
// a note if arg is in the older form of absolute paths.
func (a *App) Locate(ctx context.Context, srv *remote.Server, arg string) (cluster.Path, error) {
	if absolute := paths.Absolute(arg); absolute != arg {
		a.Print.Note("note: %q is read as the absolute path %q; for a workspace of that name below the current one, use %q", arg, absolute, ".:"+arg)
	}
	return a.seek(ctx, srv, arg)
}

// seek is locate without the note.
func (a *App) seek(ctx context.Context, srv *remote.Server, arg string) (cluster.Path, error) {
	if dir, err := os.UserHomeDir(); err == nil && arg == dir {
		arg = remote.HomeName // the shell has expanded the tilde
	}
	first, rest, below := strings.Cut(arg, ":")
	if first != remote.HomeName {
		return paths.Resolve(srv.Base.Path, arg)
	}
	at, err := srv.Home(ctx)
	if err != nil || !below {
		return at, err
	}
	return paths.Resolve(at, rest)
}
