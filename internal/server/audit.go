package server

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/view"
)

// What audit events say about the logical cluster of a request. The server alone
// sets it: nothing in a request does.
const (
	auditCluster   = cluster.Annotation
	auditWorkspace = "tenancy.kcp.io/workspace"
	auditPath      = "kcp.io/path"
	auditStep      = "request.auth.kcp.io/" // and the name of a step of authorization
)

type askedKey struct{}

// withAsked remembers the URL that the client asked for.
func withAsked(ctx context.Context, u *url.URL) context.Context {
	return context.WithValue(ctx, askedKey{}, u)
}

// audited has h make audit events that show the URL that the client asked for. Below
// them, inner brings back that of the request in its cluster.
func audited(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked, ok := req.Context().Value(askedKey{}).(*url.URL)
		if !ok {
			h.ServeHTTP(w, req)
			return
		}
		shown := req.WithContext(context.WithValue(req.Context(), servedKey{}, req.URL))
		shown.URL = asked
		h.ServeHTTP(w, shown)
	})
}

type servedKey struct{}

// inAudit is what is below the audit events that audited makes.
func inAudit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		served, ok := req.Context().Value(servedKey{}).(*url.URL)
		if !ok {
			h.ServeHTTP(w, req)
			return
		}
		below := req.WithContext(req.Context())
		below.URL = served
		h.ServeHTTP(w, below)
	})
}

// withAuditCluster has audit events say which logical cluster a request is for.
func (s *Server) withAuditCluster(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		c, ok := cluster.From(ctx)
		if r, of := view.From(ctx); of {
			c = r.Cluster // and not where it is authenticated
		}
		broken, nowhere := ctx.Value(nowhereKey{}).(brokenPath)
		switch {
		case nowhere: // the name of its cluster is made up
			audit.AddAuditAnnotation(ctx, auditPath, string(broken.path))
		case ok:
			audit.AddAuditAnnotations(ctx, auditCluster, string(c), auditWorkspace, string(c))
			if path := s.tree.PathOf(c); path != "" {
				audit.AddAuditAnnotation(ctx, auditPath, string(path))
			}
		}
		h.ServeHTTP(w, req)
	})
}

type decisiveKey struct{}

// decisive marks the decision on whether a request may be made: only its steps go
// into the audit event. What a request asks about others, as a review does, or
// checks on the way, is not about it.
func decisive(a authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
		return a.Authorize(context.WithValue(ctx, decisiveKey{}, true), attrs)
	})
}

// recordSteps has the audit event of a request say how each step of authorization
// decided.
func recordSteps(ctx context.Context, steps []auth.Step) {
	if ctx.Value(decisiveKey{}) == nil {
		return
	}
	said := map[string]bool{}
	say := func(step auth.Step) {
		said[step.Name] = true
		audit.AddAuditAnnotations(ctx, auditStep+step.Name+"-decision", decisionWord(step.Decision), auditStep+step.Name+"-reason", step.Reason)
	}
	for _, step := range steps {
		say(step)
	}
	if !said[auth.StepContent] && !said[auth.StepRequiredGroups] {
		return
	}
	// Readers of audit events look for these, also if they found nothing.
	for _, name := range []string{auth.StepRequiredGroups, auth.StepContent, "03-systemcrd", "04-maxpermissionpolicy", auth.StepBootstrap} {
		if !said[name] {
			say(auth.Step{Name: name, Decision: authorizer.DecisionNoOpinion, Reason: "nothing says otherwise"})
		}
	}
}
