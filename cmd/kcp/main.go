// Command kcp serves logical clusters, and has the kubectl to work with them.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/cli/kubectl"
)

func main() {
	if args, ok := forKubectl(os.Args[1:]); ok {
		os.Exit(kubectl.Main(args, kcp.KubernetesVersion))
	}
	if err := command().Execute(); err != nil {
		os.Exit(1)
	}
}

// forKubectl returns what kubectl is to be run with, if args are for it: its own
// command line, or a question of the shell how that goes on.
func forKubectl(args []string) ([]string, bool) {
	switch {
	case len(args) > 0 && args[0] == "kubectl":
		return args[1:], true
	case len(args) > 2 && args[1] == "kubectl" && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd):
		return append([]string{args[0]}, args[2:]...), true
	}
	return nil, false
}
