package workspaces

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// listers is the number of concurrent list requests of a tree.
const listers = 8

// A tree holds the flags of tree.
type tree struct {
	full, wide, interactive bool
	depth                   int
	format                  output.Format
}

func treeCommand(a *command.App) *cobra.Command {
	var t tree
	cmd := &cobra.Command{
		Use:   "tree [WORKSPACE]",
		Short: "Print the workspaces below the current one as a tree",
		Long:  "Print the workspaces below the current one, or below another one, as a tree. For a workspace whose children you may not list, the reason is printed.",
		Example: `  # Print the workspaces below the current one
  kubectl ws tree

  # Print all workspaces with their types, phases, clusters, owners and ages
  kubectl ws tree : -o wide

  # Print two levels only
  kubectl ws tree : --depth 2

  # Choose a workspace from the tree with the arrow keys, and enter it with Enter
  kubectl ws tree -i

  # Print the paths of all workspaces, for scripts
  kubectl ws tree : -o name`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.Complete,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&t.full, "full", "f", false, "Print absolute paths instead of names.")
	flags.BoolVar(&t.wide, "wide", false, "Short for -o wide.")
	flags.IntVar(&t.depth, "depth", 0, "Number of levels to print below the top; 0 for all.")
	flags.BoolVarP(&t.interactive, "interactive", "i", false, "Show the tree in the terminal: choose a workspace with the arrow keys and enter it with Enter.")
	output.Flag(cmd, &t.format, output.TableFormats())
	for _, other := range []string{"output", "full", "wide", "depth"} {
		cmd.MarkFlagsMutuallyExclusive("interactive", other)
	}
	cmd.MarkFlagsMutuallyExclusive("wide", "output")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return showTree(cmd.Context(), a, args, t) }
	return cmd
}

func showTree(ctx context.Context, a *command.App, args []string, t tree) error {
	if t.depth < 0 {
		return fmt.Errorf("invalid --depth %d: must be 1 or more, or 0 for all levels", t.depth)
	}
	if t.interactive {
		if len(args) == 0 {
			args = []string{"."}
		}
		return browseOrNavigate(ctx, a, args, false)
	}
	_, srv, err := openAt(ctx, a, args)
	if err != nil {
		return err
	}
	top := &node{path: srv.Base.Path}
	if err := grow(ctx, srv, top, t.depth); err != nil {
		return err
	}
	if top.err != nil {
		return remote.About(top.path, "cannot list the workspaces in %q: %w", top.path, top.err)
	}
	if t.format.Encoded() {
		return a.Print.Result(t.format, top.summary(), top.paths()...)
	}
	printTree(a, top, t.full, t.wide || t.format == output.Wide)
	return nil
}

// openAt starts a session in the workspace in args, or as open does if args is empty.
func openAt(ctx context.Context, a *command.App, args []string) (*kubeconfig.Session, *remote.Server, error) {
	s, srv, err := a.Open(ctx)
	if err != nil || len(args) == 0 {
		return s, srv, err
	}
	path, err := a.Locate(ctx, srv, args[0])
	if err != nil {
		return nil, nil, err
	}
	s.Here = s.Here.At(path)
	srv.Base = s.Here
	return s, srv, nil
}

// A node is a workspace in a tree.
type node struct {
	path     cluster.Path
	object   *tenancy.Workspace // nil at the top
	children []*node
	err      error // why the children are unknown
}

// A summary is a workspace of a tree as programs get it.
type summary struct {
	Path     string     `json:"path"`
	Type     string     `json:"type,omitempty"`
	Phase    core.Phase `json:"phase,omitempty"`
	Cluster  string     `json:"cluster,omitempty"`
	Remark   string     `json:"remark,omitempty"` // why the children are unknown
	Children []summary  `json:"children,omitempty"`
}

func (n *node) summary() summary {
	s := summary{Path: string(n.path), Remark: n.remark()}
	if w := n.object; w != nil {
		s.Type, s.Phase, s.Cluster = remote.TypeName(w), w.Status.Phase, w.Spec.Cluster
	}
	for _, child := range n.children {
		s.Children = append(s.Children, child.summary())
	}
	return s
}

// paths returns the paths of n and of everything below it.
func (n *node) paths() []string {
	all := []string{string(n.path)}
	for _, child := range n.children {
		all = append(all, child.paths()...)
	}
	return all
}

// grow lists the workspaces below top level by level, down to a depth unless that is 0. It
// fails only if ctx ends.
func grow(ctx context.Context, s *remote.Server, top *node, depth int) error {
	level := []*node{top}
	for i := 0; len(level) > 0 && (depth == 0 || i < depth); i++ {
		var work errgroup.Group
		work.SetLimit(listers)
		for _, n := range level {
			work.Go(func() error {
				n.children, n.err = childrenOf(ctx, s, n)
				return ctx.Err()
			})
		}
		if err := work.Wait(); err != nil {
			return err
		}
		var next []*node
		for _, n := range level {
			next = append(next, n.children...)
		}
		level = next
	}
	return nil
}

func childrenOf(ctx context.Context, s *remote.Server, n *node) ([]*node, error) {
	if n.object != nil && !listable(n.object) {
		return nil, nil
	}
	workspaces, err := s.List(ctx, n.path)
	if err != nil {
		return nil, err
	}
	children := make([]*node, 0, len(workspaces))
	for _, w := range workspaces {
		children = append(children, &node{path: n.path.Join(w.Name), object: w})
	}
	return children, nil
}

// listable reports whether w answers requests in its phase.
func listable(w *tenancy.Workspace) bool {
	switch w.Status.Phase {
	case core.PhaseReady, core.PhaseTerminating, core.PhaseDeleting:
		return true
	}
	return false
}

// printTree prints top and everything below it.
func printTree(a *command.App, top *node, full, wide bool) {
	var rows [][]string
	if wide {
		rows = append(rows, []string{"NAME", "TYPE", "PHASE", "CLUSTER", "AGE", "OWNER"})
	} else {
		rows = append(rows, []string{"."})
	}
	var add func(n *node, lead, below string)
	add = func(n *node, lead, below string) {
		rows = append(rows, n.row(lead, full, wide))
		for i, child := range n.children {
			if i < len(n.children)-1 {
				add(child, below+"├── ", below+"│   ")
			} else {
				add(child, below+"└── ", below+"    ")
			}
		}
	}
	if wide {
		add(top, "", "")
	} else {
		add(top, "└── ", "    ")
	}
	a.Print.Table(rows)
}

func (n *node) row(lead string, full, wide bool) []string {
	name := string(n.path)
	if _, last, ok := paths.Parent(n.path); ok && !full {
		name = last
	}
	remark := n.remark()
	if remark != "" {
		remark = " (" + remark + ")"
	}
	switch {
	case !wide:
		return []string{lead + name + remark}
	case n.object == nil:
		return []string{lead + name + remark, "-", "-", "-", "-", "-"}
	}
	w := n.object
	return []string{lead + name + remark, output.OrDash(remote.TypeName(w)), output.OrDash(string(w.Status.Phase)), output.OrDash(w.Spec.Cluster), age(w), output.OrDash(owner(w.Annotations))}
}

// remark returns why the children of n are unknown, or nothing if they are known.
func (n *node) remark() string {
	switch {
	case n.object != nil && !listable(n.object):
		if n.object.Status.Phase == "" {
			return string(core.PhaseScheduling)
		}
		return string(n.object.Status.Phase)
	case n.err == nil, apierrors.IsNotFound(n.err): // that cluster does not serve workspaces
		return ""
	case apierrors.IsForbidden(n.err):
		return "access denied"
	default:
		return n.err.Error()
	}
}
