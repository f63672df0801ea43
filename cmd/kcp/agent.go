package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/internal/workload/agent"
)

// agentOptions are the flags of the agent.
type agentOptions struct {
	bootstrap, kubeconfig, namespace, replica string
	renew                                     time.Duration
}

func agentCommand() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a physical cluster",
		Long: `Run the agent of a physical cluster that is registered in mode Pull. The agent calls the server and
the physical cluster, and nothing calls it. "kubectl kcp workload sync --mode Pull" installs it.`,
		Example: `  # Beside a physical cluster, with its kubeconfig
  kcp agent --bootstrap-kubeconfig bootstrap.kubeconfig --kubeconfig east.kubeconfig --namespace kcp-agent`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return o.run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.bootstrap, "bootstrap-kubeconfig", "", "File that kubectl kcp workload sync made: the URL of the server, its authority, and a token for the first certificate.")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig of the physical cluster. (default the service account of the pod)")
	f.StringVar(&o.namespace, "namespace", "kcp-agent", "Namespace of the agent in the physical cluster, for its certificate and the Lease of its replicas.")
	f.StringVar(&o.replica, "replica", "", "Name of this replica. (default the name of the host)")
	f.DurationVar(&o.renew, "heartbeat-interval", 10*time.Second, "Time between two heartbeats.")
	return cmd
}

func (o agentOptions) run(ctx context.Context) error {
	if o.bootstrap == "" {
		return errors.New("--bootstrap-kubeconfig is missing; kubectl kcp workload sync --mode Pull makes the file")
	}
	text, err := os.ReadFile(o.bootstrap)
	if err != nil {
		return fmt.Errorf("cannot read the bootstrap kubeconfig: %w", err)
	}
	var config *rest.Config
	if o.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	} else if config, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
		err = errors.New("the agent is in no pod; name the physical cluster with --kubeconfig")
	}
	if err != nil {
		return fmt.Errorf("cannot reach the physical cluster: %w", err)
	}
	if o.replica == "" {
		if o.replica, err = os.Hostname(); err != nil {
			return err
		}
		o.replica = fmt.Sprintf("%s-%d", o.replica, os.Getpid())
	}
	return agent.Run(ctx, agent.Options{Bootstrap: text, Physical: config, Namespace: o.namespace, Replica: o.replica, Renew: o.renew})
}
