package cli

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
)

func (a *app) claimsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "claims",
		Short: "Decide what providers of APIs may access",
		Long:  "Show, accept and reject the permission claims of APIExports that the current workspace binds.",
		Example: `  # Show what providers ask for, and what is accepted
  kubectl kcp claims get apibinding`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.claimsGetCommand(), a.answerCommand(apis.ClaimAccepted), a.answerCommand(apis.ClaimRejected))
	return cmd
}

func (a *app) claimsGetCommand() *cobra.Command {
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
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.claimsGet(cmd.Context(), args) },
	})
	return cmd
}

// A claimAnswer holds the arguments of "claims accept" and "claims reject".
type claimAnswer struct {
	state     apis.ClaimState
	resources []string // empty for all
	identity  string
	selector  string
}

func (a *app) answerCommand(state apis.ClaimState) *cobra.Command {
	verb := map[apis.ClaimState]string{apis.ClaimAccepted: "accept", apis.ClaimRejected: "reject"}[state]
	with := claimAnswer{state: state}
	cmd := &cobra.Command{
		Use:   verb + " APIBINDING",
		Short: sentence(verb) + " permission claims",
		Long:  sentence(verb) + " the permission claims of the APIExport that an APIBinding of the current workspace binds: some, or all.",
		Example: fmt.Sprintf(`  # %[2]s all claims of the binding widgets
  kubectl kcp claims %[1]s widgets

  # %[2]s one claim
  kubectl kcp claims %[1]s widgets --resource secrets.core`, verb, sentence(verb)),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.claimsAnswer(cmd.Context(), args[0], with) },
	}
	cmd.Flags().StringArrayVar(&with.resources, "resource", nil, "Claimed resource, as in secrets.core. The flag may be repeated. (default all)")
	cmd.Flags().StringVar(&with.identity, "identity-hash", "", "Identity of the claimed resource, if the export claims several of its name.")
	if state == apis.ClaimAccepted {
		cmd.Flags().StringVarP(&with.selector, "selector", "l", "", "Labels of the objects to give access to, as in app=web. (default those that the provider suggests, or all)")
	}
	return cmd
}

// bindingsHere returns the client of the APIBindings of the current workspace.
func (a *app) bindingsHere(ctx context.Context) (dynamic.ResourceInterface, error) {
	_, srv, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	return srv.objects(srv.base.path, apis.GroupVersion, "apibindings")
}

func (a *app) claimsGet(ctx context.Context, names []string) error {
	bindings, err := a.bindingsHere(ctx)
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
		b, err := bindingOf(&found[i])
		if err != nil {
			return err
		}
		for _, c := range b.Status.ExportPermissionClaims {
			table = append(table, []string{b.Name, claimName(c), strings.Join(c.Verbs, ","), statusOf(b, c)})
		}
	}
	if len(table) == 1 {
		a.print.note("No APIExport that is bound here has permission claims.")
		return nil
	}
	a.print.table(table)
	return nil
}

func (a *app) claimsAnswer(ctx context.Context, name string, with claimAnswer) error {
	bindings, err := a.bindingsHere(ctx)
	if err != nil {
		return err
	}
	b, err := with.write(ctx, bindings, name)
	if err != nil {
		return fmt.Errorf("cannot answer the claims of APIBinding %q: %w", name, err)
	}
	a.consented(b)
	return nil
}

// write sets the answers to the claims that are meant.
func (w claimAnswer) write(ctx context.Context, bindings dynamic.ResourceInterface, name string) (b *apis.APIBinding, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o, err := bindings.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if b, err = bindingOf(o); err != nil {
			return err
		}
		if err := w.set(b); err != nil {
			return err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
		if err != nil {
			return err
		}
		if o, err = bindings.Update(ctx, &unstructured.Unstructured{Object: content}, metav1.UpdateOptions{FieldManager: userAgent}); err != nil {
			return err
		}
		b, err = bindingOf(o)
		return err
	})
	return b, err
}

// set sets the answers in b.
func (w claimAnswer) set(b *apis.APIBinding) error {
	selector, err := w.parsed()
	if err != nil {
		return err
	}
	asked := b.Status.ExportPermissionClaims
	if len(asked) == 0 {
		return errors.New("the APIExport has no permission claims")
	}
	for _, r := range w.resources {
		if !slices.ContainsFunc(asked, func(c apis.PermissionClaim) bool { return claimName(c) == r }) {
			return fmt.Errorf("the APIExport does not claim %q; it claims %s", r, strings.Join(claimNames(asked), ", "))
		}
	}
	for _, c := range asked {
		if len(w.resources) > 0 && !slices.Contains(w.resources, claimName(c)) || w.identity != "" && w.identity != c.IdentityHash {
			continue
		}
		s := apis.AcceptablePermissionClaim{State: w.state}
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

// parsed returns the selector of --selector, nil if there is none.
func (w claimAnswer) parsed() (*apis.PermissionClaimSelector, error) {
	if w.selector == "" {
		return nil, nil
	}
	s, err := metav1.ParseToLabelSelector(w.selector)
	if err != nil {
		return nil, fmt.Errorf("invalid selector %q: %w", w.selector, err)
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

// consented prints what the provider of a binding may do now, and what waits for an answer.
func (a *app) consented(b *apis.APIBinding) {
	var open []string
	for _, c := range b.Status.ExportPermissionClaims {
		switch answer := answerTo(b, c); {
		case answer == nil:
			open = append(open, claimName(c))
			a.print.note("Asked: %s", consent(c, defaultSelector(c)))
		case answer.State == apis.ClaimAccepted:
			a.print.say("Accepted: %s", consent(answer.PermissionClaim, answer.Selector))
			if asks := more(answer, c); len(asks) > 0 {
				a.print.note("The provider asks for more: %s %s.", deeds(asks), claimName(c))
				open = append(open, claimName(c))
			}
		default:
			a.print.say("Rejected: the provider has no access to %s.", claimName(c))
		}
	}
	if len(open) > 0 {
		a.print.note("Until you answer, the provider has no access to what it asks for. What to do: kubectl kcp claims accept %[1]s --resource %[2]s, or kubectl kcp claims reject %[1]s --resource %[2]s", b.Name, strings.Join(open, " --resource "))
	}
}
