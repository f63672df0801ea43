package workload

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
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
