// Package workload has the commands that register physical clusters, and that show where
// workloads run and why.
package workload

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cli/sharing"
	"github.com/unforked/kcp/internal/cluster"
)

// defaultName is the name of the Location and the Placement that commands create.
const defaultName = "default"

// Command returns the command "kubectl kcp workload".
func Command(a *command.App) *cobra.Command {
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
	cmd.AddCommand(syncCommand(a), targetsCommand(a), splitCommand(a), explainPlacementCommand(a), simulateCommand(a), describeTargetCommand(a),
		cordonCommand(a, true), cordonCommand(a, false), drainCommand(a), fenceCommand(a, true), fenceCommand(a, false), unsyncCommand(a))
	return cmd
}

// BindCommand returns the command "kubectl kcp bind compute".
func BindCommand(a *command.App) *cobra.Command {
	var timeout time.Duration
	var claims sharing.ClaimAnswers
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
		ValidArgsFunction: a.CompletePath,
	}
	claims.Flags(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", sharing.BoundWithin, "Timeout for the APIBinding to be bound.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return bindCompute(cmd.Context(), a, args[0], timeout, claims)
	}
	return cmd
}

func bindCompute(ctx context.Context, a *command.App, arg string, timeout time.Duration, claims sharing.ClaimAnswers) error {
	if err := claims.Check(); err != nil {
		return err
	}
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	here := srv.Base.Path
	path, err := a.Locate(ctx, srv, arg)
	if err != nil {
		return err
	}
	made, err := bindTo(ctx, a, srv, sharing.NewBinding{Path: path, Export: workload.KubernetesExport, Name: workload.KubernetesExport, Timeout: timeout, Claims: claims, Consents: true})
	if err != nil {
		return err
	}
	placements, err := srv.Objects(here, scheduling.GroupVersion, "placements")
	if err != nil {
		return err
	}
	have, err := placements.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return remote.About(here, "cannot list the Placements of workspace %q: %w", here, err)
	}
	if len(have.Items) == 0 {
		p := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scheduling.GroupVersion.String(), "kind": "Placement",
			"metadata": map[string]any{"name": defaultName}, "spec": map[string]any{}}}
		if _, err := placements.Create(ctx, p, metav1.CreateOptions{FieldManager: remote.UserAgent}); err != nil && !apierrors.IsAlreadyExists(err) {
			return remote.About(here, "cannot create the Placement %q in workspace %q: %w", defaultName, here, err)
		}
		a.Print.Note("Placement %q created: workloads of all namespaces run in any Location of %q.", defaultName, path)
	}
	a.Print.Say("Workspace '%s' runs %s on the physical clusters of '%s'.", here, strings.Join(made, ", "), path)
	return nil
}

// bindTo binds an export in the current workspace, and returns the resources that it has then.
func bindTo(ctx context.Context, a *command.App, srv *remote.Server, b sharing.NewBinding) ([]string, error) {
	here := srv.Base.Path
	bindings, err := srv.Objects(here, bindingVersion(), "apibindings")
	if err != nil {
		return nil, err
	}
	made, existed, err := b.Ensure(ctx, bindings)
	if err != nil {
		return nil, b.Explain(remote.About(here, "cannot bind export %q in workspace %q: %w", b.Export, here, err), here)
	}
	if !existed {
		a.Print.Note("APIBinding %q created.", b.Name)
	}
	if made, err = sharing.AwaitBound(ctx, a, bindings, made, b.Timeout); err != nil {
		return nil, err
	}
	answers := b.Claims.Answers()
	if len(answers) == 0 && b.Consents && (!existed || b.Claims.Selector != "") {
		answers = []sharing.ClaimAnswer{{State: apis.ClaimAccepted, Selector: b.Claims.Selector}}
	}
	for _, with := range answers {
		if made, err = with.Write(ctx, bindings, b.Name); err != nil {
			return nil, fmt.Errorf("APIBinding %q is bound, but its permission claims are not answered: %w", b.Name, err)
		}
	}
	sharing.PrintConsent(a, made)
	return sharing.BoundResources(made), nil
}

// A targetAction changes one SyncTarget.
type targetAction func(ctx context.Context, srv *remote.Server, targets dynamic.ResourceInterface, t *workload.SyncTarget) error

// withTarget opens the SyncTarget that the argument of a command names.
func withTarget(ctx context.Context, a *command.App, name string, act targetAction) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	targets, err := srv.Objects(srv.Base.Path, workload.GroupVersion, "synctargets")
	if err != nil {
		return err
	}
	o, err := targets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return noTargets(srv.Base.Path, fmt.Errorf("cannot read the physical cluster %q: %w", name, err))
	}
	t, err := targetOf(o)
	if err != nil {
		return err
	}
	return act(ctx, srv, targets, t)
}

// noTargets adds to an error that the workspace has no physical clusters, if that is the cause.
func noTargets(here cluster.Path, err error) error {
	if isUnserved(err) {
		return remote.About(here, "workspace %q has no physical clusters; to register one, run: kubectl kcp workload sync NAME --kubeconfig FILE", here)
	}
	return remote.About(here, "%w", err)
}

// isUnserved reports whether err is that of a workspace that does not serve SyncTargets.
func isUnserved(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && apierrors.IsNotFound(err) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

func targetOf(o *unstructured.Unstructured) (*workload.SyncTarget, error) {
	t := &workload.SyncTarget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, t); err != nil {
		return nil, fmt.Errorf("cannot decode SyncTarget %q: %w", o.GetName(), err)
	}
	return t, nil
}

// awaitTargetReady waits until a physical cluster is ready, and says why it is not.
func awaitTargetReady(ctx context.Context, a *command.App, targets dynamic.ResourceInterface, t *workload.SyncTarget, timeout time.Duration) (*workload.SyncTarget, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said, at := "", time.Now().Truncate(time.Second)
	err := remote.Follow(limited, targets, targetOf, t, func(now *workload.SyncTarget) (bool, error) {
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
			a.Print.Note("Waiting: %s: %s", c.Reason, said)
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
