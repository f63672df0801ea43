package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// listers is how many lists a tree has under way at a time.
const listers = 8

func (a *app) treeCommand() *cobra.Command {
	var full, wide, interactive bool
	cmd := &cobra.Command{
		Use:   "tree [workspace]",
		Short: "Print the workspaces below the current one as a tree",
		Long:  "Print the workspaces below the current one, or below another one, as a tree. A workspace that you may not look into is printed with the reason.",
		Example: `  # Print the workspaces below the current one
  kubectl ws tree

  # Print all workspaces, with their types and phases
  kubectl ws tree : --wide

  # Walk through the tree, and go where Enter is pressed
  kubectl ws tree -i

  # Print the paths of all workspaces, for scripts
  kubectl ws tree : -o name`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete,
	}
	cmd.Flags().BoolVarP(&full, "full", "f", false, "print absolute paths instead of names")
	cmd.Flags().BoolVar(&wide, "wide", false, "print types, phases and logical clusters too")
	cmd.Flags().BoolVarP(&interactive, "interactive", "i", false, "walk through the tree with the keys of a terminal, and go to a workspace with Enter")
	var f format
	outputFlag(cmd, &f)
	for _, other := range []string{"output", "full", "wide"} {
		cmd.MarkFlagsMutuallyExclusive("interactive", other)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if interactive {
			if len(args) == 0 {
				args = []string{"."}
			}
			return a.pick(cmd.Context(), args, false)
		}
		_, srv, err := a.openAt(cmd.Context(), args)
		if err != nil {
			return err
		}
		top := &node{path: srv.base.path}
		if err := srv.grow(cmd.Context(), top); err != nil {
			return err
		}
		if top.err != nil {
			return fmt.Errorf("cannot list the workspaces in %q: %w", top.path, top.err)
		}
		if f != "" {
			return a.print.result(f, top.summary(), top.paths()...)
		}
		a.printTree(top, full, wide)
		return nil
	}
	return cmd
}

// openAt starts a session in the workspace that the only argument names, if there is one.
func (a *app) openAt(ctx context.Context, args []string) (*session, *server, error) {
	s, srv, err := a.open(ctx)
	if err != nil || len(args) == 0 {
		return s, srv, err
	}
	path, err := a.locate(ctx, srv, args[0])
	if err != nil {
		return nil, nil, err
	}
	s.here = s.here.at(path)
	srv.base = s.here
	return s, srv, nil
}

// A node is a workspace in a tree.
type node struct {
	path     cluster.Path
	object   *tenancy.Workspace // nil at the top
	children []*node
	err      error // why the children are not known
}

// A summary is what programs are told of a workspace in a tree.
type summary struct {
	Path     string     `json:"path"`
	Type     string     `json:"type,omitempty"`
	Phase    core.Phase `json:"phase,omitempty"`
	Cluster  string     `json:"cluster,omitempty"`
	Remark   string     `json:"remark,omitempty"` // why there are no children, if that is not known
	Children []summary  `json:"children,omitempty"`
}

func (n *node) summary() summary {
	s := summary{Path: string(n.path), Remark: n.remark()}
	if w := n.object; w != nil {
		s.Type, s.Phase, s.Cluster = typeName(w), w.Status.Phase, w.Spec.Cluster
	}
	for _, child := range n.children {
		s.Children = append(s.Children, child.summary())
	}
	return s
}

// paths returns the paths of n and all that is below it.
func (n *node) paths() []string {
	all := []string{string(n.path)}
	for _, child := range n.children {
		all = append(all, child.paths()...)
	}
	return all
}

// grow finds everything below top, level by level with a fixed number of
// requests under way. It fails only if ctx ends.
func (s *server) grow(ctx context.Context, top *node) error {
	for level := []*node{top}; len(level) > 0; {
		var work errgroup.Group
		work.SetLimit(listers)
		for _, n := range level {
			work.Go(func() error {
				n.children, n.err = s.children(ctx, n)
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

func (s *server) children(ctx context.Context, n *node) ([]*node, error) {
	if n.object != nil && !listable(n.object) {
		return nil, nil
	}
	workspaces, err := s.list(ctx, n.path)
	if err != nil {
		return nil, err
	}
	children := make([]*node, 0, len(workspaces))
	for _, w := range workspaces {
		children = append(children, &node{path: n.path.Join(w.Name), object: w})
	}
	return children, nil
}

// listable tells whether there can be an answer from inside of w.
func listable(w *tenancy.Workspace) bool {
	switch w.Status.Phase {
	case core.PhaseReady, core.PhaseTerminating, core.PhaseDeleting:
		return true
	}
	return false
}

// printTree prints top and what is below it.
func (a *app) printTree(top *node, full, wide bool) {
	var rows [][]string
	if wide {
		rows = append(rows, []string{"NAME", "TYPE", "PHASE", "CLUSTER"})
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
	a.print.table(rows)
}

func (n *node) row(lead string, full, wide bool) []string {
	name := string(n.path)
	if _, last, ok := parent(n.path); ok && !full {
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
		return []string{lead + name + remark, "-", "-", "-"}
	}
	return []string{lead + name + remark, dash(typeName(n.object)), dash(string(n.object.Status.Phase)), dash(n.object.Spec.Cluster)}
}

// remark returns why nothing is printed below n although there may be something.
func (n *node) remark() string {
	switch {
	case n.object != nil && !listable(n.object):
		if n.object.Status.Phase == "" {
			return string(core.PhaseScheduling)
		}
		return string(n.object.Status.Phase)
	case n.err == nil, apierrors.IsNotFound(n.err): // no workspaces are served in there
		return ""
	case apierrors.IsForbidden(n.err):
		return "access denied"
	default:
		return n.err.Error()
	}
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
