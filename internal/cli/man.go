package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand returns the hidden command that writes manual pages.
func manCommand() *cobra.Command {
	return Man("KCP")
}

// Man returns a hidden command that writes the manual pages of the program that it is
// added to. Packagers call it; the environment variable SOURCE_DATE_EPOCH sets the date.
func Man(source string) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages to a directory",
		Long:   "Write the manual pages of this program to a directory, one for each command.",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("cannot write the manual pages: %w", err)
			}
			return doc.GenManTree(cmd.Parent(), &doc.GenManHeader{Section: "1", Source: source}, args[0])
		},
	}
}
