package cli

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
	"github.com/unforked/kcp/internal/cluster"
)

func (a *app) deleteCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "delete WORKSPACE",
		Short: "Delete a workspace with everything in it and below it",
		Long:  "Delete a workspace with everything in it and below it, and wait until it is gone. While it waits, the command prints what the deletion waits for. If you interrupt the command, the deletion goes on.",
		Example: `  # Delete a workspace below the current one
  kubectl ws delete team

  # Start the deletion and do not wait for it
  kubectl ws delete :root:org:team --wait=false`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.delete(cmd.Context(), args[0], wait)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "Wait until the workspace is gone.")
	return cmd
}

func (a *app) delete(ctx context.Context, arg string, wait bool) error {
	s, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	path, err := a.locate(ctx, srv, arg)
	if err != nil {
		return err
	}
	up, name, ok := parent(path)
	if !ok {
		return fmt.Errorf("workspace %q cannot be deleted: it has no parent", path)
	}
	if s.here.path == path || strings.HasPrefix(string(s.here.path), string(path)+":") {
		return fmt.Errorf("your current workspace is %q; leave it before you delete it: kubectl ws :%s", s.here.path, up)
	}
	w, err := srv.get(ctx, up, name)
	if err == nil {
		err = srv.remove(ctx, up, w)
	}
	if err != nil {
		return fmt.Errorf("cannot delete workspace %q: %w", path, err)
	}
	if !wait {
		a.print.say("Workspace %q is being deleted.", name)
		return nil
	}
	if err := a.awaitGone(ctx, srv, up, w); err != nil {
		return fmt.Errorf("workspace %q is being deleted, but is not gone yet: %w", path, err)
	}
	a.print.say("Workspace %q is gone.", name)
	return nil
}

// remove deletes w, and no other workspace of that name.
func (s *server) remove(ctx context.Context, path cluster.Path, w *tenancy.Workspace) error {
	workspaces, err := s.workspaces(path)
	if err != nil {
		return err
	}
	return workspaces.Delete(ctx, w.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &w.UID}})
}

// awaitGone waits until w is gone. Meanwhile it prints what the deletion waits for.
func (a *app) awaitGone(ctx context.Context, srv *server, path cluster.Path, w *tenancy.Workspace) error {
	said := ""
	err := srv.follow(ctx, path, w, func(now *tenancy.Workspace) (bool, error) {
		if now.UID != w.UID {
			return true, nil // a new workspace of that name
		}
		if now.DeletionTimestamp == nil || now.Status.Phase == core.PhaseReady {
			return false, nil // no condition is set yet
		}
		if why := reason(now); why != said {
			said = why
			a.print.note("Waiting%s", why)
		}
		return false, nil
	})
	if errors.Is(err, errDeleted) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
