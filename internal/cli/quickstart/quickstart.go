// Package quickstart has the command that fills a server with a sample of workspaces and APIs.
package quickstart

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cli/workspaces"
	"github.com/unforked/kcp/internal/cluster"
)

// A quickstart is a tree of sample workspaces.
type quickstart struct {
	scenario, prefix        string
	cleanup, enter, samples bool
	timeout                 time.Duration
	depth, count            int
	seed                    uint64
}

// Command returns the command "kubectl kcp quickstart".
func Command(a *command.App) *cobra.Command {
	var q quickstart
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "Create a tree of sample workspaces, or a sample of a shared API",
		Long:  "Create a tree of sample workspaces below the current one, or delete it again. The same seed results in the same tree. With --scenario api-provider, create a workspace that exports an API and one that binds it.",
		Example: `  # Create a tree with a config map in each workspace, and enter it
  kubectl kcp quickstart --with-samples --enter

  # Create a deeper tree with another name
  kubectl kcp quickstart --name-prefix deep --tree-depth 5 --tree-count 30

  # Create a workspace that exports an API, and one that binds it
  kubectl kcp quickstart --scenario api-provider --name-prefix apis --with-samples

  # Delete the tree
  kubectl kcp quickstart --cleanup`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runQuickstart(cmd.Context(), a, q) },
	}
	flags := cmd.Flags()
	flags.StringVar(&q.scenario, "scenario", "workspaces", "What to create: workspaces, or api-provider: a workspace that exports an API, and one that binds it.")
	flags.StringVar(&q.prefix, "name-prefix", "quickstart", "Name of the workspace at the top of the tree, and prefix of the names below.")
	flags.BoolVar(&q.cleanup, "cleanup", false, "Delete the tree.")
	flags.BoolVar(&q.enter, "enter", false, "Enter the workspace at the top of the tree.")
	flags.BoolVar(&q.samples, "with-samples", false, "Create a config map in each workspace, or an object of the shared API.")
	flags.DurationVar(&q.timeout, "timeout", command.ReadyWithin, "Timeout for the whole command.")
	flags.IntVar(&q.depth, "tree-depth", 3, "Number of levels below the top.")
	flags.IntVar(&q.count, "tree-count", 6, "Number of workspaces below the top.")
	flags.Uint64Var(&q.seed, "tree-seed", 1, "Seed of the random shape of the tree.")
	return cmd
}

func runQuickstart(ctx context.Context, a *command.App, q quickstart) error {
	switch {
	case q.scenario != "workspaces" && q.scenario != "api-provider":
		return fmt.Errorf("there is no --scenario %q; use workspaces or api-provider", q.scenario)
	case q.count > 0 && q.depth < 1 || q.count < 0:
		return errors.New("--tree-depth and --tree-count must be positive")
	}
	limited, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	if q.cleanup {
		return workspaces.DeleteWorkspace(limited, a, ".:"+q.prefix, true)
	}
	s, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	top := s.Here.Path.Join(q.prefix)
	if _, err := cluster.ParsePath(string(top)); err != nil {
		return paths.InvalidName(q.prefix)
	}
	if err := plantTree(limited, a, srv, top, q); err != nil {
		return err
	}
	if !q.enter {
		return nil
	}
	return workspaces.Enter(ctx, a, s, srv, top)
}

// plantTree creates what the scenario has below top.
func plantTree(ctx context.Context, a *command.App, srv *remote.Server, top cluster.Path, q quickstart) error {
	if q.scenario == "api-provider" {
		return shareSample(ctx, a, srv, top, q)
	}
	for _, path := range q.tree(top) {
		if err := plantWorkspace(ctx, a, srv, path, q.samples); err != nil {
			return err
		}
	}
	a.Print.Say("Created the tree below '%s'. To see it, run: kubectl ws tree :%[1]s", top)
	return nil
}

// tree returns the paths of all workspaces, parents before children.
func (q quickstart) tree(top cluster.Path) []cluster.Path {
	random := rand.New(rand.NewPCG(q.seed, 0))
	paths, depths := []cluster.Path{top}, []int{0}
	for i := 1; i <= q.count; i++ {
		up := random.IntN(len(paths))
		for depths[up] >= q.depth { // the top always has room
			up = random.IntN(len(paths))
		}
		paths = append(paths, paths[up].Join(fmt.Sprintf("%s-%d", q.prefix, i)))
		depths = append(depths, depths[up]+1)
	}
	return paths
}

// plantWorkspace creates the workspace at path, and a sample in it, unless they exist.
func plantWorkspace(ctx context.Context, a *command.App, srv *remote.Server, path cluster.Path, sample bool) error {
	up, name, _ := paths.Parent(path)
	w := &tenancy.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.SetGroupVersionKind(tenancy.GroupVersion.WithKind("Workspace"))
	made, err := srv.Create(ctx, up, w)
	if apierrors.IsAlreadyExists(err) {
		made, err = srv.Get(ctx, up, name)
	}
	if err == nil {
		_, err = workspaces.AwaitReady(ctx, a, srv, up, made)
	}
	if err != nil {
		return remote.About(path, "cannot create workspace %q: %w", path, err)
	}
	a.Print.Note("%s", path)
	if !sample {
		return nil
	}
	core, err := coreclient.NewForConfigAndClient(srv.In(path), srv.Client)
	if err != nil {
		return err
	}
	hello := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hello"}, Data: map[string]string{"from": string(path)}}
	_, err = core.ConfigMaps(metav1.NamespaceDefault).Create(ctx, hello, metav1.CreateOptions{FieldManager: remote.UserAgent})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return remote.About(path, "cannot create a sample in workspace %q: %w", path, err)
	}
	return nil
}
