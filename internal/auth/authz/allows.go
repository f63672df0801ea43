package authz

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

type settledKey struct{}

// Settled returns a context in which refusals do not wait for fresh data. The caller must
// have waited for it.
func Settled(ctx context.Context) context.Context {
	return context.WithValue(ctx, settledKey{}, true)
}

// Settle waits until decisions read data as new as any that the process has seen. It
// returns a context in which no decision waits again.
func (z *Authorizer) Settle(ctx context.Context) context.Context {
	z.options.Fresh.CaughtUp(ctx)
	return Settled(ctx)
}

// Enters reports whether u may enter cluster c.
func (z *Authorizer) Enters(ctx context.Context, c cluster.Name, u user.Info) bool {
	return z.Allows(ctx, c, authorizer.AttributesRecord{User: u, Verb: z.entry.GetVerb(), Path: z.entry.GetPath()})
}

// Allows reports whether a is allowed in cluster c.
func (z *Authorizer) Allows(ctx context.Context, c cluster.Name, a authorizer.AttributesRecord) bool {
	return z.verdict(cluster.With(ctx, c), a).decision == authorizer.DecisionAllow
}

// Explain returns the decision on a in cluster c, its reason, and all steps. The result has
// details that must not be shown to the user of a.
func (z *Authorizer) Explain(ctx context.Context, c cluster.Name, a authorizer.AttributesRecord) (allowed bool, reason string, steps []Step) {
	telling := &Authorizer{options: z.options, bootstrap: z.bootstrap, open: z.open, entry: z.entry, rules: z.rules}
	telling.options.Record = func(context.Context, []Step) {} // makes decisions keep their steps
	telling.steps.Store(telling.build(z.steps.Load().of))
	v := telling.verdict(cluster.With(ctx, c), a)
	return v.decision == authorizer.DecisionAllow, v.reason, v.steps
}

// EntersAll reports whether the policy shared by all clusters lets u enter all of them.
func (z *Authorizer) EntersAll(ctx context.Context, u user.Info) bool {
	if auth.PrivilegedIn("", u) {
		return true
	}
	const nowhere = cluster.Root // any cluster will do: its own bindings are not read
	ctx = cluster.With(ctx, nowhere)
	s := search{a: z.entry, entry: z.entry}
	auth.Effective(nowhere, u, func(e user.Info) bool {
		for _, l := range z.rules.everywhere() {
			l.wide.VisitRulesFor(ctx, l.as(nowhere, e), "", s.visit)
		}
		return !s.done()
	})
	return s.done()
}
