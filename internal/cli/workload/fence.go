package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/remote"
)

// fencedWithin is the timeout for the server to take note of a fence.
const fencedWithin = 30 * time.Second

func fenceCommand(a *command.App, fence bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence NAME",
		Short: "Say that nothing runs in a physical cluster that does not answer",
		Long: `Say that no workload runs in a physical cluster that does not answer, and that none starts there before the cluster answers the server again. Make sure of that first: cut its power or its network. What runs at one place only, such as a StatefulSet, then begins elsewhere, and would run twice if you were wrong. Workloads also leave a fenced cluster while most others do not answer.

The fence ends when the cluster answers. It takes no workloads until it has removed what began elsewhere.`,
		Example: "  # The physical cluster east has burned down\n  kubectl kcp workload fence east",
	}
	if !fence {
		cmd.Use, cmd.Short = "unfence NAME", "Take back that nothing runs in a physical cluster"
		cmd.Long = "Take back what fence says about a physical cluster that does not answer. What has begun elsewhere stays there."
		cmd.Example = "  # The physical cluster east may still run workloads\n  kubectl kcp workload unfence east"
	}
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), cobra.NoFileCompletions
	var dry rehearsal
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withTarget(cmd.Context(), a, args[0], func(ctx context.Context, _ *remote.Server, targets dynamic.ResourceInterface, t *workload.SyncTarget) error {
			targets = dry.of(targets)
			if fence {
				return fenceTarget(ctx, a, targets, t, dry)
			}
			if _, err := setFence(ctx, targets, t, nil); err != nil {
				return err
			}
			a.Print.Say("Physical cluster %q is not fenced%s.", t.Name, dry.suffix())
			return nil
		})
	}
	dry.flag(cmd, byClient, byServer)
	return cmd
}

// setFence sets the fence of a target, or removes it.
func setFence(ctx context.Context, targets dynamic.ResourceInterface, t *workload.SyncTarget, fence *workload.SyncTargetFence) (*workload.SyncTarget, error) {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"fence": fence}})
	if err != nil {
		return nil, err
	}
	o, err := targets.Patch(ctx, t.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: remote.UserAgent})
	if err != nil {
		return nil, fmt.Errorf("cannot change the physical cluster %q: %w", t.Name, err)
	}
	return targetOf(o)
}

func fenceTarget(ctx context.Context, a *command.App, targets dynamic.ResourceInterface, t *workload.SyncTarget, dry rehearsal) error {
	since := t.Status.UnreachableSince
	ready := t.Status.Conditions.Get(conditions.Ready)
	switch {
	case since == nil && ready != nil && ready.Reason == workload.AgentLost:
		return fmt.Errorf("physical cluster %q is known to live: %s; to move its workloads nevertheless, remove its probes, or run: kubectl kcp workload unsync %s", t.Name, ready.Message, t.Name)
	case since == nil:
		return fmt.Errorf("physical cluster %q answers, or has not been silent for long enough; to move its workloads, run: kubectl kcp workload drain %s", t.Name, t.Name)
	}
	made, err := setFence(ctx, targets, t, &workload.SyncTargetFence{UnreachableSince: *since})
	if err != nil {
		return err
	}
	if dry.active() {
		a.Print.Say("Physical cluster %q is fenced: what runs at one place only begins elsewhere%s.", t.Name, dry.suffix())
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, fencedWithin)
	defer cancel()
	err = remote.Follow(limited, targets, targetOf, made, func(now *workload.SyncTarget) (bool, error) {
		if now.Status.UnreachableSince == nil {
			return false, errors.New("it answers again")
		}
		return now.Status.Conditions.IsTrue(workload.Fenced), nil
	})
	if err != nil {
		return fmt.Errorf("physical cluster %q is not fenced: %w", t.Name, err)
	}
	a.Print.Say("Physical cluster %q is fenced: what runs at one place only begins elsewhere. The fence ends when the cluster answers.", t.Name)
	return nil
}
