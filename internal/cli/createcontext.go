package cli

import (
	"github.com/spf13/cobra"
)

func (a *app) createContextCommand() *cobra.Command {
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
	cmd.ValidArgsFunction = a.completeContext
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "Replace a context of the same name.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, _, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		name := string(s.here.path)
		if len(args) > 0 {
			name = args[0]
		}
		mode := use
		if overwrite {
			mode |= replace
		}
		existed, err := s.createContext(cmd.Context(), name, s.here, mode)
		if err != nil {
			return err
		}
		verb := "Created"
		if existed {
			verb = "Updated"
		}
		a.print.say("%s context %q and switched to it.", verb, name)
		return nil
	}
	return cmd
}
