package sharing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
)

// ClaimsCommand returns the command "kubectl kcp claims".
func ClaimsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "claims",
		Short: "Decide what providers of APIs may access",
		Long:  "Show, accept and reject the permission claims of APIExports that the current workspace binds.",
		Example: `  # Show what providers ask for, and what is accepted
  kubectl kcp claims get apibinding`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(claimsGetCommand(a), answerCommand(a, apis.ClaimAccepted), answerCommand(a, apis.ClaimRejected))
	return cmd
}

func claimsGetCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show permission claims and their answers",
		Long:  "Show the permission claims of APIExports that the current workspace binds, and the answers.",
		Example: `  # Show the claims of all bindings
  kubectl kcp claims get apibinding`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "apibinding [NAME]",
		Aliases: []string{"apibindings"},
		Short:   "Show the permission claims of one binding or of all",
		Long: `Show the permission claims of one APIBinding of the current workspace, or of all.

The status is Accepted, Rejected, or Open, which means that there is no answer and no access yet. If the provider asks for more than was accepted, the status says so.`,
		Example: `  # Show the claims of all bindings
  kubectl kcp claims get apibinding

  # Show the claims of one binding
  kubectl kcp claims get apibinding widgets`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.CompleteBinding,
		RunE:              func(cmd *cobra.Command, args []string) error { return claimsGet(cmd.Context(), a, args) },
	})
	return cmd
}

// A ClaimAnswer holds the arguments of "claims accept" and "claims reject".
type ClaimAnswer struct {
	State     apis.ClaimState
	resources []string // empty for all
	identity  string
	Selector  string
}

func answerCommand(a *command.App, state apis.ClaimState) *cobra.Command {
	verb := map[apis.ClaimState]string{apis.ClaimAccepted: "accept", apis.ClaimRejected: "reject"}[state]
	with := ClaimAnswer{State: state}
	cmd := &cobra.Command{
		Use:   verb + " APIBINDING",
		Short: output.Sentence(verb) + " permission claims",
		Long:  output.Sentence(verb) + " the permission claims of the APIExport that an APIBinding of the current workspace binds: some, or all.",
		Example: fmt.Sprintf(`  # %[2]s all claims of the binding widgets
  kubectl kcp claims %[1]s widgets

  # %[2]s one claim
  kubectl kcp claims %[1]s widgets --resource secrets.core`, verb, output.Sentence(verb)),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteBinding,
		RunE:              func(cmd *cobra.Command, args []string) error { return claimsAnswer(cmd.Context(), a, args[0], with) },
	}
	cmd.Flags().StringArrayVar(&with.resources, "resource", nil, "Claimed resource, as in secrets, secrets.core or widgets.example.com. The flag may be repeated. (default all)")
	cmd.Flags().StringVar(&with.identity, "identity-hash", "", "Identity of the claimed resource, if the export claims several of its name.")
	if state == apis.ClaimAccepted {
		cmd.Flags().StringVarP(&with.Selector, "selector", "l", "", "Labels of the objects to give access to, as in app=web. (default those that the provider suggests, or all)")
	}
	return cmd
}

// bindingsHere returns the client of the APIBindings of the current workspace.
func bindingsHere(ctx context.Context, a *command.App) (dynamic.ResourceInterface, error) {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return nil, err
	}
	return srv.Objects(srv.Base.Path, apis.GroupVersion, "apibindings")
}

func claimsGet(ctx context.Context, a *command.App, names []string) error {
	bindings, err := bindingsHere(ctx, a)
	if err != nil {
		return err
	}
	var found []unstructured.Unstructured
	if len(names) > 0 {
		one, err := bindings.Get(ctx, names[0], metav1.GetOptions{})
		if err != nil {
			return err
		}
		found = append(found, *one)
	} else {
		list, err := bindings.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		found = list.Items
	}
	table := [][]string{{"APIBINDING", "GROUP-RESOURCE", "VERBS", "STATUS"}}
	for i := range found {
		b, err := BindingOf(&found[i])
		if err != nil {
			return err
		}
		for _, c := range b.Status.ExportPermissionClaims {
			table = append(table, []string{b.Name, claimName(c), strings.Join(c.Verbs, ","), statusOf(b, c)})
		}
	}
	if len(table) == 1 {
		a.Print.Note("No APIExport that is bound here has permission claims.")
		return nil
	}
	a.Print.Table(table)
	return nil
}

func claimsAnswer(ctx context.Context, a *command.App, name string, with ClaimAnswer) error {
	bindings, err := bindingsHere(ctx, a)
	if err != nil {
		return err
	}
	b, err := with.Write(ctx, bindings, name)
	if err != nil {
		return fmt.Errorf("cannot answer the claims of APIBinding %q: %w", name, err)
	}
	PrintConsent(a, b)
	return nil
}

// Write sets the answers to the claims that are meant.
func (w ClaimAnswer) Write(ctx context.Context, bindings dynamic.ResourceInterface, name string) (b *apis.APIBinding, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o, err := bindings.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if b, err = BindingOf(o); err != nil {
			return err
		}
		if err := w.set(b); err != nil {
			return err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
		if err != nil {
			return err
		}
		if o, err = bindings.Update(ctx, &unstructured.Unstructured{Object: content}, metav1.UpdateOptions{FieldManager: remote.UserAgent}); err != nil {
			return err
		}
		b, err = BindingOf(o)
		return err
	})
	return b, err
}

// set sets the answers in b.
func (w ClaimAnswer) set(b *apis.APIBinding) error {
	selector, err := w.parsed()
	if err != nil {
		return err
	}
	asked := b.Status.ExportPermissionClaims
	if len(asked) == 0 {
		return errors.New("the APIExport has no permission claims")
	}
	meant, err := w.meant(asked)
	if err != nil {
		return err
	}
	for _, c := range meant {
		s := apis.AcceptablePermissionClaim{State: w.State}
		s.PermissionClaim, s.Selector = *c.DeepCopy(), defaultSelector(c)
		s.DefaultSelector = nil
		if selector != nil {
			s.Selector = *selector
		}
		if before := answerTo(b, c); before != nil {
			*before = s
		} else {
			b.Spec.PermissionClaims = append(b.Spec.PermissionClaims, s)
		}
	}
	return nil
}

// meant returns the claims that are answered, at least one.
func (w ClaimAnswer) meant(asked []apis.PermissionClaim) (all []apis.PermissionClaim, err error) {
	var names []string
	for _, r := range w.resources {
		name, err := claimOf(asked, r)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	for _, c := range asked {
		if (len(names) == 0 || slices.Contains(names, claimName(c))) && (w.identity == "" || w.identity == c.IdentityHash) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the APIExport claims no such resource with the identity %q; leave out --identity-hash, or use one of status.exportPermissionClaims of the APIBinding", w.identity)
	}
	return all, nil
}

// claimOf returns the name of the claimed resource that an argument means. The group may be left out if only one
// claimed resource has the name.
func claimOf(asked []apis.PermissionClaim, arg string) (string, error) {
	arg = strings.ToLower(arg)
	var short []string
	for _, c := range asked {
		switch name := claimName(c); {
		case name == arg:
			return name, nil
		case c.Resource == arg && !slices.Contains(short, name):
			short = append(short, name)
		}
	}
	switch len(short) {
	case 0:
		return "", fmt.Errorf("the APIExport does not claim %q; it claims %s", arg, strings.Join(claimNames(asked), ", "))
	case 1:
		return short[0], nil
	}
	return "", fmt.Errorf("the APIExport claims several resources %q; write one of %s", arg, strings.Join(short, ", "))
}

// parsed returns the selector of --selector, nil if there is none.
func (w ClaimAnswer) parsed() (*apis.PermissionClaimSelector, error) {
	if w.Selector == "" {
		return nil, nil
	}
	s, err := metav1.ParseToLabelSelector(w.Selector)
	if err != nil {
		return nil, fmt.Errorf("invalid selector %q: %w", w.Selector, err)
	}
	return &apis.PermissionClaimSelector{LabelSelector: *s}, nil
}

func claimNames(all []apis.PermissionClaim) []string {
	var names []string
	for _, c := range all {
		names = append(names, claimName(c))
	}
	return names
}

// PrintConsent prints what the provider of a binding may do now, and what waits for an answer.
func PrintConsent(a *command.App, b *apis.APIBinding) {
	var open []string
	for _, c := range b.Status.ExportPermissionClaims {
		switch answer := answerTo(b, c); {
		case answer == nil:
			open = append(open, claimName(c))
			a.Print.Note("Asked: %s", consent(c, defaultSelector(c)))
		case answer.State == apis.ClaimAccepted:
			a.Print.Say("Accepted: %s", consent(answer.PermissionClaim, answer.Selector))
			if asks := more(answer, c); len(asks) > 0 {
				a.Print.Note("The provider asks for more: %s %s.", deeds(asks), claimName(c))
				open = append(open, claimName(c))
			}
		default:
			a.Print.Say("Rejected: the provider has no access to %s.", claimName(c))
		}
	}
	if len(open) > 0 {
		a.Print.Note("Until you answer, the provider has no access to what it asks for. What to do: kubectl kcp claims accept %[1]s --resource %[2]s, or kubectl kcp claims reject %[1]s --resource %[2]s", b.Name, strings.Join(open, " --resource "))
	}
}
