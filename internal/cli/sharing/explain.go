package sharing

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
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// ExplainAPICommand returns "kubectl kcp explain".
func ExplainAPICommand(a *command.App) *cobra.Command {
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
		ValidArgsFunction: a.CompleteBinding,
		RunE:              func(cmd *cobra.Command, args []string) error { return explainBinding(cmd.Context(), a, args[0]) },
	}
	export := &cobra.Command{
		Use:               "apiexport [PATH:]EXPORT",
		Short:             "Explain the state of an APIExport, and whether you may bind it",
		Long:              "Print whether you may bind an APIExport, and what is wrong with it. Without a path, the export is in the current workspace. Users who may not read the export learn only whether they may bind it.",
		Example:           "  # Find out why an export cannot be bound\n  kubectl kcp explain apiexport root:provider:widgets",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteExport,
		RunE:              func(cmd *cobra.Command, args []string) error { return explainExport(cmd.Context(), a, args[0]) },
	}
	cmd.AddCommand(binding, export)
	return cmd
}

func explainBinding(ctx context.Context, a *command.App, name string) error {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	here := srv.Base.Path
	bindings, err := srv.Objects(here, apis.GroupVersion, "apibindings")
	if err != nil {
		return err
	}
	o, err := bindings.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return remote.About(here, "there is no APIBinding %q in workspace %q; see kubectl get apibindings", name, here)
	}
	if err != nil {
		return remote.About(here, "cannot read APIBinding %q in workspace %q: %w", name, here, err)
	}
	b, err := BindingOf(o)
	if err != nil {
		return err
	}
	rows := [][]string{{"APIBinding:", b.Name}, {"Workspace:", string(here)}, {"Phase:", output.OrDash(string(b.Status.Phase))}}
	if ref := b.Spec.Reference.Export; ref != nil {
		path := ref.Path
		if path == "" {
			path = string(here)
		}
		rows = append(rows, []string{"Export:", path + ":" + ref.Name})
	}
	if len(b.Status.BoundResources) > 0 {
		rows = append(rows, []string{"Resources:", strings.Join(BoundResources(b), ", ")})
	}
	a.Print.Table(rows)
	problemsOf(a, bindingProblems(b))
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

// problemsOf prints problems, each with what to do.
func problemsOf(a *command.App, all []string) {
	if len(all) == 0 {
		a.Print.Say("No problems found.")
	}
	for _, text := range all {
		a.Print.Say("\n%s", text)
	}
}

func explainExport(ctx context.Context, a *command.App, ref string) error {
	srv, path, name, err := openExport(ctx, a, ref)
	if err != nil {
		return err
	}
	offered, err := bindableExports(ctx, srv)
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
	e, err := getExport(ctx, srv, path, name)
	switch {
	case apierrors.IsForbidden(err):
		a.Print.Table(rows)
		a.Print.Note("You may not read it, so its own state is unknown: %v", err)
		problemsOf(a, wrong)
		return nil
	case apierrors.IsNotFound(err):
		return remote.About(path, "there is no APIExport %q in workspace %q; see kubectl kcp exports", name, path)
	case err != nil:
		return remote.About(path, "cannot read APIExport %q in workspace %q: %w", name, path, err)
	}
	rows = append(rows, []string{"Identity:", output.OrDash(e.Status.IdentityHash)}, []string{"Description:", output.OrDash(e.Annotations[apis.DescriptionAnnotation])})
	a.Print.Table(rows)
	more, err := exportProblems(ctx, srv, path, e)
	if err != nil {
		a.Print.Note("Cannot read the APIResourceSchemas of workspace %q: %v", path, err)
	}
	problemsOf(a, append(wrong, more...))
	return nil
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// getExport returns an APIExport.
func getExport(ctx context.Context, s *remote.Server, path cluster.Path, name string) (*apis.APIExport, error) {
	exports, err := s.Objects(path, apis.GroupVersion, "apiexports")
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
func exportProblems(ctx context.Context, s *remote.Server, path cluster.Path, e *apis.APIExport) ([]string, error) {
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
			if e.Status.IdentityHash != "" {
				fix = fmt.Sprintf("\nWhat to do: restore the secret %s in namespace %s from a backup. Another key does not help, because bindings keep the identity", ref.Name, ref.Namespace)
			}
		}
		all = append(all, fmt.Sprintf("Not True: %s: %s: %s%s", c.Type, c.Reason, c.Message, fix))
	}
	if len(e.Spec.Resources) == 0 && len(e.Spec.PermissionClaims) == 0 {
		all = append(all, "It has no resources.\nWhat to do: name APIResourceSchemas in spec.resources")
	}
	schemas, err := s.Objects(path, apisv1alpha1.GroupVersion, "apiresourceschemas")
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
