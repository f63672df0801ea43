package workspaces

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
)

func listCommand(a *command.App) *cobra.Command {
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
		ValidArgsFunction: a.Complete,
	}
	var f output.Format
	output.Flag(cmd, &f, output.TableFormats())
	mine := cmd.Flags().Bool("mine", false, "List all workspaces that you may enter, at any depth.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *mine {
			return listMine(cmd.Context(), a, args, f)
		}
		_, srv, err := openAt(cmd.Context(), a, args)
		if err != nil {
			return err
		}
		workspaces, err := srv.List(cmd.Context(), srv.Base.Path)
		if err != nil {
			return remote.About(srv.Base.Path, "cannot list the workspaces in %q: %w", srv.Base.Path, err)
		}
		if f.Encoded() {
			return printWorkspaces(a.Print, f, workspaces)
		}
		if len(workspaces) == 0 {
			a.Print.Note("No workspaces in '%s'.", srv.Base.Path)
			return nil
		}
		a.Print.Table(rows("NAME", workspaces, f, func(w *tenancy.Workspace) string { return w.Name }))
		return nil
	}
	return cmd
}

// listMine lists the workspaces that the user may enter, by path: two may have one name.
func listMine(ctx context.Context, a *command.App, args []string, f output.Format) error {
	if len(args) > 0 {
		return errors.New("--mine lists workspaces at any depth; omit the workspace")
	}
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	workspaces, err := srv.Reachable(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the workspaces that you may enter: %w", err)
	}
	path := func(w *tenancy.Workspace) string { return remote.PathOf(w.Annotations) }
	switch {
	case f == output.Name:
		for _, w := range workspaces {
			a.Print.Say(":%s", path(w))
		}
		return nil
	case f.Encoded():
		return printWorkspaces(a.Print, f, workspaces)
	case len(workspaces) == 0:
		a.Print.Note("You may not enter any workspace.")
		return nil
	}
	a.Print.Table(rows("PATH", workspaces, f, path))
	return nil
}

// rows returns a table of workspaces with a header. The first column is title and the
// result of first.
func rows(title string, workspaces []*tenancy.Workspace, f output.Format, first func(*tenancy.Workspace) string) [][]string {
	all := [][]string{{title, "TYPE", "PHASE", "CLUSTER", "AGE"}}
	if f == output.Wide {
		all[0] = append(all[0], "OWNER", "URL")
	}
	for _, w := range workspaces {
		row := []string{first(w), output.OrDash(remote.TypeName(w)), output.OrDash(string(w.Status.Phase)), output.OrDash(w.Spec.Cluster), age(w)}
		if f == output.Wide {
			row = append(row, output.OrDash(owner(w.Annotations)), output.OrDash(w.Spec.URL))
		}
		all = append(all, row)
	}
	return all
}

func age(w *tenancy.Workspace) string {
	if w.CreationTimestamp.IsZero() {
		return output.OrDash("")
	}
	return duration.HumanDuration(time.Since(w.CreationTimestamp.Time))
}

// printWorkspaces prints a list of workspaces in the format f, as "kubectl get" does.
func printWorkspaces(p *output.Printer, f output.Format, workspaces []*tenancy.Workspace) error {
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
	return p.Result(f, list, names...)
}

// objectName returns the name of w in the format "name", which kubectl accepts as an
// argument.
func objectName(w *tenancy.Workspace) string { return "workspace.tenancy.kcp.io/" + w.Name }
