package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
)

func (a *app) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list [WORKSPACE]",
		Aliases: []string{"ls"},
		Short:   "List the workspaces in the current one",
		Long:    "List the workspaces in the current workspace or in another one. With --mine, list all workspaces that you may enter, at any depth.",
		Example: `  # List the workspaces in the current one
  kubectl ws list

  # List the workspaces in the parent, with their owners and URLs
  kubectl ws list .. -o wide

  # List all workspaces that you may enter, even if you may not list their parents
  kubectl ws list --mine

  # Print the workspaces in the parent as a list of objects
  kubectl ws list .. -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete,
	}
	var f format
	outputFlag(cmd, &f, tableFormats())
	mine := cmd.Flags().Bool("mine", false, "List all workspaces that you may enter, at any depth.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *mine {
			return a.listMine(cmd.Context(), args, f)
		}
		_, srv, err := a.openAt(cmd.Context(), args)
		if err != nil {
			return err
		}
		workspaces, err := srv.list(cmd.Context(), srv.base.path)
		if err != nil {
			return about(srv.base.path, "cannot list the workspaces in %q: %w", srv.base.path, err)
		}
		if f.encoded() {
			return a.print.workspaces(f, workspaces)
		}
		if len(workspaces) == 0 {
			a.print.note("No workspaces in '%s'.", srv.base.path)
			return nil
		}
		a.print.table(rows("NAME", workspaces, f, func(w *tenancy.Workspace) string { return w.Name }))
		return nil
	}
	return cmd
}

// listMine lists the workspaces that the user may enter, by path: two may have one name.
func (a *app) listMine(ctx context.Context, args []string, f format) error {
	if len(args) > 0 {
		return errors.New("--mine lists workspaces at any depth; omit the workspace")
	}
	_, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	workspaces, err := srv.reachable(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the workspaces that you may enter: %w", err)
	}
	path := func(w *tenancy.Workspace) string { return pathOf(w.Annotations) }
	switch {
	case f == asName:
		for _, w := range workspaces {
			a.print.say(":%s", path(w))
		}
		return nil
	case f.encoded():
		return a.print.workspaces(f, workspaces)
	case len(workspaces) == 0:
		a.print.note("You may not enter any workspace.")
		return nil
	}
	a.print.table(rows("PATH", workspaces, f, path))
	return nil
}

// rows returns a table of workspaces with a header. The first column is title and the
// result of first.
func rows(title string, workspaces []*tenancy.Workspace, f format, first func(*tenancy.Workspace) string) [][]string {
	all := [][]string{{title, "TYPE", "PHASE", "CLUSTER", "AGE"}}
	if f == asWide {
		all[0] = append(all[0], "OWNER", "URL")
	}
	for _, w := range workspaces {
		row := []string{first(w), dash(typeName(w)), dash(string(w.Status.Phase)), dash(w.Spec.Cluster), age(w)}
		if f == asWide {
			row = append(row, dash(owner(w.Annotations)), dash(w.Spec.URL))
		}
		all = append(all, row)
	}
	return all
}

func age(w *tenancy.Workspace) string {
	if w.CreationTimestamp.IsZero() {
		return dash("")
	}
	return duration.HumanDuration(time.Since(w.CreationTimestamp.Time))
}

// workspaces prints a list of workspaces in the format f, as "kubectl get" does.
func (p *printer) workspaces(f format, workspaces []*tenancy.Workspace) error {
	list := struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []*tenancy.Workspace `json:"items"`
	}{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: workspaces}
	if list.Items == nil {
		list.Items = []*tenancy.Workspace{}
	}
	var names []string
	for _, w := range workspaces {
		names = append(names, objectName(w))
	}
	return p.result(f, list, names...)
}

// objectName returns the name of w in the format "name", which kubectl accepts as an
// argument.
func objectName(w *tenancy.Workspace) string { return "workspace.tenancy.kcp.io/" + w.Name }
