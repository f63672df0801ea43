// Command kubectl is the real, unchanged kubectl. It is a program of its own
// because scripts call it hundreds of times: it starts in 35 ms, and in 90 ms
// as a part of cmd/kube.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // as upstream: exec and OIDC credentials
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	logs.GlogSetter(cmd.GetLogVerbosity(os.Args)) //nolint:errcheck // as upstream: before flags are parsed
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints and exits
	}
}
