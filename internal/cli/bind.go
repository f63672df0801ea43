package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// boundWithin is the default timeout for a new APIBinding to be bound.
const boundWithin = 30 * time.Second

func (a *app) bindCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bind",
		Short: "Use an API of another workspace",
		Long:  "Use an API of another workspace in the current one.",
		Example: `  # Use the API that the export widgets of a workspace has
  kubectl kcp bind apiexport root:provider:widgets`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.bindExportCommand(), a.bindComputeCommand())
	return cmd
}

// A bindExport holds the arguments of "bind apiexport".
type bindExport struct {
	path    cluster.Path // of the export; empty for the current workspace
	export  string
	name    string
	timeout time.Duration
	claims  claimAnswers
	// consents means that a new binding accepts all claims, unless flags say otherwise.
	consents bool
}

func (a *app) bindExportCommand() *cobra.Command {
	var b bindExport
	cmd := &cobra.Command{
		Use:   "apiexport [PATH:]EXPORT",
		Short: "Bind an APIExport in the current workspace",
		Long: `Create an APIBinding to an APIExport in the current workspace, and wait until it is bound. The workspace then serves the resources of the export.

PATH is the path of the workspace with the export. Without it, the export is in the current workspace. If there is an APIBinding to the export already, the command only waits until it is bound.

The provider of the export may ask for access to other resources of the workspace, by permission claims. The command says in plain words what each claim allows. Without an answer in a flag the provider gets no access; kubectl kcp claims answers later.

You need the permission to create APIBindings here, and the verb "bind" on the export in its own workspace. To accept a claim, you need the claimed rights yourself.`,
		Example: `  # Use the API that the export widgets of the workspace root:provider has
  kubectl kcp bind apiexport root:provider:widgets

  # Choose the name of the APIBinding, and wait for a minute
  kubectl kcp bind apiexport root:provider:widgets --name tools --timeout 1m

  # Let the provider use ConfigMaps with a label, and no Secrets
  kubectl kcp bind apiexport root:provider:widgets --accept-permission-claim configmaps.core --selector app=web --reject-permission-claim secrets.core

  # Bind in another workspace than the current one
  kubectl kcp bind apiexport root:provider:widgets -w :root:team`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeExport,
	}
	cmd.Flags().StringVar(&b.name, "name", "", "Name of the APIBinding. (default the name of the export)")
	cmd.Flags().DurationVar(&b.timeout, "timeout", boundWithin, "Timeout for the APIBinding to be bound.")
	b.claims.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.bindExport(cmd.Context(), args[0], b) }
	return cmd
}

// claimAnswers are the answers to permission claims in flags.
type claimAnswers struct {
	accept, reject       []string // names, as in "secrets.core"
	acceptAll, rejectAll bool
	selector             string
}

func (c *claimAnswers) flags(cmd *cobra.Command) {
	for _, f := range []struct {
		verb string
		some *[]string
		all  *bool
	}{{"accept", &c.accept, &c.acceptAll}, {"reject", &c.reject, &c.rejectAll}} {
		one, all := f.verb+"-permission-claim", f.verb+"-all-permission-claims"
		cmd.Flags().StringArrayVar(f.some, one, nil, "Claimed resource to "+f.verb+", as in secrets.core. The flag may be repeated.")
		cmd.Flags().BoolVar(f.all, all, false, sentence(f.verb)+" all permission claims.")
		cmd.MarkFlagsMutuallyExclusive(one, all)
	}
	cmd.Flags().StringVarP(&c.selector, "selector", "l", "", "Labels of the objects that accepted claims give access to, as in app=web. (default those that the provider suggests, or all)")
	cmd.MarkFlagsMutuallyExclusive("accept-all-permission-claims", "reject-all-permission-claims")
}

// answers returns what the flags say, in the order in which it applies.
func (c claimAnswers) answers() []claimAnswer {
	accept, reject := claimAnswer{state: apis.ClaimAccepted, selector: c.selector}, claimAnswer{state: apis.ClaimRejected}
	var all []claimAnswer
	if c.acceptAll {
		all = append(all, accept)
	}
	if c.rejectAll {
		all = append(all, reject)
	}
	if len(c.accept) > 0 {
		accept.resources = c.accept
		all = append(all, accept)
	}
	if len(c.reject) > 0 {
		reject.resources = c.reject
		all = append(all, reject)
	}
	return all
}

func (a *app) bindExport(ctx context.Context, ref string, b bindExport) error {
	_, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	here, ok := srv.base.path, false
	if b.path, b.export, ok = parseReference(here, ref); !ok {
		return fmt.Errorf("invalid export %q: it must be [path:]name, as in root:provider:widgets", ref)
	}
	if b.name == "" {
		b.name = b.export
	}
	bindings, err := srv.objects(here, apis.GroupVersion, "apibindings")
	if err != nil {
		return err
	}
	made, existed, err := b.ensure(ctx, bindings)
	if err != nil {
		return b.explain(about(here, "cannot bind export %q in workspace %q: %w", ref, here, err), here)
	}
	if existed {
		a.print.note("APIBinding %q exists already.", b.name)
	} else {
		a.print.note("APIBinding %q created.", b.name)
	}
	if made, err = a.awaitBound(ctx, bindings, made, b.timeout); err != nil {
		return err
	}
	for _, with := range b.claims.answers() {
		if made, err = with.write(ctx, bindings, b.name); err != nil {
			return fmt.Errorf("APIBinding %q is bound, but its permission claims are not answered: %w", b.name, err)
		}
	}
	for _, why := range lacks(made) {
		a.print.note("%s", why)
	}
	a.consented(made)
	a.print.say("APIBinding %q is bound. Workspace '%s' has %s.", b.name, here, strings.Join(boundResources(made), ", "))
	return nil
}

// ensure creates the APIBinding, unless there is one of its name to the same export.
func (b bindExport) ensure(ctx context.Context, bindings dynamic.ResourceInterface) (made *apis.APIBinding, existed bool, err error) {
	want := &apis.APIBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: apis.GroupVersion.String(), Kind: "APIBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: b.name},
		Spec:       apis.APIBindingSpec{Reference: apis.BindingReference{Export: &apis.ExportReference{Path: string(b.path), Name: b.export}}},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, false, err
	}
	delete(content, "status")
	o, err := bindings.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{FieldManager: userAgent})
	if apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) { // the server checks the export first
		if found, missing := bindings.Get(ctx, b.name, metav1.GetOptions{}); missing == nil {
			o, err, existed = found, nil, true
		}
	}
	if err != nil {
		return nil, existed, err
	}
	if made, err = bindingOf(o); err != nil {
		return nil, existed, err
	}
	if ref := made.Spec.Reference.Export; ref == nil || *ref != *want.Spec.Reference.Export {
		return nil, existed, fmt.Errorf("an APIBinding %q to another export exists; choose another name with --name", b.name)
	}
	return made, existed, nil
}

// notBindable is in the server's answer if the user may not bind the export, or there is none.
const notBindable = "no permission to bind to export"

// explain adds to err what the provider of the export can do, if the server refuses to bind it.
func (b bindExport) explain(err error, here cluster.Path) error {
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), notBindable) {
		return err
	}
	at := b.path
	if at == "" {
		at = here
	}
	return fmt.Errorf("%w\nThe export does not exist, or you may not bind it.\nWhat to do: check the name with kubectl get apiexports in workspace %q; "+
		"its administrator can give you a ClusterRole with the verb \"bind\" for %q of apiexports.apis.kcp.io", err, at, b.export)
}

// awaitBound waits until b is bound, and returns it.
func (a *app) awaitBound(ctx context.Context, bindings dynamic.ResourceInterface, b *apis.APIBinding, timeout time.Duration) (*apis.APIBinding, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said := ""
	err := follow(limited, bindings, bindingOf, b, func(now *apis.APIBinding) (bool, error) {
		b = now
		switch {
		case now.DeletionTimestamp != nil:
			return false, errors.New("it is being deleted")
		case now.Status.Phase == apis.PhaseBound:
			return true, nil
		}
		if why := now.Status.Conditions.Get(conditions.Ready); why != nil && why.Message != said {
			said = why.Message
			a.print.note("Waiting: %s", said)
		}
		return false, nil
	})
	switch {
	case err == nil:
		return b, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil:
		err = fmt.Errorf("timed out after %s; the server goes on trying", timeout)
	}
	return nil, fmt.Errorf("APIBinding %q is not bound: %w%s", b.Name, err, strings.Join(append([]string{""}, lacks(b)...), "\n"))
}

// lacks returns a text for each reason why conditions of b are not True, with what to do.
func lacks(b *apis.APIBinding) []string {
	var texts []string
	types := map[string][]string{} // by text
	for _, c := range b.Status.Conditions {
		if c.Type == conditions.Ready || c.Status == metav1.ConditionTrue {
			continue
		}
		text := fmt.Sprintf("%s: %s%s", c.Reason, c.Message, remedy(b, c.Reason))
		if types[text] == nil {
			texts = append(texts, text)
		}
		types[text] = append(types[text], string(c.Type))
	}
	for i, text := range texts {
		texts[i] = fmt.Sprintf("Not True: %s: %s", strings.Join(types[text], ", "), text)
	}
	return texts
}

// remedy returns what to do about a condition with this reason, as a further line.
func remedy(b *apis.APIBinding, reason string) string {
	switch reason {
	case apis.APIExportNotFound:
		return "\nWhat to do: create the APIExport, or delete this APIBinding and bind another export: kubectl delete apibinding " + b.Name
	case apis.MissingIdentityHash:
		return "\nWhat to do: see kubectl describe apiexport " + b.Spec.Reference.Export.Name + " in its workspace; the provider must create the secret of its identity"
	case apis.NamingConflicts:
		return "\nWhat to do: delete the APIBinding or CustomResourceDefinition that has the name, or this APIBinding: kubectl delete apibinding " + b.Name
	case apis.InvalidPermissionClaims, apis.PermissionClaimsMismatch:
		return "\nWhat to do: kubectl kcp claims get apibinding " + b.Name
	case apis.APIResourceSchemaInvalid:
		return "\nWhat to do: the provider must create the APIResourceSchema, or change spec.resources of the APIExport"
	}
	return ""
}

// boundResources returns the resources that a cluster has through b.
func boundResources(b *apis.APIBinding) []string {
	if len(b.Status.BoundResources) == 0 {
		return []string{"no resources from it: the export is empty"}
	}
	var all []string
	for _, r := range b.Status.BoundResources {
		all = append(all, schema.GroupResource{Group: r.Group, Resource: r.Resource}.String())
	}
	return all
}

func bindingOf(o *unstructured.Unstructured) (*apis.APIBinding, error) {
	b := &apis.APIBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, b); err != nil {
		return nil, fmt.Errorf("cannot decode APIBinding %q: %w", o.GetName(), err)
	}
	return b, nil
}
