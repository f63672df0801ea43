package workload

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/remote"
)

func simulateCommand(a *command.App) *cobra.Command {
	var down, cordon, add []string
	cmd := &cobra.Command{
		Use:   "simulate [--down NAME]... [--cordon NAME]... [--add LOCATION]...",
		Short: "Print where workloads would run with fewer or more physical clusters",
		Long: `Print where workloads would run if some physical clusters did not answer any more, took no new replicas, or were added. Nothing changes.

In a compute workspace, NAME is a physical cluster, and the workloads are those of all its consumers. In another workspace, the workloads are its own, and NAME is a physical cluster if you may list those of the compute workspace and one has this name, else a Location. The server answers with the code of its scheduler. It does not know how much room physical clusters have.`,
		Example: `  # Print what moves if the physical cluster east is lost
  kubectl kcp workload simulate --down east

  # Print what moves then if the Location default had two more
  kubectl kcp workload simulate --down east --add default --add default`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringSliceVar(&down, "down", nil, "Physical cluster, or Location, that does not answer any more.")
	cmd.Flags().StringSliceVar(&cordon, "cordon", nil, "Physical cluster, or Location, that takes no new replicas.")
	cmd.Flags().StringSliceVar(&add, "add", nil, "Location that has one more physical cluster, which is ready, has no taints and accepts all workloads.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(down)+len(cordon)+len(add) == 0 {
			return fmt.Errorf("nothing to simulate; use --down NAME, --cordon NAME or --add LOCATION")
		}
		return simulate(cmd.Context(), a, down, cordon, scheduling.Assumptions{Added: addedClusters(add)})
	}
	return cmd
}

// addedClusters counts Locations.
func addedClusters(locations []string) (all []scheduling.AddedClusters) {
	for _, l := range locations {
		i := slices.IndexFunc(all, func(a scheduling.AddedClusters) bool { return a.Location == l })
		if i < 0 {
			all, i = append(all, scheduling.AddedClusters{Location: l}), len(all)
		}
		all[i].Clusters++
	}
	return all
}

// simulate asks what would be if clusters or Locations were down or cordoned, besides what else is assumed.
func simulate(ctx context.Context, a *command.App, down, cordon []string, assume scheduling.Assumptions) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	targets, err := targetsIn(ctx, srv, srv.Base.Path)
	if err == nil && len(targets) > 0 {
		assume.DownTargets, assume.CordonedTargets = down, cordon
		return simulateAll(ctx, a, srv, targets[0], assume)
	}
	names := slices.Collect(maps.Values(targetNames(ctx, srv)))
	assume.DownTargets, assume.Down = partition(down, names)
	assume.CordonedTargets, assume.Cordoned = partition(cordon, names)
	got, err := reviewPlacement(ctx, srv, scheduling.PlacementReviewSpec{Assume: assume})
	if err != nil {
		return remote.About(srv.Base.Path, "cannot simulate: %w", err)
	}
	printReviewed(a, map[string]*scheduling.PlacementReviewStatus{"": got})
	return nil
}

// partition splits all into those that are among some, and the others.
func partition(all, some []string) (among, others []string) {
	for _, one := range all {
		if slices.Contains(some, one) {
			among = append(among, one)
		} else {
			others = append(others, one)
		}
	}
	return among, others
}

// simulateAll asks for every consumer of a compute workspace, through the view of its export.
func simulateAll(ctx context.Context, a *command.App, srv *remote.Server, t *workload.SyncTarget, assume scheduling.Assumptions) error {
	consumers, err := consumersOf(ctx, srv, t)
	if err != nil {
		return remote.About(srv.Base.Path, "cannot list the workloads of the consumers: %w", err)
	}
	requests, err := srv.Clusterless()
	if err != nil {
		return err
	}
	asked, err := reviewOf(scheduling.PlacementReviewSpec{Assume: assume})
	if err != nil {
		return err
	}
	body, err := json.Marshal(asked.Object)
	if err != nil {
		return err
	}
	all := map[string]*scheduling.PlacementReviewStatus{}
	for _, c := range slices.Sorted(maps.Keys(consumers)) {
		raw, err := requests.Post().AbsPath("services", "apiexport", url.PathEscape(t.Annotations[core.ClusterAnnotation]), workload.KubernetesExport, "clusters", url.PathEscape(c),
			"apis", scheduling.GroupVersion.Group, scheduling.GroupVersion.Version, "placementreviews").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Raw()
		if err != nil {
			return remote.About(srv.Base.Path, "cannot simulate for the consumer %q: %w", c, err)
		}
		got := &scheduling.PlacementReview{}
		if err := json.Unmarshal(raw, got); err != nil {
			return err
		}
		all[c] = &got.Status
	}
	printReviewed(a, all)
	return nil
}

// consumersOf returns the logical clusters whose workloads run in the compute workspace of t.
func consumersOf(ctx context.Context, s *remote.Server, t *workload.SyncTarget) (map[string]bool, error) {
	assignments, err := assignmentsOf(ctx, s, t)
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, of := range assignments {
		all[of.Annotations[core.ClusterAnnotation]] = true
	}
	return all, nil
}

// printReviewed prints what would move, by consumer.
func printReviewed(a *command.App, all map[string]*scheduling.PlacementReviewStatus) {
	stay, held := 0, false
	for _, c := range slices.Sorted(maps.Keys(all)) {
		prefix := ""
		if c != "" {
			prefix = c + " "
		}
		held = held || all[c].Held
		for _, w := range all[c].Workloads {
			text := outcome(w)
			if text == "" {
				stay++
				continue
			}
			a.Print.Say("%s%s/%s: %s", prefix, w.Namespace, w.Name, text)
		}
		stay += int(all[c].Omitted)
		if n := all[c].Omitted; n > 0 {
			a.Print.Note("%s%d more workloads are not shown.", prefix, n)
		}
	}
	if held {
		a.Print.Note("So many physical clusters would not answer at once that the server itself would be the likely cause: nothing leaves them.")
	}
	if stay == 1 {
		a.Print.Note("1 workload stays as it is.")
		return
	}
	a.Print.Note("%d workloads stay as they are.", stay)
}

// outcome says what would change for a workload, nothing if it stays as it is.
func outcome(w scheduling.ReviewedWorkload) string {
	var to []string
	var n int32
	leaves := false
	for _, l := range w.Locations {
		if more := gained(l); more > 0 {
			n += more
			to = append(to, nameOf(l))
		}
		leaves = leaves || l.Phase != "" && (l.NextPhase != string(workload.Active) || ptr.Deref(l.NextReplicas, 0) < ptr.Deref(l.Replicas, 0))
	}
	text := ""
	if n > 0 {
		slices.Sort(to)
		text = fmt.Sprintf("%s %s", change(w, n, leaves), strings.Join(slices.Compact(to), ", "))
	}
	switch {
	case w.Reason == "" && n == 1:
		return text + ", it fits"
	case w.Reason == "" && text != "":
		return text + ", they fit"
	case w.Reason != "" && text != "":
		return fmt.Sprintf("%s; not fully placed: %s: %s", text, w.Reason, w.Message)
	case w.Reason != "":
		return fmt.Sprintf("not fully placed: %s: %s", w.Reason, w.Message)
	}
	return ""
}

// gained returns how many more replicas a location would have, 1 for a copy of a workload without replicas.
func gained(l scheduling.ReviewedLocation) int32 {
	switch began := l.Phase != "" && l.Phase != string(workload.Removing); {
	case l.NextPhase != string(workload.Active), began && l.NextReplicas == nil:
		return 0
	case l.NextReplicas == nil:
		return 1
	case began:
		return max(0, *l.NextReplicas-ptr.Deref(l.Replicas, 0))
	}
	return *l.NextReplicas
}

func nameOf(l scheduling.ReviewedLocation) string {
	name := l.Location
	if l.Target != "" {
		name = l.Target
	}
	if l.Added {
		name += " (added)"
	}
	return name
}

// change says what n replicas do, up to the names of where they do it.
func change(w scheduling.ReviewedWorkload, n int32, leaves bool) string {
	does := "begin%s at"
	if leaves {
		does = "move%s to"
	}
	switch {
	case w.Replicas == nil:
		return "it " + fmt.Sprintf(does, "s")
	case n == 1:
		return "1 replica " + fmt.Sprintf(does, "s")
	}
	return fmt.Sprintf("%d replicas ", n) + fmt.Sprintf(does, "")
}
