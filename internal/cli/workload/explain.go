package workload

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
)

func explainPlacementCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Explain why a workload runs where it runs",
		Long: `Explain why a workload of the current workspace runs where it runs, why it does not run elsewhere, and what it waits for. The server answers with the code of its scheduler. The names of the physical clusters are shown to those who may list them in the compute workspace.

For an object that follows workloads, such as a Service or a ConfigMap, the command prints the workloads. KIND is written as kubectl accepts it.`,
		Example: `  # Explain where the Deployment web runs
  kubectl kcp workload explain deployment/web

  # Explain where the ConfigMap settings is
  kubectl kcp workload explain cm/settings`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, name, err := splitArgument(args[0])
		if err != nil {
			return err
		}
		if slices.Contains([]string{"pods", "pod", "po"}, strings.ToLower(kind)) {
			return fmt.Errorf("pods are parts of workloads: write the workload of %q, as in deployment/web", args[0])
		}
		return explainPlacement(cmd.Context(), a, kind, namespaceOf(a), name)
	}
	return cmd
}

// splitArgument returns the kind and the name in KIND/NAME.
func splitArgument(text string) (kind, name string, err error) {
	kind, name, _ = strings.Cut(text, "/")
	if kind == "" || name == "" {
		return "", "", fmt.Errorf("invalid workload %q: write it as KIND/NAME, as in deployment/web", text)
	}
	return kind, name, nil
}

func explainPlacement(ctx context.Context, a *command.App, kind, namespace, name string) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	of, err := find(srv, kind, namespace, name)
	if err != nil {
		return err
	}
	here := srv.Base.Path
	got, err := reviewPlacement(ctx, srv, scheduling.PlacementReviewSpec{Workloads: []scheduling.ReviewedReference{{Group: of.Group, Resource: of.Resource, Namespace: namespace, Name: name}}})
	switch {
	case err != nil && isUnserved(err):
		return remote.About(here, "workspace %q uses no physical clusters; to use those of another workspace, run: kubectl kcp bind compute PATH", here)
	case err != nil:
		return remote.About(here, "cannot explain where %s/%s runs: %w", of.Resource, name, err)
	}
	if len(got.Workloads) == 0 {
		return explainFollower(ctx, a, srv, of)
	}
	w := got.Workloads[0]
	a.Print.Say("%s %q: %s", w.Kind, w.Name, verdict(w))
	if w.Message != "" {
		a.Print.Say("%s", w.Message)
	}
	table := [][]string{{"LOCATION", "CLUSTER", "CLUSTERS", "REPLICAS", "AVAILABLE", "PHASE", "NEXT", "WHY"}}
	for _, l := range w.Locations {
		table = append(table, []string{output.OrDash(l.Location), output.OrDash(l.Target), strconv.Itoa(int(l.Clusters)), count(l.Replicas), strconv.Itoa(int(l.Available)), output.OrDash(l.Phase), next(l), why(w, l)})
	}
	a.Print.Table(table)
	return nil
}

// verdict says in a few words how a workload is placed.
func verdict(w scheduling.ReviewedWorkload) string {
	switch {
	case w.Placement == "":
		return "no Placement applies"
	case w.Reason != "":
		return fmt.Sprintf("Placement %q applies; not fully placed (%s)", w.Placement, w.Reason)
	}
	return fmt.Sprintf("Placement %q applies; placed", w.Placement)
}

func count(n *int32) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(int(*n))
}

// next says what a location will have.
func next(l scheduling.ReviewedLocation) string {
	switch {
	case l.NextPhase == "":
		return "-"
	case l.NextReplicas == nil:
		return l.NextPhase
	}
	return fmt.Sprintf("%d %s", *l.NextReplicas, l.NextPhase)
}

// why says why a location has its part, or none.
func why(w scheduling.ReviewedWorkload, l scheduling.ReviewedLocation) string {
	reasons := map[string]string{
		"NotSelected": "the Placement selects no Location of it", "NotReady": "it has not reported yet", "Cordoned": "it takes no new replicas (cordoned)",
		"Tainted": "the Placement does not tolerate a taint", "Draining": "its workloads leave (drained)", "Unreachable": "it does not answer",
		"AgentLost": "its agent does not report, but the cluster lives: its replicas stay", "Held": "it does not answer, but most others do not either: its replicas stay",
		"RateLimited": "it does not answer; the workload leaves when it is its turn", "Fenced": "it is back, and removes what began elsewhere",
		"Full": "it creates no more objects for this workspace", "NotServed": "it does not serve the kind", "Rejected": "it does not accept the object",
		"Removing": "it still removes the replicas that it had",
		"Moved":    "others run the replicas", "Deleted": "it was unregistered", "DataElsewhere": "the data of the workload is elsewhere",
	}
	switch {
	case l.Reason != "" && reasons[l.Reason] != "":
		return l.Reason + ": " + reasons[l.Reason]
	case l.Reason != "":
		return l.Reason
	case l.Phase == "" && l.NextPhase == "":
		return "it would take replicas, others are enough"
	case l.Phase == "":
		return "it gets replicas"
	case l.Outdated:
		return "waiting: it has not applied the latest change, or its controllers have not seen it"
	case w.Replicas != nil && l.Replicas != nil && l.Available < *l.Replicas:
		return "waiting: replicas are not available yet"
	}
	return "it runs its part"
}

// reviewPlacement asks the server.
func reviewPlacement(ctx context.Context, s *remote.Server, spec scheduling.PlacementReviewSpec) (*scheduling.PlacementReviewStatus, error) {
	reviews, err := s.Objects(s.Base.Path, scheduling.GroupVersion, "placementreviews")
	if err != nil {
		return nil, err
	}
	asked, err := reviewOf(spec)
	if err != nil {
		return nil, err
	}
	answer, err := reviews.Create(ctx, asked, metav1.CreateOptions{FieldManager: remote.UserAgent})
	if err != nil {
		return nil, err
	}
	got := &scheduling.PlacementReview{}
	return &got.Status, runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, got)
}

func reviewOf(spec scheduling.PlacementReviewSpec) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": scheduling.GroupVersion.String(), "kind": "PlacementReview",
		"metadata": map[string]any{"name": "review"}, "spec": content}}, err
}

func simulateCommand(a *command.App) *cobra.Command {
	var down, cordon []string
	cmd := &cobra.Command{
		Use:   "simulate [--down NAME]... [--cordon NAME]...",
		Short: "Print where workloads would run without some physical clusters",
		Long: `Print where workloads would run if some physical clusters did not answer any more, or took no new replicas. Nothing changes.

In a compute workspace, NAME is a physical cluster, and the workloads are those of all its consumers. In another workspace, the workloads are its own, and NAME is a physical cluster if you may list those of the compute workspace and one has this name, else a Location. The server answers with the code of its scheduler. It does not know how much room physical clusters have.`,
		Example: `  # Print what moves if the physical cluster east is lost
  kubectl kcp workload simulate --down east`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringSliceVar(&down, "down", nil, "Physical cluster, or Location, that does not answer any more.")
	cmd.Flags().StringSliceVar(&cordon, "cordon", nil, "Physical cluster, or Location, that takes no new replicas.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(down)+len(cordon) == 0 {
			return fmt.Errorf("nothing to simulate; use --down NAME or --cordon NAME")
		}
		return simulateLoss(cmd.Context(), a, down, cordon)
	}
	return cmd
}

func simulateLoss(ctx context.Context, a *command.App, down, cordon []string) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	targets, err := targetsIn(ctx, srv, srv.Base.Path)
	if err == nil && len(targets) > 0 {
		return simulateAll(ctx, a, srv, targets[0], scheduling.Assumptions{DownTargets: down, CordonedTargets: cordon})
	}
	var assume scheduling.Assumptions
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
	for _, l := range w.Locations {
		if l.NextPhase != "Active" || l.Phase != "" && l.NextReplicas != nil && l.Replicas != nil && *l.NextReplicas <= *l.Replicas {
			continue
		}
		if l.Phase == "" || l.NextReplicas != nil {
			to = append(to, l.Target)
			if l.Target == "" {
				to[len(to)-1] = l.Location
			}
		}
	}
	slices.Sort(to)
	to = slices.Compact(to)
	moves := ""
	if w.Moved > 0 {
		var what string
		switch {
		case w.Replicas == nil:
			what = "it moves"
		case w.Moved == 1:
			what = "1 replica moves"
		default:
			what = fmt.Sprintf("%d replicas move", w.Moved)
		}
		moves = fmt.Sprintf("%s to %s", what, strings.Join(to, ", "))
	}
	switch {
	case w.Reason == "" && moves != "":
		return moves + ", they fit"
	case w.Reason != "" && moves != "":
		return fmt.Sprintf("%s; not fully placed: %s: %s", moves, w.Reason, w.Message)
	case w.Reason != "":
		return fmt.Sprintf("not fully placed: %s: %s", w.Reason, w.Message)
	}
	return ""
}
