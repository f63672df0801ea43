// Package record adds the logical cluster of a request, and the steps of its authorization,
// to audit events and traces.
package record

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/view"
)

// Annotations of audit events. Only the server sets them; a request cannot.
const (
	auditCluster   = cluster.Annotation
	auditWorkspace = "tenancy.kcp.io/workspace"
	auditPath      = "kcp.io/path"
	auditStep      = "request.auth.kcp.io/" // prefix of the name of an authorization step
)

// WithCluster annotates the audit events of requests with their logical cluster. pathOf returns
// the path of a cluster, and is empty if it has none.
func WithCluster(h http.Handler, pathOf func(cluster.Name) cluster.Path) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		c, ok := cluster.From(ctx)
		if r, of := view.From(ctx); of {
			c = r.Cluster // the context has the cluster that authenticates the request
		}
		broken, nowhere := edge.Broken(ctx)
		switch {
		case nowhere: // its cluster does not exist and has a random name
			audit.AddAuditAnnotation(ctx, auditPath, string(broken.Path))
		case ok:
			audit.AddAuditAnnotations(ctx, auditCluster, string(c), auditWorkspace, string(c))
			if path := pathOf(c); path != "" {
				audit.AddAuditAnnotation(ctx, auditPath, string(path))
			}
		}
		h.ServeHTTP(w, req)
	})
}

type decisiveKey struct{}

// ViewSteps is the prefix of the steps that authorize the use of a view. A second decision
// authorizes the request in a cluster of the view.
const ViewSteps = "view-"

// Decisive marks the decision that authorizes the request itself. Only its steps go into
// the audit event, not those of access reviews and of other checks.
func Decisive(a authorizer.Authorizer) authorizer.Authorizer { return DecisiveAs("", a) }

// DecisiveAs is [Decisive] for one of several decisions on a request. A prefix of the step
// names keeps the decisions apart: an audit event has each annotation once.
func DecisiveAs(prefix string, a authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
		return a.Authorize(context.WithValue(ctx, decisiveKey{}, prefix), attrs)
	})
}

// Steps annotates the audit event of a request with the decision and the reason of
// each authorization step.
func Steps(ctx context.Context, steps []authz.Step) {
	prefix, recorded := ctx.Value(decisiveKey{}).(string)
	if !recorded {
		return
	}
	said := map[string]bool{}
	say := func(step authz.Step) {
		said[step.Name] = true
		name := auditStep + prefix + step.Name
		audit.AddAuditAnnotations(ctx, name+"-decision", Word(step.Decision), name+"-reason", step.Reason)
	}
	for _, step := range steps {
		say(step)
	}
	if !said[authz.StepContent] && !said[authz.StepRequiredGroups] {
		return
	}
	// Tools that read audit events of kcp expect all of these.
	for _, name := range []string{authz.StepRequiredGroups, authz.StepContent, "03-systemcrd", authz.StepMaximal, authz.StepBootstrap} {
		if !said[name] {
			say(authz.Step{Name: name, Decision: authorizer.DecisionNoOpinion, Reason: "nothing says otherwise"})
		}
	}
}

// Word returns an authorization decision as audit events and explanations show it.
func Word(d authorizer.Decision) string {
	switch d {
	case authorizer.DecisionAllow:
		return "Allowed"
	case authorizer.DecisionDeny:
		return "Denied"
	case authorizer.DecisionNoOpinion:
		return "NoOpinion"
	}
	return fmt.Sprint(d)
}
