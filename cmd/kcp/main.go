// Command kcp serves logical clusters, and has the kubectl to work with them.
package main

import (
	"os"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/cli/kubectl"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		os.Exit(kubectl.Main(os.Args[2:], kcp.KubernetesVersion))
	}
	if err := command().Execute(); err != nil {
		os.Exit(1)
	}
}
