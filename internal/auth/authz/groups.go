package authz

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// DeepReviewHeader in a request of system:masters for a SubjectAccessReview limits the
	// decision to RBAC: the user need not be allowed to enter the cluster.
	DeepReviewHeader = "X-Kcp-Internal-Deep-SubjectAccessReview"
)

// A Cluster is the state of a logical cluster that authorization depends on besides RBAC.
type Cluster struct {
	Phase core.Phase
	// RequiredGroups are alternatives separated by semicolons, each a list of groups
	// separated by commas. Empty requires no groups.
	RequiredGroups string
	// Parent is the cluster that contains its workspace; empty if it has none.
	Parent cluster.Name
}

// beyondGroups returns the groups whose members are exempt from required groups.
func beyondGroups() []string {
	return []string{auth.LogicalClusterAdminGroup, auth.ExternalLogicalClusterAdminGroup, auth.AdminGroup, auth.WorkspaceBootstrapperGroup}
}

// requiredGroups reports whether u is in the groups that a cluster requires, and the
// reason.
func requiredGroups(c cluster.Name, required string, u user.Info) (passes bool, reason string) {
	switch {
	case required == "":
		return true, "the logical cluster requires no groups"
	case auth.IsServiceAccount(u) || strings.HasPrefix(u.GetName(), auth.ForeignServiceAccountPrefix):
		return true, "service accounts need no groups"
	case auth.IsMember(c, u, beyondGroups()...):
		return true, "the user is in a group that needs no others"
	}
	for alternative := range strings.SplitSeq(required, ";") {
		all := true
		for group := range strings.SplitSeq(alternative, ",") {
			all = all && group != "" && auth.IsMember(c, u, group)
		}
		if all {
			return true, fmt.Sprintf("the user is in the required groups %q", alternative)
		}
	}
	return false, fmt.Sprintf("the user is not in the groups that the logical cluster requires: %q", required)
}

// CheckRequiredGroups returns an error if required is not a valid value of required groups.
func CheckRequiredGroups(required string) error {
	for alternative := range strings.SplitSeq(required, ";") {
		for group := range strings.SplitSeq(alternative, ",") {
			if required != "" && (group == "" || strings.TrimSpace(group) != group) {
				return fmt.Errorf("groups %q have an empty name or a space in them; write alternatives as in \"a,b;c\": members of a and b, or of c", required)
			}
		}
	}
	return nil
}

type deepKey struct{}

// Deep returns a context in which only RBAC decides. The user need not be allowed to enter
// the cluster, nor be in its required groups.
func Deep(ctx context.Context) context.Context { return context.WithValue(ctx, deepKey{}, true) }

func deep(ctx context.Context) bool { return ctx.Value(deepKey{}) != nil }

// WithDeepReviews applies [Deep] to requests with [DeepReviewHeader]. Impersonation must
// run first.
func WithDeepReviews(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(DeepReviewHeader) == "true" {
			ctx := r.Context()
			u, known := request.UserFrom(ctx)
			info, ok := request.RequestInfoFrom(ctx)
			c, _ := cluster.From(ctx)
			if known && ok && auth.PrivilegedIn(c, u) && info.Verb == "create" && info.APIGroup == "authorization.k8s.io" && info.Resource == "subjectaccessreviews" {
				r = r.WithContext(Deep(ctx))
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// WithScopes removes the user from system:masters if the cluster of the request is out of
// their scope. Later code can then check for the group alone. Impersonation must run first.
func WithScopes(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if u, ok := request.UserFrom(ctx); ok && auth.InGroup(u, user.SystemPrivilegedGroup) {
			if c, _ := cluster.From(ctx); !auth.InScope(u, c) {
				r = r.WithContext(request.WithUser(ctx, auth.OutOfScope(u)))
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// groupsAndPhase checks the required groups and the phase of cluster c. It returns nil if
// RBAC is to decide.
func (z *Authorizer) groupsAndPhase(c cluster.Name, a authorizer.Attributes, v *verdict) (refused *verdict) {
	if z.options.Cluster == nil {
		return nil
	}
	info, ok := z.options.Cluster(c)
	if !ok {
		v.decision, v.reason = authorizer.DecisionDeny, "the logical cluster has no LogicalCluster"
		z.step(v, Step{StepContent, v.decision, v.reason})
		return v
	}
	passes, reason := requiredGroups(c, info.RequiredGroups, a.GetUser())
	if !passes {
		v.decision, v.reason = authorizer.DecisionDeny, reason
		z.step(v, Step{StepRequiredGroups, v.decision, reason})
		return v
	}
	z.step(v, Step{StepRequiredGroups, authorizer.DecisionAllow, reason})
	if info.Phase != core.PhaseScheduling && info.Phase != core.PhaseUnavailable || auth.IsMember(c, a.GetUser(), auth.LogicalClusterAdminGroup) {
		return nil
	}
	v.decision, v.reason = authorizer.DecisionDeny, fmt.Sprintf("the logical cluster takes no requests in phase %s", info.Phase)
	z.step(v, Step{StepContent, v.decision, v.reason})
	return v
}
