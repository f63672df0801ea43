package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/build"
	"github.com/unforked/kcp/internal/cli/output"
)

// Version returns the command "version" of the program that users call by name.
func Version(streams genericiooptions.IOStreams, name string) *cobra.Command {
	var f output.Format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of its libraries",
		Long:  "Print the version of this program, the commit it was built from, and the versions of its main libraries. The command sends no request to a server.",
		Example: fmt.Sprintf(`  # Print the version, the commit and the libraries
  %[1]s version

  # Print them as JSON
  %[1]s version -o json`, name),
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	output.Flag(cmd, &f, []output.Format{output.JSON, output.YAML})
	cmd.RunE = func(*cobra.Command, []string) error {
		p, info := output.New(streams), build.Read()
		if f != "" {
			return p.Result(f, info)
		}
		p.Table(versionRows(info))
		return nil
	}
	return cmd
}

func versionRows(info build.Info) (rows [][]string) {
	add := func(title, value string) {
		if value != "" {
			rows = append(rows, []string{title + ":", value})
		}
	}
	commit := info.Commit
	if info.Modified {
		commit += " (with changes)"
	}
	add("Version", info.Version)
	add("Commit", commit)
	add("Date", info.Date)
	add("Go", info.GoVersion)
	add("Platform", info.Platform)
	for _, path := range build.Libraries() {
		add(path, info.Libraries[path])
	}
	return rows
}
