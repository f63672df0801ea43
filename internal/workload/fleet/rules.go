package fleet

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp"
)

var errServersOwn = errors.New("the server alone writes these objects; change the Placement or the workload instead")

// rules protect the objects that the engines obey: a user who could write an Assignment could run
// workloads at targets that no Location offers.
func rules() []kcp.Rule {
	own := []schema.GroupResource{assignments().GroupResource(), targetStatuses().GroupResource()}
	return []kcp.Rule{{
		Name: "WorkloadAssignments",
		Validate: func(_ context.Context, r kcp.Request) error {
			if !slices.ContainsFunc(own, r.Is) || r.GetOperation() == admission.Delete {
				return nil // the scheduler decides anew
			}
			if u := r.GetUserInfo(); u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
				return nil
			}
			return r.Forbid(errServersOwn)
		},
	}}
}
