package admit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/values"
)

// Limits of claims. Every binding stores those of its export.
const (
	maxClaims         = 64
	maxVerbs          = 16
	maxSelectorValues = 64
)

// A MayDo reports whether a user may do a verb with all objects of a resource in a cluster.
type MayDo func(ctx context.Context, u user.Info, c cluster.Name, verb string, gr schema.GroupResource) (bool, error)

// asks checks the claims of an export.
func (s Sharing) asks(r Request, claims []apisv1alpha2.PermissionClaim) error {
	if len(claims) > maxClaims {
		return r.Forbid(fmt.Errorf("spec.permissionClaims must have at most %d claims", maxClaims))
	}
	for i, c := range claims {
		gr, at := schema.GroupResource{Group: c.Group, Resource: c.Resource}, fmt.Sprintf("spec.permissionClaims[%d]", i)
		builtIn := s.BuiltIn(gr)
		switch {
		case gr.Group == coreGroup:
			return r.Forbid(fmt.Errorf("%s.group: %s", at, coreGroupHint))
		case gr == sharingResource("apibindings"):
			return r.Forbid(fmt.Errorf("%s: remove the claim on APIBindings: the virtual workspace has those of this APIExport without a claim", at))
		case builtIn && c.IdentityHash != "":
			return r.Forbid(fmt.Errorf("%s.identityHash must be empty: %s is built in", at, gr))
		case !builtIn && c.IdentityHash == "":
			return r.Forbid(fmt.Errorf("%s.identityHash is required for %s, which is not built in: set it to status.identityHash of the APIExport that has the resource", at, gr))
		case len(c.Verbs) > maxVerbs:
			return r.Forbid(fmt.Errorf("%s.verbs must have at most %d verbs", at, maxVerbs))
		}
		if c.DefaultSelector != nil {
			if err := selects(*c.DefaultSelector); err != nil {
				return r.Forbid(fmt.Errorf("%s.defaultSelector: %w", at, err))
			}
		}
	}
	return nil
}

// selects returns what is wrong with a selector.
func selects(s apisv1alpha2.PermissionClaimSelector) error {
	some := len(s.MatchLabels)+len(s.MatchExpressions) > 0
	if !some && !s.MatchAll {
		return errors.New("either one of matchAll, matchLabels, or matchExpressions must be set")
	}
	if some && s.MatchAll {
		return errors.New("matchAll excludes matchLabels and matchExpressions: leave out one of them")
	}
	values := len(s.MatchLabels)
	for _, e := range s.MatchExpressions {
		values += 1 + len(e.Values)
	}
	if values > maxSelectorValues {
		return fmt.Errorf("it must have at most %d labels, expressions and values", maxSelectorValues)
	}
	_, err := metav1.LabelSelectorAsSelector(&s.LabelSelector)
	return err
}

// answers checks the answers of a binding to claims. A user can only grant what they may do
// themself: otherwise a user who may create bindings could read all secrets of the workspace by
// an export of their own.
func (s Sharing) answers(ctx context.Context, r Request, now []apisv1alpha2.AcceptablePermissionClaim) error {
	if len(now) > maxClaims {
		return r.Forbid(fmt.Errorf("spec.permissionClaims must have at most %d claims", maxClaims))
	}
	before, err := answersBefore(r)
	if err != nil {
		return err
	}
	for i, a := range now {
		at := fmt.Sprintf("spec.permissionClaims[%d]", i)
		if err := selects(a.Selector); err != nil {
			return r.Forbid(fmt.Errorf("%s.selector: %w", at, err))
		}
		if len(a.Verbs) > maxVerbs {
			return r.Forbid(fmt.Errorf("%s.verbs must have at most %d verbs", at, maxVerbs))
		}
	}
	for i, a := range now {
		at := fmt.Sprintf("spec.permissionClaims[%d]", i)
		if a.State != apisv1alpha2.ClaimAccepted || r.Privileged() {
			continue
		}
		gr := schema.GroupResource{Group: a.Group, Resource: a.Resource}
		for _, verb := range a.Verbs {
			if slices.ContainsFunc(before, func(b apisv1alpha2.AcceptablePermissionClaim) bool { return grants(b, a, verb) }) {
				continue
			}
			switch ok, err := s.MayDo(ctx, r.GetUserInfo(), r.Cluster, verb, gr); {
			case err != nil:
				return r.Forbid(fmt.Errorf("cannot decide whether you may %s %s: %w", verb, gr, err))
			case !ok:
				return r.Forbid(fmt.Errorf("%s: you may not %q all %s in this workspace, so you cannot accept a claim to; ask an administrator of the workspace, or reject the claim", at, verb, gr))
			}
		}
	}
	return nil
}

// grants reports whether an answer already grants a verb to all objects that a new one selects.
func grants(before, now apisv1alpha2.AcceptablePermissionClaim, verb string) bool {
	return before.State == apisv1alpha2.ClaimAccepted && before.Group == now.Group && before.Resource == now.Resource && before.IdentityHash == now.IdentityHash &&
		slices.Contains(before.Verbs, verb) && (before.Selector.MatchAll || equality.Semantic.DeepEqual(before.Selector, now.Selector))
}

// answersBefore returns the answers that an update replaces.
func answersBefore(r Request) ([]apisv1alpha2.AcceptablePermissionClaim, error) {
	if r.GetOldObject() == nil {
		return nil, nil
	}
	if r.GetKind().Version == apisv1alpha1.GroupVersion.Version {
		b, err := values.Typed[apisv1alpha1.APIBinding](r.GetOldObject())
		if err != nil {
			return nil, err
		}
		return b.ToV1alpha2().Spec.PermissionClaims, nil
	}
	b, err := values.Typed[apisv1alpha2.APIBinding](r.GetOldObject())
	if err != nil {
		return nil, err
	}
	return b.Spec.PermissionClaims, nil
}
