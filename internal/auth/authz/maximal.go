package authz

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// StepMaximal is the step in which the provider of a resource limits its consumers.
const StepMaximal = "04-maxpermissionpolicy"

// limit decides on a request that RBAC allows: the cluster that limits its resource may refuse it.
func (z *Authorizer) limit(ctx context.Context, a authorizer.Attributes, allowed verdict) verdict {
	c, _ := cluster.From(ctx)
	if z.options.Limited == nil || !a.IsResourceRequest() || deep(ctx) || c == "" {
		return allowed
	}
	at, ok := z.options.Limited(c, schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()})
	if !ok {
		return allowed
	}
	v := z.confirmed(ctx, func() verdict { return z.limits(ctx, at, a) })
	if v.decision == authorizer.DecisionAllow {
		z.step(&allowed, Step{StepMaximal, v.decision, v.reason})
		return allowed
	}
	refused := verdict{decision: authorizer.DecisionDeny, reason: "the provider of the resource does not allow it: " + v.reason, evidence: true, steps: allowed.steps}
	z.step(&refused, Step{StepMaximal, refused.decision, refused.reason})
	return refused
}

// Limits reports whether the RBAC of a cluster lets a user of the cluster in ctx make a request
// for its resources.
func (z *Authorizer) Limits(ctx context.Context, at cluster.Name, a authorizer.Attributes) (bool, error) {
	if c, _ := cluster.From(ctx); auth.PrivilegedIn(c, a.GetUser()) {
		return true, nil
	}
	v := z.limits(ctx, at, a)
	again, err := z.again(ctx, v)
	if again {
		v = z.limits(ctx, at, a)
	}
	return v.decision == authorizer.DecisionAllow, err
}

// limits decides by the RBAC of cluster at, in which the names of users and groups of other
// clusters have [apisv1alpha2.ConsumerPrefix].
func (z *Authorizer) limits(ctx context.Context, at cluster.Name, a authorizer.Attributes) verdict {
	c, _ := cluster.From(ctx)
	v := verdict{decision: authorizer.DecisionNoOpinion, evidence: true}
	auth.Effective(c, a.GetUser(), func(u user.Info) bool {
		v = z.byRules(cluster.With(ctx, at), at, As(a, auth.Consumer(c, u)), true)
		v.steps = nil
		return v.decision != authorizer.DecisionAllow
	})
	return v
}
