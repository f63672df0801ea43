package cli

import (
	"github.com/spf13/cobra"
)

func (a *app) createContextCommand() *cobra.Command {
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "create-context [name]",
		Short: "Add a context for the current workspace to the kubeconfig",
		Long:  "Add a context for the current workspace to the kubeconfig and use it. The context is called like the path of the workspace if no name is given. It stays with the workspace when you go elsewhere.",
		Example: `  # Add a context that is called like the path of the current workspace
  kubectl ws create-context

  # Let the context "team" stand for the current workspace from now on
  kubectl ws create-context team --overwrite`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.ValidArgsFunction = a.completeContext
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace a context of the same name")
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
