package workspaces

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

func deleteCommand(a *command.App) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "delete WORKSPACE", SuggestFor: []string{"rm", "remove"},
		Short: "Delete a workspace with everything in it and below it",
		Long:  "Delete a workspace with everything in it and below it, and wait until it is gone. While it waits, the command prints what the deletion waits for. If you interrupt the command, the deletion goes on.",
		Example: `  # Delete a workspace below the current one
  kubectl ws delete team

  # Start the deletion and do not wait for it
  kubectl ws delete :root:org:team --wait=false`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return DeleteWorkspace(cmd.Context(), a, args[0], wait)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "Wait until the workspace is gone.")
	return cmd
}

// DeleteWorkspace deletes the workspace that arg names, and may wait until it is gone.
func DeleteWorkspace(ctx context.Context, a *command.App, arg string, wait bool) error {
	s, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	path, err := a.Locate(ctx, srv, arg)
	if err != nil {
		return err
	}
	up, name, ok := paths.Parent(path)
	if !ok {
		return fmt.Errorf("workspace %q cannot be deleted: it has no parent", path)
	}
	if s.Here.Path == path || strings.HasPrefix(string(s.Here.Path), string(path)+":") {
		return fmt.Errorf("your current workspace is %q; leave it before you delete it: kubectl ws :%s", s.Here.Path, up)
	}
	w, err := srv.Get(ctx, up, name)
	if err == nil {
		err = removeWorkspace(ctx, srv, up, w)
	}
	if err != nil {
		return fmt.Errorf("cannot delete workspace %q: %w", path, err)
	}
	if !wait {
		a.Print.Say("Workspace %q is being deleted.", name)
		return nil
	}
	if err := awaitGone(ctx, a, srv, up, w); err != nil {
		return fmt.Errorf("workspace %q is being deleted, but is not gone yet: %w", path, err)
	}
	a.Print.Say("Workspace %q is gone.", name)
	return nil
}

// removeWorkspace deletes w, and no other workspace of that name.
func removeWorkspace(ctx context.Context, s *remote.Server, path cluster.Path, w *tenancy.Workspace) error {
	workspaces, err := s.Workspaces(path)
	if err != nil {
		return err
	}
	return workspaces.Delete(ctx, w.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &w.UID}})
}

// awaitGone waits until w is gone. Meanwhile it prints what the deletion waits for.
func awaitGone(ctx context.Context, a *command.App, srv *remote.Server, path cluster.Path, w *tenancy.Workspace) error {
	said := ""
	err := srv.Follow(ctx, path, w, func(now *tenancy.Workspace) (bool, error) {
		if now.UID != w.UID {
			return true, nil // a new workspace of that name
		}
		if now.DeletionTimestamp == nil || now.Status.Phase == core.PhaseReady {
			return false, nil // no condition is set yet
		}
		if why := remote.Reason(now); why != said {
			said = why
			a.Print.Note("Waiting%s", why)
		}
		return false, nil
	})
	if errors.Is(err, remote.ErrDeleted) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
