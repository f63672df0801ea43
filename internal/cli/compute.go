package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// defaultName is the name of the Location and the Placement that commands create.
const defaultName = "default"

func (a *app) workloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "workload",
		Aliases: []string{"workloads"},
		Short:   "Run workloads on physical clusters",
		Long:    "Register physical clusters in the current workspace, and find out where workloads run.",
		Example: `  # Register a physical cluster
  kubectl kcp workload sync east --kubeconfig east.kubeconfig --labels region=east

  # List the physical clusters
  kubectl kcp workload list

  # Print which locations run a Deployment
  kubectl kcp workload get deployment/web`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.syncCommand(), a.targetsCommand(), a.splitCommand(), a.explainPlacementCommand(), a.simulateCommand(), a.describeTargetCommand(),
		a.cordonCommand(true), a.cordonCommand(false), a.drainCommand(), a.fenceCommand(true), a.fenceCommand(false), a.unsyncCommand())
	return cmd
}

func (a *app) bindComputeCommand() *cobra.Command {
	var timeout time.Duration
	var claims claimAnswers
	cmd := &cobra.Command{
		Use:   "compute PATH",
		Short: "Run the workloads of the current workspace on the physical clusters of another one",
		Long: `Bind the export "` + workload.KubernetesExport + `" of a compute workspace in the current workspace, and create the Placement "` + defaultName + `" if there is no Placement. The workspace then serves kinds such as Deployments, which run on physical clusters of the compute workspace.

ConfigMaps, Secrets and service accounts that workloads refer to go with them. So the command accepts the permission claims of the export: the owner of the compute workspace may read these objects in this workspace. --selector limits that to objects with some labels; --reject-permission-claim and --reject-all-permission-claims refuse it.

You need the permission to create APIBindings and Placements here, and the verb "bind" on the export in the compute workspace.`,
		Example: `  # Use the physical clusters of the workspace root:compute
  kubectl kcp bind compute :root:compute

  # Let workloads use objects with a label only
  kubectl kcp bind compute :root:compute --selector compute=yes`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completePath,
	}
	claims.flags(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", boundWithin, "Timeout for the APIBinding to be bound.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.bindCompute(cmd.Context(), args[0], timeout, claims)
	}
	return cmd
}

func (a *app) bindCompute(ctx context.Context, arg string, timeout time.Duration, claims claimAnswers) error {
	_, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	here := srv.base.path
	path, err := a.locate(ctx, srv, arg)
	if err != nil {
		return err
	}
	made, err := a.bindTo(ctx, srv, bindExport{path: path, export: workload.KubernetesExport, name: workload.KubernetesExport, timeout: timeout, claims: claims, consents: true})
	if err != nil {
		return err
	}
	placements, err := srv.objects(here, scheduling.GroupVersion, "placements")
	if err != nil {
		return err
	}
	have, err := placements.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return about(here, "cannot list the Placements of workspace %q: %w", here, err)
	}
	if len(have.Items) == 0 {
		p := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scheduling.GroupVersion.String(), "kind": "Placement",
			"metadata": map[string]any{"name": defaultName}, "spec": map[string]any{}}}
		if _, err := placements.Create(ctx, p, metav1.CreateOptions{FieldManager: userAgent}); err != nil && !apierrors.IsAlreadyExists(err) {
			return about(here, "cannot create the Placement %q in workspace %q: %w", defaultName, here, err)
		}
		a.print.note("Placement %q created: workloads of all namespaces run in any Location of %q.", defaultName, path)
	}
	a.print.say("Workspace '%s' runs %v on the physical clusters of '%s'.", here, made, path)
	return nil
}

// bindTo binds an export in the current workspace, and returns the resources that it has then.
func (a *app) bindTo(ctx context.Context, srv *server, b bindExport) ([]string, error) {
	here := srv.base.path
	bindings, err := srv.objects(here, bindingVersion(), "apibindings")
	if err != nil {
		return nil, err
	}
	made, existed, err := b.ensure(ctx, bindings)
	if err != nil {
		return nil, b.explain(about(here, "cannot bind export %q in workspace %q: %w", b.export, here, err), here)
	}
	if !existed {
		a.print.note("APIBinding %q created.", b.name)
	}
	if made, err = a.awaitBound(ctx, bindings, made, b.timeout); err != nil {
		return nil, err
	}
	answers := b.claims.answers()
	if len(answers) == 0 && b.consents && (!existed || b.claims.selector != "") {
		answers = []claimAnswer{{state: apis.ClaimAccepted, selector: b.claims.selector}}
	}
	for _, with := range answers {
		if made, err = with.write(ctx, bindings, b.name); err != nil {
			return nil, fmt.Errorf("APIBinding %q is bound, but its permission claims are not answered: %w", b.name, err)
		}
	}
	a.consented(made)
	return boundResources(made), nil
}

// A targetAction changes one SyncTarget.
type targetAction func(ctx context.Context, srv *server, targets dynamic.ResourceInterface, t *workload.SyncTarget) error

// withTarget opens the SyncTarget that the argument of a command names.
func (a *app) withTarget(ctx context.Context, name string, act targetAction) error {
	_, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	targets, err := srv.objects(srv.base.path, workload.GroupVersion, "synctargets")
	if err != nil {
		return err
	}
	o, err := targets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return noTargets(srv.base.path, fmt.Errorf("cannot read the physical cluster %q: %w", name, err))
	}
	t, err := targetOf(o)
	if err != nil {
		return err
	}
	return act(ctx, srv, targets, t)
}

// noTargets adds to an error that the workspace has no physical clusters, if that is the cause.
func noTargets(here cluster.Path, err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && apierrors.IsNotFound(err) && (status.Status().Details == nil || status.Status().Details.Name == "") {
		return about(here, "workspace %q has no physical clusters; to register one, run: kubectl kcp workload sync NAME --kubeconfig FILE", here)
	}
	return about(here, "%w", err)
}

func targetOf(o *unstructured.Unstructured) (*workload.SyncTarget, error) {
	t := &workload.SyncTarget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, t); err != nil {
		return nil, fmt.Errorf("cannot decode SyncTarget %q: %w", o.GetName(), err)
	}
	return t, nil
}

// awaitReady waits until a physical cluster is ready, and says why it is not.
func (a *app) awaitReady(ctx context.Context, targets dynamic.ResourceInterface, t *workload.SyncTarget, timeout time.Duration) (*workload.SyncTarget, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said, at := "", time.Now().Truncate(time.Second)
	err := follow(limited, targets, targetOf, t, func(now *workload.SyncTarget) (bool, error) {
		t = now
		c := now.Status.Conditions.Get(conditions.Ready)
		switch {
		case now.DeletionTimestamp != nil:
			return false, errors.New("it is being deleted")
		case c == nil:
			return false, nil
		case c.Status == metav1.ConditionTrue:
			return true, nil
		}
		if c.Message != said {
			said = c.Message
			a.print.note("Waiting: %s: %s", c.Reason, said)
		}
		if final(c.Reason) && !c.LastTransitionTime.Time.Before(at) {
			return false, errors.New(said)
		}
		return false, nil
	})
	switch {
	case err == nil:
		return t, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil && said != "":
		err = fmt.Errorf("%s; timed out after %s, and the server goes on trying", said, timeout)
	case limited.Err() != nil:
		err = fmt.Errorf("timed out after %s; the server goes on trying", timeout)
	}
	return nil, fmt.Errorf("physical cluster %q is not ready: %w", t.Name, err)
}

// final reports whether waiting does not help.
func final(reason string) bool {
	return reason == workload.KubeconfigInvalid || reason == workload.Unauthorized || reason == workload.TooOld
}
