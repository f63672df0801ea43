// Command kubectl-kcp is the kubectl plugin for workspaces. Under the names
// kubectl-ws, kubectl-workspace, kubectl-workspaces and kubectl-create-workspace
// it is the commands "kubectl ws" and "kubectl create workspace".
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // what kubeconfigs may use to log in

	"github.com/unforked/kcp/internal/cli"
)

func main() {
	os.Exit(cli.Main())
}
