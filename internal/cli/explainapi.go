package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// explainAPICommand returns "kubectl kcp explain".
func (a *app) explainAPICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Explain why an API is not shared or not bound",
		Long:  "Explain why an API is not shared or not bound, and what to do about that.",
		Example: `  # Find out why an APIBinding is not bound
  kubectl kcp explain apibinding widgets

  # Find out why an export cannot be bound
  kubectl kcp explain apiexport root:provider:widgets`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	binding := &cobra.Command{
		Use:               "apibinding NAME",
		Short:             "Explain the state of an APIBinding of the current workspace",
		Long:              "Print what an APIBinding of the current workspace binds, why it is not bound or not deleted, and what to do about that.",
		Example:           "  # Find out why an APIBinding is not bound\n  kubectl kcp explain apibinding widgets",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.explainBinding(cmd.Context(), args[0]) },
	}
	export := &cobra.Command{
		Use:               "apiexport [PATH:]EXPORT",
		Short:             "Explain the state of an APIExport, and whether you may bind it",
		Long:              "Print whether you may bind an APIExport, and what is wrong with it. Without a path, the export is in the current workspace. Users who may not read the export learn only whether they may bind it.",
		Example:           "  # Find out why an export cannot be bound\n  kubectl kcp explain apiexport root:provider:widgets",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeExport,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.explainExport(cmd.Context(), args[0]) },
	}
	cmd.AddCommand(binding, export)
	return cmd
}

func (a *app) explainBinding(ctx context.Context, name string) error {
	_, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	here := srv.base.path
	bindings, err := srv.objects(here, apis.GroupVersion, "apibindings")
	if err != nil {
		return err
	}
	o, err := bindings.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return about(here, "there is no APIBinding %q in workspace %q; see kubectl get apibindings", name, here)
	}
	if err != nil {
		return about(here, "cannot read APIBinding %q in workspace %q: %w", name, here, err)
	}
	b, err := bindingOf(o)
	if err != nil {
		return err
	}
	rows := [][]string{{"APIBinding:", b.Name}, {"Workspace:", string(here)}, {"Phase:", dash(string(b.Status.Phase))}}
	if ref := b.Spec.Reference.Export; ref != nil {
		path := ref.Path
		if path == "" {
			path = string(here)
		}
		rows = append(rows, []string{"Export:", path + ":" + ref.Name})
	}
	if len(b.Status.BoundResources) > 0 {
		rows = append(rows, []string{"Resources:", strings.Join(boundResources(b), ", ")})
	}
	a.print.table(rows)
	a.problems(bindingProblems(b))
	return nil
}

// bindingProblems returns why a binding is not bound or not deleted.
func bindingProblems(b *apis.APIBinding) []string {
	all := lacks(b)
	if b.DeletionTimestamp == nil {
		return all
	}
	if b.Status.Conditions.Get(apis.BindingResourceDeleteSuccess) == nil {
		all = append(all, "It is being deleted, with all objects of its resources.")
	}
	for _, f := range b.Finalizers {
		if f != apis.BindingFinalizer {
			all = append(all, fmt.Sprintf("Finalizer %s blocks its deletion.\nWhat to do: check that its controller is running", f))
		}
	}
	return all
}

// problems prints problems, each with what to do.
func (a *app) problems(all []string) {
	if len(all) == 0 {
		a.print.say("No problems found.")
	}
	for _, text := range all {
		a.print.say("\n%s", text)
	}
}

func (a *app) explainExport(ctx context.Context, ref string) error {
	_, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	path, name, ok := parseReference(srv.base.path, ref)
	if !ok {
		return fmt.Errorf("invalid export %q: it must be [path:]name, as in root:provider:widgets", ref)
	}
	if path == "" {
		path = srv.base.path
	}
	offered, err := srv.bindable(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the exports that you may bind: %w", err)
	}
	mine := slices.ContainsFunc(offered, func(e apis.BindableExport) bool {
		return e.Name == name && (e.Path == string(path) || e.Cluster == string(path))
	})
	rows := [][]string{{"APIExport:", name}, {"Workspace:", string(path)}, {"You may bind it:", yesNo(mine)}}
	var wrong []string
	if !mine {
		wrong = append(wrong, fmt.Sprintf("You may not bind it, or it does not exist.\nWhat to do: an administrator of workspace %q can give you a ClusterRole with the verb \"bind\" for %q of apiexports.apis.kcp.io", path, name))
	}
	e, err := srv.export(ctx, path, name)
	switch {
	case apierrors.IsForbidden(err):
		a.print.table(rows)
		a.print.note("You may not read it, so its own state is unknown: %v", err)
		a.problems(wrong)
		return nil
	case apierrors.IsNotFound(err):
		return about(path, "there is no APIExport %q in workspace %q; see kubectl kcp exports", name, path)
	case err != nil:
		return about(path, "cannot read APIExport %q in workspace %q: %w", name, path, err)
	}
	rows = append(rows, []string{"Identity:", dash(e.Status.IdentityHash)}, []string{"Description:", dash(e.Annotations[apis.DescriptionAnnotation])})
	a.print.table(rows)
	more, err := srv.exportProblems(ctx, path, e)
	if err != nil {
		a.print.note("Cannot read the APIResourceSchemas of workspace %q: %v", path, err)
	}
	a.problems(append(wrong, more...))
	return nil
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// export returns an APIExport.
func (s *server) export(ctx context.Context, path cluster.Path, name string) (*apis.APIExport, error) {
	exports, err := s.objects(path, apis.GroupVersion, "apiexports")
	if err != nil {
		return nil, err
	}
	o, err := exports.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	e := &apis.APIExport{}
	return e, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, e)
}

// exportProblems returns why bindings to an export are not bound.
func (s *server) exportProblems(ctx context.Context, path cluster.Path, e *apis.APIExport) ([]string, error) {
	var all []string
	if e.DeletionTimestamp != nil {
		all = append(all, "It is being deleted. Existing APIBindings keep their objects.")
	}
	for _, c := range e.Status.Conditions {
		if c.Type == conditions.Ready || c.Status == metav1.ConditionTrue {
			continue
		}
		fix := ""
		if c.Type == apis.IdentityValid && e.Spec.Identity != nil && e.Spec.Identity.SecretRef != nil {
			ref := e.Spec.Identity.SecretRef
			fix = fmt.Sprintf("\nWhat to do: create the secret %s with the key %q in namespace %s", ref.Name, apis.IdentityKey, ref.Namespace)
		}
		all = append(all, fmt.Sprintf("Not True: %s: %s: %s%s", c.Type, c.Reason, c.Message, fix))
	}
	if len(e.Spec.Resources) == 0 {
		all = append(all, "It has no resources.\nWhat to do: name APIResourceSchemas in spec.resources")
	}
	schemas, err := s.objects(path, apisv1alpha1.GroupVersion, "apiresourceschemas")
	if err != nil {
		return all, err
	}
	list, err := schemas.List(ctx, metav1.ListOptions{})
	if err != nil {
		return all, err
	}
	known := map[string]bool{}
	for _, o := range list.Items {
		known[o.GetName()] = true
	}
	for _, r := range e.Spec.Resources {
		if !known[r.Schema] && r.Storage.Native == nil {
			all = append(all, fmt.Sprintf("The APIResourceSchema %s does not exist.\nWhat to do: create it, or name another one in spec.resources; kubectl kcp crd snapshot makes one of a CustomResourceDefinition", r.Schema))
		}
	}
	return all, nil
}
