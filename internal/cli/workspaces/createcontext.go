package workspaces

import (
	"github.com/spf13/cobra"

	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
)

func createContextCommand(a *command.App) *cobra.Command {
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "create-context [NAME]",
		Short: "Add a context for the current workspace to the kubeconfig",
		Long:  "Add a context for the current workspace to the kubeconfig, and switch to it. The default name is the path of the workspace. Unlike the context of the current workspace, it does not change when you enter another workspace.",
		Example: `  # Add a context with the path of the current workspace as its name
  kubectl ws create-context

  # Make the context "team" lead to the current workspace
  kubectl ws create-context team --overwrite`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.ValidArgsFunction = a.CompleteContext
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "Replace a context of the same name.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, _, err := a.Open(cmd.Context())
		if err != nil {
			return err
		}
		name := string(s.Here.Path)
		if len(args) > 0 {
			name = args[0]
		}
		mode := kubeconfig.Use
		if overwrite {
			mode |= kubeconfig.Replace
		}
		existed, err := s.CreateContext(cmd.Context(), name, s.Here, mode)
		if err != nil {
			return err
		}
		verb := "Created"
		if existed {
			verb = "Updated"
		}
		a.Print.Say("%s context %q and switched to it.", verb, name)
		return nil
	}
	return cmd
}
