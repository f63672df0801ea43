package bind

import (
	"fmt"
	"slices"
	"strings"
	"unique"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/membership"
)

// A Claimed is a resource that an export claims in the clusters that bind it.
type Claimed struct {
	schema.GroupResource
	// Identity is that of the export that the resource comes from, empty if it is built in.
	Identity string
}

// A Claim is access that a binding grants to the provider of its export.
type Claim struct {
	Claimed
	Verbs []string
	// Selector selects the objects by labels, in the syntax of queries. Empty selects all.
	Selector string
}

// A ViewList identifies the lists and watches of the view of an export in all clusters: those of the
// resources of the export, or of one claimed resource.
type ViewList struct {
	Export exports.Name
	claim  unique.Handle[claimedList] // zero for the resources of the export
}

// A claimedList is the list or watch of a claimed resource, with its verb.
type claimedList struct {
	Claimed
	verb string
}

// ViewList returns the list or watch of a claimed resource through the view of an export.
func (c Claimed) ViewList(e exports.Name, verb string) ViewList {
	return ViewList{e, unique.Make(claimedList{c, verb})}
}

// claimedOf returns the resource of a claim. Both groups of Events are one resource.
func claimedOf(c apisv1alpha2.PermissionClaim) Claimed {
	return Claimed{Canonical(schema.GroupResource{Group: c.Group, Resource: c.Resource}), c.IdentityHash}
}

// Canonical returns the resource by which claims know gr: Events of both of their groups are
// those of the core group.
func Canonical(gr schema.GroupResource) schema.GroupResource {
	if gr.Resource == "events" && gr.Group == "events.k8s.io" {
		gr.Group = ""
	}
	return gr
}

// Asks returns the claim of an export on a resource.
func Asks(e *exports.Export, gr schema.GroupResource) (Claimed, bool) {
	for _, c := range e.Claims {
		if of := claimedOf(c); of.GroupResource == Canonical(gr) {
			return of, true
		}
	}
	return Claimed{}, false
}

// granted returns the accepted claims of a binding that its export asks for, with the verbs that
// both have.
func granted(answers []apisv1alpha2.AcceptablePermissionClaim, asked []apisv1alpha2.PermissionClaim) []apisv1alpha2.ScopedPermissionClaim {
	var all []apisv1alpha2.ScopedPermissionClaim
	for _, a := range answers {
		i := slices.IndexFunc(asked, func(c apisv1alpha2.PermissionClaim) bool { return claimedOf(c) == claimedOf(a.PermissionClaim) })
		if a.State != apisv1alpha2.ClaimAccepted || i < 0 {
			continue
		}
		if verbs := bothVerbs(a.Verbs, asked[i].Verbs); len(verbs) > 0 {
			s := *a.ScopedPermissionClaim.DeepCopy()
			s.Verbs = verbs
			all = append(all, s)
		}
	}
	return all
}

// bothVerbs returns the verbs that are in two lists.
func bothVerbs(a, b []string) []string {
	switch {
	case slices.Contains(a, rbacv1.VerbAll):
		return b
	case slices.Contains(b, rbacv1.VerbAll):
		return a
	}
	var both []string
	for _, v := range a {
		if slices.Contains(b, v) {
			both = append(both, v)
		}
	}
	return both
}

// selectorOf returns a selector in the syntax of queries. It reports false for one that selects
// nothing.
func selectorOf(s apisv1alpha2.PermissionClaimSelector) (string, bool) {
	if s.MatchAll {
		return "", true
	}
	selector, err := metav1.LabelSelectorAsSelector(&s.LabelSelector)
	if err != nil || selector.Empty() {
		return "", false
	}
	return selector.String(), true
}

// claimsOf returns what a binding grants.
func claimsOf(answers []apisv1alpha2.AcceptablePermissionClaim, asked []apisv1alpha2.PermissionClaim) []Claim {
	var all []Claim
	for _, s := range granted(answers, asked) {
		if selector, ok := selectorOf(s.Selector); ok {
			all = append(all, Claim{claimedOf(s.PermissionClaim), s.Verbs, selector})
		}
	}
	return all
}

// Allows reports whether the claim grants a verb.
func (c Claim) Allows(verb string) bool {
	return slices.Contains(c.Verbs, verb) || slices.Contains(c.Verbs, rbacv1.VerbAll)
}

// viewListsOf returns the lists of views that read through rows.
func (b *Bindings) viewListsOf(rows []bindingRow) []membership.In[ViewList] {
	var all []membership.In[ViewList]
	for _, r := range rows {
		all = r.viewLists(all, b.exports.Identity(r.Export))
	}
	return all
}

// viewLists adds what the view of an export reads in a cluster through a binding to all. identity is
// that of the export now, empty if it has none: then it has no view.
func (b *Binding) viewLists(all []membership.In[ViewList], identity string) []membership.In[ViewList] {
	add := func(r ViewList, selector string) {
		if !slices.ContainsFunc(all, func(in membership.In[ViewList]) bool { return in.Group == r }) {
			all = append(all, membership.In[ViewList]{Group: r, Selector: selector})
		}
	}
	if !b.Complete || b.Replaced || identity != "" && !b.admits(Via{b.Export, identity}) {
		return all
	}
	add(ViewList{Export: b.Export}, "")
	for _, c := range b.Claims {
		for _, verb := range []string{"list", "watch"} {
			if c.Allows(verb) {
				add(c.ViewList(b.Export, verb), c.Selector)
			}
		}
	}
	return all
}

// claims sets the claims in the status of the binding, and what is wrong with its answers.
func (s *settling) claims(e *exports.Export) {
	st, answers := &s.binding.Status, s.binding.Spec.PermissionClaims
	st.ExportPermissionClaims = e.Claims
	st.AppliedPermissionClaims = granted(answers, e.Claims)
	var unasked, differ []string
	for _, a := range answers {
		if a.State != apisv1alpha2.ClaimAccepted {
			continue
		}
		name := claimedOf(a.PermissionClaim).String()
		i := slices.IndexFunc(e.Claims, func(c apisv1alpha2.PermissionClaim) bool { return claimedOf(c) == claimedOf(a.PermissionClaim) })
		switch {
		case i < 0:
			unasked = append(unasked, name)
		case len(bothVerbs(a.Verbs, e.Claims[i].Verbs)) < len(e.Claims[i].Verbs):
			differ = append(differ, fmt.Sprintf("%s: accepted with the verbs %s, while the APIExport claims %s", name, strings.Join(a.Verbs, ", "), strings.Join(e.Claims[i].Verbs, ", ")))
		case !equality.Semantic.DeepEqual(selector(e, i), a.Selector):
			differ = append(differ, name+": accepted with another selector than the default of the APIExport")
		}
	}
	valid := conditions.Condition{Type: apisv1alpha2.PermissionClaimsValid, Status: metav1.ConditionTrue, LastTransitionTime: s.at}
	fails := func(severity conditions.Severity, reason, message string) {
		valid.Status, valid.Severity, valid.Reason, valid.Message = metav1.ConditionFalse, severity, reason, message
	}
	if len(unasked) > 0 {
		fails(conditions.SeverityError, apisv1alpha2.InvalidPermissionClaims,
			"the APIExport does not claim "+strings.Join(unasked, ", ")+"; remove these from spec.permissionClaims")
	} else if len(differ) > 0 {
		fails(conditions.SeverityWarning, apisv1alpha2.PermissionClaimsMismatch, strings.Join(differ, "; "))
	}
	st.Conditions.Set(valid)
	s.set(apisv1alpha2.PermissionClaimsApplied)
}

// selector returns the selector with which the i-th claim of an export is accepted by default.
func selector(e *exports.Export, i int) apisv1alpha2.PermissionClaimSelector {
	if s := e.Claims[i].DefaultSelector; s != nil {
		return *s
	}
	return apisv1alpha2.PermissionClaimSelector{MatchAll: true}
}

// accepted returns answers that accept all claims of an export as it suggests.
func accepted(e *exports.Export) []apisv1alpha2.AcceptablePermissionClaim {
	var all []apisv1alpha2.AcceptablePermissionClaim
	for i, c := range e.Claims {
		a := apisv1alpha2.AcceptablePermissionClaim{State: apisv1alpha2.ClaimAccepted}
		a.PermissionClaim, a.Selector = *c.DeepCopy(), selector(e, i)
		a.DefaultSelector = nil
		all = append(all, a)
	}
	return all
}

// String names the resource for people.
func (c Claimed) String() string {
	if c.Identity == "" {
		return c.GroupResource.String()
	}
	return fmt.Sprintf("%s of identity %s", c.GroupResource, c.Identity[:min(8, len(c.Identity))])
}

// Owner returns an export that has a resource with an identity. Of several, it is always the
// same.
func (a *APIs) Owner(of Claimed) (exports.Name, *exports.Export) {
	for _, c := range a.Exports.ClustersBy(of.Identity) {
		for _, e := range a.Exports.By(of.Identity, c) {
			if !e.Deleting && e.Has(of.GroupResource) {
				return exports.Name{Cluster: c, Name: e.Name}, e
			}
		}
	}
	return exports.Name{}, nil
}
