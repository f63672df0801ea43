package sharing

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
)

// claimName returns the name of a claimed resource, as in "secrets.core".
func claimName(c apis.PermissionClaim) string {
	if c.Group == "" {
		return c.Resource + ".core"
	}
	return c.Resource + "." + c.Group
}

// sameClaim reports whether two claims are on the same resource.
func sameClaim(a, b apis.PermissionClaim) bool {
	return a.Group == b.Group && a.Resource == b.Resource && a.IdentityHash == b.IdentityHash
}

// consent says in plain words what a claim allows the provider of an export.
func consent(c apis.PermissionClaim, s apis.PermissionClaimSelector) string {
	text := fmt.Sprintf("The provider can %s %s %s", deeds(c.Verbs), which(s), schema.GroupResource{Group: c.Group, Resource: c.Resource})
	if labels := selectorText(s); labels != "" {
		text += " with labels " + labels
	}
	text += " in this workspace."
	if risk := risk(c); risk != "" {
		text += " " + risk
	}
	return text
}

func which(s apis.PermissionClaimSelector) string {
	if s.MatchAll {
		return "all"
	}
	return "those"
}

func selectorText(s apis.PermissionClaimSelector) string {
	if s.MatchAll {
		return ""
	}
	return metav1.FormatLabelSelector(&s.LabelSelector)
}

// deeds describes verbs.
func deeds(verbs []string) string {
	if slices.Contains(verbs, "*") {
		return "do everything with"
	}
	var all []string
	for _, d := range []struct {
		deed  string
		verbs []string
	}{{"read", []string{"get", "list", "watch"}}, {"create", []string{"create"}}, {"change", []string{"update", "patch"}}, {"delete", []string{"delete", "deletecollection"}}} {
		if slices.ContainsFunc(verbs, func(v string) bool { return slices.Contains(d.verbs, v) }) {
			all = append(all, d.deed)
			verbs = slices.DeleteFunc(slices.Clone(verbs), func(v string) bool { return slices.Contains(d.verbs, v) })
		}
	}
	all = append(all, verbs...)
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return strings.Join(all, "")
}

// risk names what a claim exposes beyond the objects themselves.
func risk(c apis.PermissionClaim) string {
	writes := slices.ContainsFunc(c.Verbs, func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) })
	switch {
	case c.Group == "" && c.Resource == "secrets":
		return "Secrets hold passwords, keys and tokens."
	case c.Group == "rbac.authorization.k8s.io" && writes:
		return "So it can change who may do what here."
	case c.Group == "admissionregistration.k8s.io" && writes:
		return "So it can read, change and refuse what is written here."
	case c.Group == "apiextensions.k8s.io" && writes:
		return "So it can change and delete kinds here, with all their objects."
	case c.Group == "authorization.k8s.io":
		return "So it can ask who may do what here."
	}
	return ""
}

// defaultSelector returns the selector with which a claim is accepted by default.
func defaultSelector(c apis.PermissionClaim) apis.PermissionClaimSelector {
	if c.DefaultSelector != nil {
		return *c.DefaultSelector
	}
	return apis.PermissionClaimSelector{MatchAll: true}
}

// answerTo returns the answer of a binding to a claim, nil if there is none.
func answerTo(b *apis.APIBinding, c apis.PermissionClaim) *apis.AcceptablePermissionClaim {
	i := slices.IndexFunc(b.Spec.PermissionClaims, func(a apis.AcceptablePermissionClaim) bool { return sameClaim(a.PermissionClaim, c) })
	if i < 0 {
		return nil
	}
	return &b.Spec.PermissionClaims[i]
}

// more returns the verbs that the provider asks for beyond what an answer accepts.
func more(a *apis.AcceptablePermissionClaim, c apis.PermissionClaim) []string {
	if slices.Contains(a.Verbs, "*") {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Verbs), func(v string) bool { return slices.Contains(a.Verbs, v) })
}

// statusOf returns the state of a claim for a table.
func statusOf(b *apis.APIBinding, c apis.PermissionClaim) string {
	a := answerTo(b, c)
	if a == nil {
		return "Open"
	}
	status := string(a.State)
	if labels := selectorText(a.Selector); labels != "" && a.State == apis.ClaimAccepted {
		status += " for " + labels
	}
	if asks := more(a, c); len(asks) > 0 && a.State == apis.ClaimAccepted {
		status += ", asks for more: " + strings.Join(asks, ",")
	}
	return status
}
