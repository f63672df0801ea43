// Command existing uses the libraries of the existing kcp, unchanged, as its clients do: the
// typed clients and cluster-aware informers of its sdk, and its providers for
// multicluster-runtime. It takes the kubeconfig of a new server, prints a line for each step, and
// ends with 1 at the first failure.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("usage: existing KUBECONFIG")
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: os.Args[1]}, &clientcmd.ConfigOverrides{CurrentContext: "shard-base"}).ClientConfig()
	if err != nil {
		return err
	}
	cfg.QPS = -1
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for _, step := range []struct {
		name string
		do   func(context.Context, *rest.Config) error
	}{
		{"workspaces", workspaces},
		{"informers", informers},
		{"export", export},
		{"older versions", older},
		{"bind", bind},
		{"labels", labels},
		{"other kinds", others},
		{"provider", provide},
		{"initializer", initialize},
	} {
		if err := step.do(ctx, cfg); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println("ok", step.name)
	}
	return nil
}

// eventually repeats a check until it holds.
func eventually(ctx context.Context, check func(context.Context) (bool, error)) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, check)
}
