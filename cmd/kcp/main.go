// Command kcp is a server of logical clusters, with a built-in kubectl.
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
	if err := rootCommand().Execute(); err != nil {
		os.Exit(1)
	}
}

// forKubectl returns the arguments of the built-in kubectl, if args call it: either a
// command of kubectl, or a request of the shell to complete one.
func forKubectl(args []string) ([]string, bool) {
	switch {
	case len(args) > 0 && args[0] == "kubectl":
		return args[1:], true
	case len(args) > 2 && args[1] == "kubectl" && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd):
		return append([]string{args[0]}, args[2:]...), true
	}
	return nil, false
}
