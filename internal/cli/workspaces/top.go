package workspaces

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

func topCommand(a *command.App) *cobra.Command {
	var f output.Format
	var resources bool
	cmd := &cobra.Command{
		Use:   "top [WORKSPACE]",
		Short: "Show what workspaces store",
		Long: `Show what the current workspace or another one stores, and what the workspaces in it store with everything below them, the largest first. Sizes are those in the database.

With --resources, it shows one workspace by resource: what it stores, its requests since it was created, up to about a minute ago, and the watches that the server has open now.

This needs the verb get on logicalclusters/usage in each workspace that is shown, and list on workspaces.`,
		Example: `  # Show what the current workspace and those in it store
  kubectl ws top

  # Show what all workspaces of a server store
  kubectl ws top :

  # Show what a workspace stores and how much it is used, by resource
  kubectl ws top team --resources`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.Complete,
	}
	output.Flag(cmd, &f, []output.Format{output.JSON, output.YAML})
	cmd.Flags().BoolVar(&resources, "resources", false, "Show only this workspace, by resource, with its requests.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return showUsage(cmd.Context(), a, args, resources, f)
	}
	return cmd
}

func showUsage(ctx context.Context, a *command.App, args []string, resources bool, f output.Format) error {
	_, srv, err := openAt(ctx, a, args)
	if err != nil {
		return err
	}
	own, err := storedIn(ctx, srv, srv.Base.Path)
	if err != nil {
		return remote.About(srv.Base.Path, "cannot read what workspace %q stores: %w", srv.Base.Path, err)
	}
	if resources {
		if f.Encoded() {
			return a.Print.Result(f, own)
		}
		a.Print.Table(resourceRows(own))
		return nil
	}
	all, err := storedBelow(ctx, srv)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *usageOf) int {
		return cmp.Or(cmp.Compare(b.bytes(), a.bytes()), cmp.Compare(a.Name, b.Name))
	})
	if f.Encoded() {
		return a.Print.Result(f, struct {
			*core.LogicalClusterUsage `json:",inline"`
			Workspaces                []*usageOf `json:"workspaces"`
		}{own, all})
	}
	rows := [][]string{{"NAME", "WORKSPACES", "OBJECTS", "SIZE"}, {".", "1", strconv.FormatInt(own.Total.Objects, 10), sizeText(own.Total.Bytes)}}
	for _, u := range all {
		rows = append(rows, u.row())
	}
	a.Print.Table(rows)
	return nil
}

// usageOf is what a workspace stores, with everything below it.
type usageOf struct {
	Name   string                    `json:"name"`
	Usage  *core.LogicalClusterUsage `json:"usage,omitempty"`
	Remark string                    `json:"remark,omitempty"` // why it is unknown
}

func (u *usageOf) bytes() int64 {
	if u.Usage == nil {
		return -1
	}
	return u.Usage.Total.Bytes + u.Usage.Below.Bytes
}

func (u *usageOf) row() []string {
	if u.Usage == nil {
		return []string{u.Name + " (" + u.Remark + ")", output.OrDash(""), output.OrDash(""), output.OrDash("")}
	}
	return []string{u.Name, strconv.FormatInt(1+u.Usage.Below.Workspaces, 10), strconv.FormatInt(u.Usage.Total.Objects+u.Usage.Below.Objects, 10), sizeText(u.bytes())}
}

func resourceRows(u *core.LogicalClusterUsage) [][]string {
	rows := [][]string{{"RESOURCE", "OBJECTS", "SIZE", "READS", "WRITES", "WATCHES"}}
	largest := slices.SortedStableFunc(slices.Values(u.Resources), func(a, b core.StoredResource) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for _, r := range largest {
		rows = append(rows, []string{schema.GroupResource{Group: r.Group, Resource: r.Resource}.String(), strconv.FormatInt(r.Objects, 10), sizeText(r.Bytes),
			strconv.FormatInt(r.Requests["get"]+r.Requests["list"]+r.Requests["watch"], 10), strconv.FormatInt(writesOf(r), 10), strconv.FormatInt(r.Watches, 10)})
	}
	return rows
}

// writesOf returns the number of requests that are neither get, list nor watch.
func writesOf(r core.StoredResource) (n int64) {
	for verb, count := range r.Requests {
		if !slices.Contains([]string{"get", "list", "watch"}, verb) {
			n += count
		}
	}
	return n
}

// sizeText returns a number of bytes for people.
func sizeText(bytes int64) string {
	switch {
	case bytes < 10<<10:
		return strconv.FormatInt(bytes, 10)
	case bytes < 10<<20:
		return fmt.Sprintf("%dKi", bytes>>10)
	default:
		return fmt.Sprintf("%dMi", bytes>>20)
	}
}

// storedIn returns what the workspace at a path stores.
func storedIn(ctx context.Context, s *remote.Server, path cluster.Path) (*core.LogicalClusterUsage, error) {
	u := &core.LogicalClusterUsage{}
	return u, s.Ask(ctx, "/clusters/"+string(path)+"/apis/"+core.GroupVersion.String()+"/logicalclusters/"+core.LogicalClusterName+"/usage", nil, u)
}

// storedBelow returns what the workspaces in the current one store.
func storedBelow(ctx context.Context, s *remote.Server) ([]*usageOf, error) {
	workspaces, err := s.List(ctx, s.Base.Path)
	if err != nil {
		return nil, remote.About(s.Base.Path, "cannot list the workspaces in %q: %w", s.Base.Path, err)
	}
	all := make([]*usageOf, len(workspaces))
	var work errgroup.Group
	work.SetLimit(listers)
	for i, w := range workspaces {
		all[i] = &usageOf{Name: w.Name}
		if !listable(w) {
			all[i].Remark = string(w.Status.Phase)
			continue
		}
		work.Go(func() error {
			u, err := storedIn(ctx, s, s.Base.Path.Join(w.Name))
			if err != nil {
				all[i].Remark = (&node{err: err}).remark()
				return ctx.Err()
			}
			all[i].Usage = u
			return nil
		})
	}
	return all, work.Wait()
}
