package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Help returns the command "help" of a program. That of cobra succeeds for a command that does not exist.
func Help() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		Long:  "Print the help of a command.",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) (names []string, _ cobra.ShellCompDirective) {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, below := range of.Commands() {
				if below.IsAvailableCommand() && strings.HasPrefix(below.Name(), begin) {
					names = append(names, below.Name()+"\t"+below.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 && of.HasAvailableSubCommands() {
				return fmt.Errorf("there is no command %q\nSee '%s --help' for usage", strings.Join(append([]string{root.CommandPath()}, args...), " "), root.CommandPath())
			}
			of.InitDefaultHelpFlag() // so that it is listed
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}
