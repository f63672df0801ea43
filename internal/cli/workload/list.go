package workload

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cli/sharing"
	"github.com/unforked/kcp/internal/cluster"
)

func targetsCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the physical clusters of the current workspace",
		Long:  "List the physical clusters of the current workspace, whether they are ready, and what they run.",
		Example: `  # List the physical clusters
  kubectl kcp workload list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listTargets(cmd.Context(), a) },
	}
}

func listTargets(ctx context.Context, a *command.App) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	all, err := targetsIn(ctx, srv, srv.Base.Path)
	switch {
	case err != nil && !isUnserved(err):
		return remote.About(srv.Base.Path, "%w", err)
	case len(all) == 0:
		a.Print.Note("Workspace '%s' has no physical clusters. To register one, run: kubectl kcp workload sync NAME --kubeconfig FILE", srv.Base.Path)
		return nil
	}
	loads, err := loadsOf(ctx, srv, all[0])
	if err != nil {
		a.Print.Note("What runs there is not shown: %v", err)
	}
	table := [][]string{{"NAME", "READY", "SCHEDULING", "VERSION", "WORKLOADS", "REPLICAS", "AGE", "LABELS"}}
	for _, t := range all {
		workloads, replicas := "-", "-"
		if loads != nil {
			l := loads[t.Status.Key]
			workloads, replicas = strconv.Itoa(l.workloads), strconv.Itoa(l.replicas)
		}
		table = append(table, []string{t.Name, readiness(t), admits(t), output.OrDash(t.Status.Version), workloads, replicas,
			duration.HumanDuration(time.Since(t.CreationTimestamp.Time)), output.OrDash(labels.FormatLabels(t.Labels))})
	}
	a.Print.Table(table)
	if slices.ContainsFunc(all, func(t *workload.SyncTarget) bool { return t.Status.Conditions.IsTrue(workload.EvictionsHeld) }) {
		a.Print.Note("Most physical clusters do not answer at once, so the server itself is the likely cause: nothing leaves them. If one is gone, run: kubectl kcp workload fence NAME")
	}
	return nil
}

// readiness returns True, or the reason why a target is not ready.
func readiness(t *workload.SyncTarget) string {
	c := t.Status.Conditions.Get(conditions.Ready)
	switch {
	case c == nil:
		return "Unknown"
	case c.Status == metav1.ConditionTrue:
		return "True"
	}
	return string(c.Status) + " (" + c.Reason + ")"
}

// admits says whether a target takes workloads.
func admits(t *workload.SyncTarget) string {
	switch {
	case t.DeletionTimestamp != nil:
		return "leaving"
	case t.Status.Conditions.IsTrue(workload.Fenced):
		return "fenced"
	case slices.ContainsFunc(t.Spec.Taints, drained):
		return "drained"
	case t.Spec.Unschedulable:
		return "cordoned"
	}
	return "yes"
}

func drained(t corev1.Taint) bool {
	return t.Key == workload.DrainTaint && t.Effect == corev1.TaintEffectNoExecute
}

func targetsIn(ctx context.Context, s *remote.Server, path cluster.Path) ([]*workload.SyncTarget, error) {
	objects, err := s.Objects(path, workload.GroupVersion, "synctargets")
	if err != nil {
		return nil, err
	}
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []*workload.SyncTarget
	for i := range list.Items {
		t, err := targetOf(&list.Items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// A burden is what a physical cluster runs.
type burden struct{ workloads, replicas int }

// assignmentsOf returns the Assignments of all consumers of the compute workspace of t, which the
// view of its export has.
func assignmentsOf(ctx context.Context, s *remote.Server, t *workload.SyncTarget) ([]workload.Assignment, error) {
	requests, err := s.Clusterless()
	if err != nil {
		return nil, err
	}
	raw, err := requests.Get().AbsPath("services", "apiexport", url.PathEscape(t.Annotations[core.ClusterAnnotation]), workload.KubernetesExport, "clusters", "*",
		"apis", workload.GroupVersion.Group, workload.GroupVersion.Version, "assignments").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list workload.AssignmentList
	err = json.Unmarshal(raw, &list)
	return list.Items, err
}

// loadsOf returns what the physical clusters of the workspace of t run, by their keys.
func loadsOf(ctx context.Context, s *remote.Server, t *workload.SyncTarget) (map[string]burden, error) {
	assignments, err := assignmentsOf(ctx, s, t)
	if err != nil {
		return nil, err
	}
	all := map[string]burden{}
	for _, of := range assignments {
		for _, part := range of.Spec.Targets {
			l := all[part.Key]
			l.workloads++
			if part.Replicas != nil {
				l.replicas += int(*part.Replicas)
			}
			all[part.Key] = l
		}
	}
	return all, nil
}

func splitCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND/NAME",
		Short: "Print which locations run a workload",
		Long:  "Print which locations run a workload of the current workspace, and how many of its replicas are ready there. The names of the physical clusters are shown to those who may list them in the compute workspace.",
		Example: `  # Print where the Deployment web runs
  kubectl kcp workload get deployment/web`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, name, err := splitArgument(args[0])
		if err != nil {
			return err
		}
		return printSplit(cmd.Context(), a, kind, namespaceOf(a), name)
	}
	return cmd
}

// namespaceOf returns the namespace that the flags or the kubeconfig choose.
func namespaceOf(a *command.App) string {
	of, _, err := a.Flags.ToRawKubeConfigLoader().Namespace()
	if err != nil || of == "" {
		return metav1.NamespaceDefault
	}
	return of
}

func printSplit(ctx context.Context, a *command.App, kind, namespace, name string) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	here := srv.Base.Path
	of, err := find(srv, kind, namespace, name)
	if err != nil {
		return err
	}
	w, err := of.get(ctx, srv)
	if err != nil {
		return err
	}
	assignment, err := assignmentOf(ctx, srv, namespace, w)
	if err != nil {
		return remote.About(here, "cannot read where %s %q runs: %w", w.GetKind(), name, err)
	}
	if assignment == nil {
		return fmt.Errorf("the %s %q is not placed: either no Placement of workspace %q selects its namespace, or objects of its kind follow workloads and there is none; to see the Placements, run: kubectl get placements", w.GetKind(), name, here)
	}
	reports, err := reportsOf(ctx, srv, namespace, w)
	if err != nil {
		return err
	}
	names := targetNames(ctx, srv)
	table := [][]string{{"LOCATION", "CLUSTER", "REPLICAS", "READY", "PHASE", "REASON"}}
	var parts []string
	slices.SortStableFunc(assignment.Spec.Targets, func(a, b workload.AssignedTarget) int {
		return cmp.Or(cmp.Compare(a.Location, b.Location), cmp.Compare(names[a.Key], names[b.Key]))
	})
	for _, t := range assignment.Spec.Targets {
		row, part := rowOf(t, reports[t.Key], w.GetGeneration(), names[t.Key])
		table, parts = append(table, row), append(parts, part)
	}
	a.Print.Table(table)
	a.Print.Note("%s: %s", name, strings.Join(parts, ", "))
	if assignment.Spec.Reason != "" {
		a.Print.Note("Not fully placed: %s: %s", assignment.Spec.Reason, assignment.Spec.Message)
	}
	return nil
}

// rowOf returns the row of a target, and its short form. generation is that of the workload.
func rowOf(t workload.AssignedTarget, r *workload.TargetStatus, generation int64, cluster string) (row []string, part string) {
	replicas, ready, reason := "-", "0", t.Reason
	if t.Replicas != nil {
		replicas = strconv.Itoa(int(*t.Replicas))
	}
	if r != nil {
		ready, reason = strconv.Itoa(int(readyOf(r))), cmp.Or(reason, waits(t, r, generation))
		if len(r.Spec.Missing) > 0 {
			reason = "MissingDependency: " + strings.Join(r.Spec.Missing, "; ")
		}
		if r.Spec.Reason != "" {
			reason = r.Spec.Reason + ": " + r.Spec.Message
		}
	}
	return []string{output.OrDash(t.Location), output.OrDash(cluster), replicas, ready, string(t.Phase), output.OrDash(reason)},
		fmt.Sprintf("%s %s/%s", cmp.Or(cluster, t.Location), ready, replicas)
}

// waits says what a workload of a generation waits for at a target, if that is not seen in the number of its pods.
func waits(t workload.AssignedTarget, r *workload.TargetStatus, generation int64) string {
	switch {
	case r.Spec.Generation < generation:
		return "Waiting: it has not applied the latest change"
	case !r.Spec.Observed:
		return "Waiting: its controllers have not seen the latest change"
	}
	var s struct {
		UpdatedReplicas int32 `json:"updatedReplicas"`
	}
	if t.Replicas == nil || r.Spec.Workload.Resource != "deployments" || r.Spec.Reported == nil || json.Unmarshal(r.Spec.Reported.Raw, &s) != nil || s.UpdatedReplicas >= *t.Replicas {
		return ""
	}
	return fmt.Sprintf("Waiting: %d of %d pods have the latest change", s.UpdatedReplicas, *t.Replicas)
}

// readyOf returns the number of pods that a target reports as ready.
func readyOf(r *workload.TargetStatus) int32 {
	var s struct {
		ReadyReplicas int32 `json:"readyReplicas"`
		NumberReady   int32 `json:"numberReady"` // of a DaemonSet
		Ready         int32 `json:"ready"`       // of a Job
	}
	if r.Spec.Reported == nil || json.Unmarshal(r.Spec.Reported.Raw, &s) != nil {
		return 0
	}
	return cmp.Or(s.ReadyReplicas, s.NumberReady, s.Ready)
}

// found is an object that an argument names. It may not exist.
type found struct {
	schema.GroupVersionResource
	namespaced      bool
	namespace, name string
	mapper          meta.RESTMapper // of the workspace
}

// find returns the object of a kind, which may be written as kubectl accepts it, in the current workspace.
func find(s *remote.Server, kind, namespace, name string) (found, error) {
	here := s.Base.Path
	client, err := discovery.NewDiscoveryClientForConfigAndClient(s.In(here), s.Client)
	if err != nil {
		return found{}, err
	}
	known := memory.NewMemCacheClient(client)
	of := found{namespace: namespace, name: name, mapper: restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(known), known, nil)}
	if of.GroupVersionResource, err = of.mapper.ResourceFor(schema.ParseGroupResource(strings.ToLower(kind)).WithVersion("")); err != nil {
		return found{}, fmt.Errorf("workspace %q has no resource type %q; to use the physical clusters of another workspace, run: kubectl kcp bind compute PATH", here, kind)
	}
	gvk, err := of.mapper.KindFor(of.GroupVersionResource)
	if err != nil {
		return found{}, err
	}
	mapping, err := of.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return found{}, err
	}
	of.namespaced = mapping.Scope.Name() == meta.RESTScopeNameNamespace
	return of, nil
}

// objects returns a client for the objects beside this one.
func (f found) objects(s *remote.Server) (dynamic.ResourceInterface, error) {
	all, err := s.Resource(s.Base.Path, f.GroupVersionResource)
	if err != nil || !f.namespaced {
		return all, err
	}
	return all.Namespace(f.namespace), nil
}

// get reads the object.
func (f found) get(ctx context.Context, s *remote.Server) (*unstructured.Unstructured, error) {
	here := s.Base.Path
	all, err := f.objects(s)
	if err != nil {
		return nil, err
	}
	w, err := all.Get(ctx, f.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && f.namespaced:
		return nil, remote.About(here, "%s %q does not exist in namespace %q of workspace %q", f.Resource, f.name, f.namespace, here)
	case err != nil:
		return nil, remote.About(here, "cannot read %s %q: %w", f.Resource, f.name, err)
	}
	return w, nil
}

// assignmentOf returns the Assignment of a workload, nil if it has none.
func assignmentOf(ctx context.Context, s *remote.Server, namespace string, w *unstructured.Unstructured) (*workload.Assignment, error) {
	all, err := assignmentsIn(ctx, s, namespace)
	for _, of := range all {
		if of.Spec.Workload.UID == string(w.GetUID()) {
			return of, nil
		}
	}
	return nil, err
}

// reportsOf returns the reports about a workload by the keys of their targets.
func reportsOf(ctx context.Context, s *remote.Server, namespace string, w *unstructured.Unstructured) (map[string]*workload.TargetStatus, error) {
	all, err := reportsIn(ctx, s, namespace)
	found := map[string]*workload.TargetStatus{}
	for _, r := range all {
		if r.Spec.Workload.UID == string(w.GetUID()) {
			found[r.Spec.Key] = r
		}
	}
	return found, err
}

// targetNames returns the names of physical clusters by their keys, as far as the user may list
// them in the compute workspace that the current workspace binds.
func targetNames(ctx context.Context, s *remote.Server) map[string]string {
	names := map[string]string{}
	bindings, err := s.Objects(s.Base.Path, apis.GroupVersion, "apibindings")
	if err != nil {
		return names
	}
	o, err := bindings.Get(ctx, workload.KubernetesExport, metav1.GetOptions{})
	if err != nil {
		return names
	}
	b, err := sharing.BindingOf(o)
	if err != nil || b.Spec.Reference.Export == nil {
		return names
	}
	all, err := targetsIn(ctx, s, cluster.Path(b.Spec.Reference.Export.Path))
	if err != nil {
		return names
	}
	for _, t := range all {
		names[t.Status.Key] = t.Name
	}
	return names
}
