// Package sharing has the commands that offer and bind APIs, answer permission claims, and
// report usage.
package sharing

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// BoundWithin is the default timeout for a new APIBinding to be bound.
const BoundWithin = 30 * time.Second

// BindCommand returns the command "kubectl kcp bind" with some subcommands besides its own.
func BindCommand(a *command.App, others ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bind",
		Short: "Use an API of another workspace",
		Long:  "Use an API of another workspace in the current one.",
		Example: `  # Use the API that the export widgets of a workspace has
  kubectl kcp bind apiexport root:provider:widgets`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(bindExportCommand(a))
	cmd.AddCommand(others...)
	return cmd
}

// A NewBinding has the arguments of "bind apiexport".
type NewBinding struct {
	Path    cluster.Path // of the export; empty for the current workspace
	Export  string
	Name    string
	Timeout time.Duration
	Claims  ClaimAnswers
	// Consents means that a new binding accepts all claims, unless flags say otherwise.
	Consents bool
}

func bindExportCommand(a *command.App) *cobra.Command {
	var b NewBinding
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
		ValidArgsFunction: a.CompleteExport,
	}
	cmd.Flags().StringVar(&b.Name, "name", "", "Name of the APIBinding. (default the name of the export)")
	cmd.Flags().DurationVar(&b.Timeout, "timeout", BoundWithin, "Timeout for the APIBinding to be bound.")
	b.Claims.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return bindExport(cmd.Context(), a, args[0], b) }
	return cmd
}

// ClaimAnswers are the answers to permission claims in flags.
type ClaimAnswers struct {
	accept, reject       []string // names, as in "secrets.core"
	acceptAll, rejectAll bool
	Selector             string
}

// Flags adds the flags that answer claims to cmd.
func (c *ClaimAnswers) Flags(cmd *cobra.Command) {
	for _, f := range []struct {
		verb string
		some *[]string
		all  *bool
	}{{"accept", &c.accept, &c.acceptAll}, {"reject", &c.reject, &c.rejectAll}} {
		one, all := f.verb+"-permission-claim", f.verb+"-all-permission-claims"
		cmd.Flags().StringArrayVar(f.some, one, nil, "Claimed resource to "+f.verb+", as in secrets.core. The flag may be repeated.")
		cmd.Flags().BoolVar(f.all, all, false, output.Sentence(f.verb)+" all permission claims.")
		cmd.MarkFlagsMutuallyExclusive(one, all)
	}
	cmd.Flags().StringVarP(&c.Selector, "selector", "l", "", "Labels of the objects that accepted claims give access to, as in app=web. (default those that the provider suggests, or all)")
	cmd.MarkFlagsMutuallyExclusive("accept-all-permission-claims", "reject-all-permission-claims")
}

// Check returns an error if the flags accept and reject the same claim.
func (c ClaimAnswers) Check() error {
	name := func(arg string) string { return strings.TrimSuffix(strings.ToLower(arg), ".core") }
	for _, arg := range c.accept {
		if slices.ContainsFunc(c.reject, func(other string) bool { return name(other) == name(arg) }) {
			return fmt.Errorf("the claim on %s is both accepted and rejected; leave out one of --accept-permission-claim and --reject-permission-claim", arg)
		}
	}
	return nil
}

// Answers returns what the flags say, in the order in which it applies.
func (c ClaimAnswers) Answers() []ClaimAnswer {
	accept, reject := ClaimAnswer{State: apis.ClaimAccepted, Selector: c.Selector}, ClaimAnswer{State: apis.ClaimRejected}
	var all []ClaimAnswer
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

func bindExport(ctx context.Context, a *command.App, ref string, b NewBinding) error {
	if err := b.Claims.Check(); err != nil {
		return err
	}
	_, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	here, ok := srv.Base.Path, false
	if b.Path, b.Export, ok = paths.ParseReference(here, ref); !ok {
		return invalidExport(ref)
	}
	if b.Name == "" {
		b.Name = b.Export
	}
	bindings, err := srv.Objects(here, apis.GroupVersion, "apibindings")
	if err != nil {
		return err
	}
	made, existed, err := b.Ensure(ctx, bindings)
	if err != nil {
		return b.Explain(remote.About(here, "cannot bind export %q in workspace %q: %w", ref, here, err), here)
	}
	if existed {
		a.Print.Note("APIBinding %q exists already.", b.Name)
	} else {
		a.Print.Note("APIBinding %q created.", b.Name)
	}
	if made, err = AwaitBound(ctx, a, bindings, made, b.Timeout); err != nil {
		return err
	}
	for _, with := range b.Claims.Answers() {
		if made, err = with.Write(ctx, bindings, b.Name); err != nil {
			return fmt.Errorf("APIBinding %q is bound, but its permission claims are not answered: %w", b.Name, err)
		}
	}
	for _, why := range lacks(made) {
		a.Print.Note("%s", why)
	}
	PrintConsent(a, made)
	a.Print.Say("APIBinding %q is bound. Workspace '%s' has %s.", b.Name, here, strings.Join(BoundResources(made), ", "))
	return nil
}

// Ensure creates the APIBinding, unless there is one of its name to the same export.
func (b NewBinding) Ensure(ctx context.Context, bindings dynamic.ResourceInterface) (made *apis.APIBinding, existed bool, err error) {
	want := &apis.APIBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: apis.GroupVersion.String(), Kind: "APIBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: b.Name},
		Spec:       apis.APIBindingSpec{Reference: apis.BindingReference{Export: &apis.ExportReference{Path: string(b.Path), Name: b.Export}}},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, false, err
	}
	delete(content, "status")
	o, err := bindings.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{FieldManager: remote.UserAgent})
	if apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) { // the server checks the export first
		if found, missing := bindings.Get(ctx, b.Name, metav1.GetOptions{}); missing == nil {
			o, err, existed = found, nil, true
		}
	}
	if err != nil {
		return nil, existed, err
	}
	if made, err = BindingOf(o); err != nil {
		return nil, existed, err
	}
	if ref := made.Spec.Reference.Export; ref == nil || *ref != *want.Spec.Reference.Export {
		return nil, existed, fmt.Errorf("an APIBinding %q to another export exists; choose another name with --name", b.Name)
	}
	return made, existed, nil
}

// notBindable is in the server's answer if the user may not bind the export, or there is none.
const notBindable = "no permission to bind to export"

// Explain adds to err what the provider of the export can do, if the server refuses to bind it.
func (b NewBinding) Explain(err error, here cluster.Path) error {
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), notBindable) {
		return err
	}
	at := b.Path
	if at == "" {
		at = here
	}
	return fmt.Errorf("%w\nThe export does not exist, or you may not bind it.\nWhat to do: check the name with kubectl get apiexports in workspace %q; "+
		"its administrator can give you a ClusterRole with the verb \"bind\" for %q of apiexports.apis.kcp.io", err, at, b.Export)
}

// AwaitBound waits until b is bound, and returns it.
func AwaitBound(ctx context.Context, a *command.App, bindings dynamic.ResourceInterface, b *apis.APIBinding, timeout time.Duration) (*apis.APIBinding, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said := ""
	err := remote.Follow(limited, bindings, BindingOf, b, func(now *apis.APIBinding) (bool, error) {
		b = now
		switch {
		case now.DeletionTimestamp != nil:
			return false, errors.New("it is being deleted")
		case now.Status.Phase == apis.PhaseBound:
			return true, nil
		}
		if why := now.Status.Conditions.Get(conditions.Ready); why != nil && why.Message != said {
			said = why.Message
			a.Print.Note("Waiting: %s", said)
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
	case apis.SomeFinalizersRemain:
		return "\nWhat to do: check that the controllers of these finalizers are running; if one is gone for good, remove its finalizer from the objects"
	case apis.APIResourceSchemaInvalid:
		return "\nWhat to do: the provider must create the APIResourceSchema, or change spec.resources of the APIExport"
	}
	return ""
}

// BoundResources returns the resources that a cluster has through b.
func BoundResources(b *apis.APIBinding) []string {
	if len(b.Status.BoundResources) == 0 {
		return []string{"no resources from it: the export is empty"}
	}
	var all []string
	for _, r := range b.Status.BoundResources {
		all = append(all, schema.GroupResource{Group: r.Group, Resource: r.Resource}.String())
	}
	return all
}

// BindingOf decodes an APIBinding.
func BindingOf(o *unstructured.Unstructured) (*apis.APIBinding, error) {
	b := &apis.APIBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, b); err != nil {
		return nil, fmt.Errorf("cannot decode APIBinding %q: %w", o.GetName(), err)
	}
	return b, nil
}
