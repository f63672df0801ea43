package cli

import (
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
		Use:     "list [workspace]",
		Aliases: []string{"ls"},
		Short:   "List the workspaces in the current one",
		Long:    "List the workspaces in the current one, or in another one, or all that you may enter, wherever they are.",
		Example: `  # List the workspaces in the current one
  kubectl ws list

  # List the workspaces beside the current one
  kubectl ws list ..

  # List all workspaces that are yours to enter, also where you may not look around
  kubectl ws list --mine

  # The workspaces beside the current one as a list of objects, for programs
  kubectl ws list .. -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete,
	}
	var f format
	outputFlag(cmd, &f)
	mine := cmd.Flags().Bool("mine", false, "list all workspaces that you may enter, at any depth")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *mine {
			return a.listMine(cmd, args, f)
		}
		_, srv, err := a.openAt(cmd.Context(), args)
		if err != nil {
			return err
		}
		workspaces, err := srv.list(cmd.Context(), srv.base.path)
		if err != nil {
			return fmt.Errorf("cannot list the workspaces in %q: %w", srv.base.path, err)
		}
		if f != "" {
			return a.print.workspaces(f, workspaces)
		}
		if len(workspaces) == 0 {
			a.print.note("No workspaces in '%s'.", srv.base.path)
			return nil
		}
		rows := [][]string{{"NAME", "TYPE", "PHASE", "CLUSTER", "AGE"}}
		for _, w := range workspaces {
			rows = append(rows, []string{w.Name, dash(typeName(w)), dash(string(w.Status.Phase)), dash(w.Spec.Cluster), age(w)})
		}
		a.print.table(rows)
		return nil
	}
	return cmd
}

// listMine lists what the user may enter, by path: names may occur more than once.
func (a *app) listMine(cmd *cobra.Command, args []string, f format) error {
	if len(args) > 0 {
		return errors.New("--mine lists workspaces wherever they are: leave out the workspace")
	}
	_, srv, err := a.open(cmd.Context())
	if err != nil {
		return err
	}
	workspaces, err := srv.reachable(cmd.Context())
	if err != nil {
		return fmt.Errorf("cannot list the workspaces that you may enter: %w", err)
	}
	switch f {
	case asName:
		for _, w := range workspaces {
			a.print.say(":%s", pathOf(w.Annotations))
		}
		return nil
	case "":
	default:
		return a.print.workspaces(f, workspaces)
	}
	if len(workspaces) == 0 {
		a.print.note("There is no workspace that you may enter.")
		return nil
	}
	rows := [][]string{{"PATH", "PHASE", "CLUSTER", "AGE"}}
	for _, w := range workspaces {
		rows = append(rows, []string{pathOf(w.Annotations), dash(string(w.Status.Phase)), dash(w.Spec.Cluster), age(w)})
	}
	a.print.table(rows)
	return nil
}

func age(w *tenancy.Workspace) string {
	return duration.HumanDuration(time.Since(w.CreationTimestamp.Time))
}

// workspaces prints a list of workspaces in the format f, as kubectl would.
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

// objectName returns what "-o name" calls w, which kubectl takes as an argument.
func objectName(w *tenancy.Workspace) string { return "workspace.tenancy.kcp.io/" + w.Name }
