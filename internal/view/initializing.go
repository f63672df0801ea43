package view

import (
	rbacv1 "k8s.io/api/rbac/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
)

// initializing is the view in which initializers see the workspaces that wait for them:
//
//	/services/initializingworkspaces/<initializer>/clusters/<name or *>/…
func initializing() side {
	return side{
		name: "initializingworkspaces", verb: "initialize", phase: core.PhaseInitializing, list: "initializers", group: auth.InitializerGroupPrefix,
		label: func(id string) (key, value string) { return core.Initializer(id).Label() },
		left:  func(l *core.LogicalCluster) []string { return texts(l.Status.Initializers) },
		permissions: func(initializer, _ []rbacv1.PolicyRule) []rbacv1.PolicyRule {
			return initializer
		},
	}
}
