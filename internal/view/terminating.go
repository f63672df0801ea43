package view

import (
	rbacv1 "k8s.io/api/rbac/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
)

// terminating is the view in which terminators see the workspaces that are being deleted
// and wait for them:
//
//	/services/terminatingworkspaces/<terminator>/clusters/<name or *>/…
func terminating() side {
	return side{
		name: "terminatingworkspaces", verb: "terminate", phase: core.PhaseTerminating, list: "terminators", group: auth.TerminatorGroupPrefix,
		label: func(id string) (key, value string) { return core.Terminator(id).Label() },
		left:  func(l *core.LogicalCluster) []string { return texts(l.Status.Terminators) },
		permissions: func(_, terminator []rbacv1.PolicyRule) []rbacv1.PolicyRule {
			return terminator
		},
	}
}
