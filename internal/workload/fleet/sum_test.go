package fleet

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// The status of a DaemonSet does not count targets that do not answer.
func TestLostTargetsHaveNoStatus(t *testing.T) {
	i := slices.IndexFunc(profile.Shipped(), func(p profile.Profile) bool { return p.Resource == "daemonsets" })
	k := &consumers.Kind{Profile: profile.Shipped()[i]}
	id := engine.ID{GroupResource: k.GroupResource(), Key: key("agent")}
	a := &workload.Assignment{Spec: workload.AssignmentSpec{Targets: []workload.AssignedTarget{
		{Key: "east", Phase: workload.Evicting, Reason: string(place.Lost)}, {Key: "west", Phase: workload.Active}}}}
	f := &fleet{consumers: &consumers.Cache{Reports: kcp.NewKind[*workload.TargetStatus]("reports", nil, nil)}}
	if parts := f.parts(k, id, &unstructured.Unstructured{}, a); len(parts) != 1 {
		t.Errorf("the status counts a target that does not answer: %+v", parts)
	}
}
