package fleet

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// Statuses are written once per second and object, and the memory of that is bounded.
func TestPace(t *testing.T) {
	var p pace
	at := now()
	if p.wait(key("a"), at) != 0 || p.wait(key("a"), at.Add(400*ms)) != 600*ms || p.wait(key("b"), at) != 0 || p.wait(key("a"), at.Add(1000*ms)) != 0 {
		t.Error("not one per second and object")
	}
	for i := range 10 * swept {
		at = at.Add(10 * ms)
		p.wait(key(strings.Repeat("x", i%7)+string(rune(i))), at)
	}
	if len(p.last) > swept+1 {
		t.Errorf("%d entries", len(p.last))
	}
}

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
