// Command kube is a stock Kubernetes control plane, with its etcd, in one
// binary, so that its programs cost one link and are pinned together. The name
// it is called by, or else the first argument, picks the program; the rest are
// that program's own flags.
//
//	kube etcd|kube-apiserver|kube-controller-manager [flags]
//
// Nothing in the programs is changed. They report the version that the linker
// sets, as in every build of Kubernetes:
//
//	-ldflags '-X k8s.io/component-base/version.gitVersion=v1.36.3'
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // as upstream: --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as upstream: client metrics in /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // as upstream: kubernetes_build_info
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	run(filepath.Base(os.Args[0]))
	if len(os.Args) > 1 {
		os.Args = os.Args[1:] // a program finds its own name and flags here
		run(os.Args[0])
	}
	fmt.Fprintln(os.Stderr, "usage: kube etcd|kube-apiserver|kube-controller-manager [flags]")
	os.Exit(2)
}

// run is the program of that name until the process exits. It returns only if
// there is no such program.
func run(program string) {
	switch program {
	case "etcd":
		etcdmain.Main(os.Args)
		os.Exit(0) // its gateway and proxy commands return
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	}
}
