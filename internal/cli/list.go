package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
)

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list [workspace]",
		Aliases: []string{"ls"},
		Short:   "List the workspaces in the current one",
		Long:    "List the workspaces in the current one, or in another one.",
		Example: `  # List the workspaces in the current one
  kubectl ws list

  # List the workspaces beside the current one
  kubectl ws list ..`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, srv, err := a.openAt(cmd.Context(), args)
			if err != nil {
				return err
			}
			workspaces, err := srv.list(cmd.Context(), srv.base.path)
			if err != nil {
				return fmt.Errorf("cannot list the workspaces in %q: %w", srv.base.path, err)
			}
			if len(workspaces) == 0 {
				a.print.note("No workspaces in '%s'.", srv.base.path)
				return nil
			}
			rows := [][]string{{"NAME", "TYPE", "PHASE", "CLUSTER", "AGE"}}
			for _, w := range workspaces {
				age := duration.HumanDuration(time.Since(w.CreationTimestamp.Time))
				rows = append(rows, []string{w.Name, dash(typeName(w)), dash(string(w.Status.Phase)), dash(w.Spec.Cluster), age})
			}
			a.print.table(rows)
			return nil
		},
	}
}
