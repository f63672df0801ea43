package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
)

func cordonCommand(a *command.App, cordon bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cordon NAME",
		Short:   "Keep new workloads away from a physical cluster",
		Long:    "Stop placing new replicas on a physical cluster. Replicas that run there stay.",
		Example: "  # Place nothing new on the physical cluster east\n  kubectl kcp workload cordon east",
	}
	if !cordon {
		cmd.Use, cmd.Short = "uncordon NAME", "Let a physical cluster take workloads again"
		cmd.Long = "Let a physical cluster take workloads again, after cordon or drain."
		cmd.Example = "  # Let the physical cluster east take workloads again\n  kubectl kcp workload uncordon east"
	}
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), cobra.NoFileCompletions
	var dry rehearsal
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withTarget(cmd.Context(), a, args[0], func(ctx context.Context, _ *remote.Server, targets dynamic.ResourceInterface, t *workload.SyncTarget) error {
			targets = dry.of(targets)
			taints := t.Spec.Taints
			if !cordon {
				taints = slices.DeleteFunc(slices.Clone(taints), drained)
			}
			if err := schedulable(ctx, targets, t, !cordon, taints); err != nil {
				return err
			}
			if cordon {
				a.Print.Say("Physical cluster %q takes no new replicas%s.", t.Name, dry.suffix())
			} else {
				a.Print.Say("Physical cluster %q takes workloads%s.", t.Name, dry.suffix())
			}
			return nil
		})
	}
	dry.flag(cmd, byClient, byServer)
	return cmd
}

// schedulable sets whether a target takes workloads, and its taints.
func schedulable(ctx context.Context, targets dynamic.ResourceInterface, t *workload.SyncTarget, takes bool, taints []corev1.Taint) error {
	if taints == nil {
		taints = []corev1.Taint{}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": !takes, "taints": taints}})
	if err != nil {
		return err
	}
	if _, err = targets.Patch(ctx, t.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: remote.UserAgent}); err != nil {
		return fmt.Errorf("cannot change the physical cluster %q: %w", t.Name, err)
	}
	return nil
}

func drainCommand(a *command.App) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "Move all workloads away from a physical cluster",
		Long:  "Move all workloads from a physical cluster to others, and wait until it has none. A workload leaves after its replacements are available. A workload that no other cluster can take stays.",
		Example: `  # Move all workloads away from the physical cluster east
  kubectl kcp workload drain east`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "Timeout for the workloads to leave.")
	var dry rehearsal
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withTarget(cmd.Context(), a, args[0], func(ctx context.Context, srv *remote.Server, targets dynamic.ResourceInterface, t *workload.SyncTarget) error {
			taints := append(slices.DeleteFunc(slices.Clone(t.Spec.Taints), drained),
				corev1.Taint{Key: workload.DrainTaint, Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(time.Now().Truncate(time.Second)))})
			if err := schedulable(ctx, dry.of(targets), t, false, taints); err != nil {
				return err
			}
			if dry.active() {
				a.Print.Say("Physical cluster %q takes no new replicas, and its workloads leave%s.", t.Name, dry.suffix())
				a.Print.Note("To find out where they would run, run: kubectl kcp workload simulate --down %s", t.Name)
				return nil
			}
			a.Print.Note("Physical cluster %q takes no new replicas; its workloads leave.", t.Name)
			if err := awaitEmpty(ctx, a, srv, t, timeout); err != nil {
				return err
			}
			a.Print.Say("Physical cluster %q runs no workloads. To use it again, run: kubectl kcp workload uncordon %s", t.Name, t.Name)
			return nil
		})
	}
	dry.flag(cmd, byClient, byServer)
	return cmd
}

// awaitEmpty waits until a physical cluster has no workloads.
func awaitEmpty(ctx context.Context, a *command.App, srv *remote.Server, t *workload.SyncTarget, timeout time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said := -1
	for {
		loads, err := loadsOf(limited, srv, t)
		if err != nil && limited.Err() == nil {
			return fmt.Errorf("the workloads leave, but you may not see how many are left: %w", err)
		}
		left := loads[t.Status.Key].workloads
		if err == nil && left == 0 {
			return nil
		}
		if err == nil && left != said {
			said = left
			a.Print.Note("Waiting: %s left", output.Count(left, "workload"))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limited.Done():
			return fmt.Errorf("physical cluster %q still has %s after %s; they stay until their replacements are available. kubectl kcp workload get says why, in their workspaces", t.Name, output.Count(max(said, 0), "workload"), timeout)
		case <-time.After(remote.RetryAfter):
		}
	}
}

func unsyncCommand(a *command.App) *cobra.Command {
	var timeout time.Duration
	var orphan bool
	cmd := &cobra.Command{
		Use:   "unsync NAME",
		Short: "Remove a physical cluster from the current workspace",
		Long:  "Remove a physical cluster from the current workspace. Its workloads move to other physical clusters first. The objects of a physical cluster that does not answer stay there. With --orphan, the objects of one that answers stay, too, and no longer belong to a workspace.",
		Example: `  # Remove the physical cluster east
  kubectl kcp workload unsync east

  # Leave in it what runs there
  kubectl kcp workload unsync east --orphan`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "Timeout for the workloads to leave.")
	cmd.Flags().BoolVar(&orphan, "orphan", false, "Leave the objects in the physical cluster.")
	var dry rehearsal
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withTarget(cmd.Context(), a, args[0], func(ctx context.Context, srv *remote.Server, targets dynamic.ResourceInterface, t *workload.SyncTarget) error {
			targets = dry.of(targets)
			if orphan {
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, workload.OrphanAnnotation)
				if _, err := targets.Patch(ctx, t.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: remote.UserAgent}); err != nil {
					return fmt.Errorf("cannot change the physical cluster %q: %w", t.Name, err)
				}
			}
			if err := targets.Delete(ctx, t.Name, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("cannot delete the physical cluster %q: %w", t.Name, err)
			}
			if dry.active() {
				a.Print.Say("Physical cluster %q is removed after its workloads have left%s.", t.Name, dry.suffix())
				return nil
			}
			a.Print.Note("SyncTarget %q is being deleted; its workloads leave.", t.Name)
			if err := awaitLeft(ctx, targets, t, timeout); err != nil {
				return err
			}
			return removed(ctx, a, srv, t)
		})
	}
	dry.flag(cmd, byClient, byServer)
	return cmd
}

// awaitLeft waits until the workloads of a deleted SyncTarget have left, and it is gone.
func awaitLeft(ctx context.Context, targets dynamic.ResourceInterface, t *workload.SyncTarget, timeout time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := remote.Follow(limited, targets, targetOf, t, func(*workload.SyncTarget) (bool, error) { return false, nil })
	switch {
	case errors.Is(err, remote.ErrDeleted), apierrors.IsNotFound(err):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fmt.Errorf("the workloads of physical cluster %q have not left it after %s; they stay until their replacements are available, and the server goes on", t.Name, timeout)
	default:
		return err
	}
}

// removed deletes the stored kubeconfig of a SyncTarget that is gone, and prints what is left to do.
func removed(ctx context.Context, a *command.App, srv *remote.Server, t *workload.SyncTarget) error {
	if t.Spec.Push != nil && t.Spec.Push.KubeconfigSecretRef.Namespace == secretsNamespace {
		all, err := srv.Resource(srv.Base.Path, corev1.SchemeGroupVersion.WithResource("secrets"))
		if err != nil {
			return err
		}
		if err := all.Namespace(secretsNamespace).Delete(ctx, t.Spec.Push.KubeconfigSecretRef.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Secret with the kubeconfig remains: %w", err)
		}
	}
	a.Print.Say("Physical cluster %q is removed.", t.Name)
	if t.Spec.Mode == workload.PullMode {
		a.Print.Note("Its agent is still installed there, and can reach nothing here. To remove it, run in the physical cluster: kubectl delete namespace,clusterrole,clusterrolebinding %s", agentNamespace(t))
	}
	return nil
}

func describeTargetCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "describe NAME",
		Short: "Print the state of a physical cluster",
		Long:  "Print the state of a physical cluster of the current workspace, and why it is not ready.",
		Example: `  # Print the state of the physical cluster east
  kubectl kcp workload describe east`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withTarget(cmd.Context(), a, args[0], func(ctx context.Context, srv *remote.Server, _ dynamic.ResourceInterface, t *workload.SyncTarget) error {
				describeTarget(ctx, a, srv, t)
				return nil
			})
		},
	}
}

func describeTarget(ctx context.Context, a *command.App, srv *remote.Server, t *workload.SyncTarget) {
	rows := [][]string{
		{"Name:", t.Name}, {"Labels:", output.OrDash(labels.FormatLabels(t.Labels))}, {"Ready:", readiness(t)}, {"Takes workloads:", admits(t)},
		{"Version:", output.OrDash(t.Status.Version)}, {"Mode:", string(t.Spec.Mode)},
	}
	if at := t.Status.LastSyncerHeartbeatTime; at != nil {
		rows = append(rows, []string{"Last heartbeat:", at.Format(time.RFC3339)})
	}
	if at := t.Status.UnreachableSince; at != nil {
		rows = append(rows, []string{"Unreachable since:", at.Format(time.RFC3339)})
	}
	if loads, err := loadsOf(ctx, srv, t); err == nil {
		l := loads[t.Status.Key]
		rows = append(rows, []string{"Runs:", fmt.Sprintf("%s, %s", output.Count(l.workloads, "workload"), output.Count(l.replicas, "replica"))})
	}
	for _, c := range t.Status.Conditions {
		if belt := c.Type == workload.Fenced || c.Type == workload.EvictionsHeld; belt == (c.Status == metav1.ConditionTrue) {
			rows = append(rows, []string{string(c.Type) + ":", fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message)})
		}
	}
	a.Print.Table(rows)
}
