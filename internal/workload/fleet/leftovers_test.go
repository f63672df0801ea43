package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/kcptest"
)

// refusesSettings expects that the physical cluster refuses to delete the ConfigMap that a Deployment needs when the
// compute workspace is deleted, and that its SyncTarget says so.
func (s *site) refusesSettings(t *testing.T, target string) {
	t.Helper()
	s.shop.Apply(workloads)
	s.runs(t, deployments(), "web")
	s.runs(t, core("services"), "web")
	s.runs(t, core("configmaps"), "settings")
	s.physical.Apply(refusing("", "configmaps", "DELETE"))
	s.end(t)
	eventually(t, func() error {
		of, err := s.compute.targets.Get(t.Context(), target, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := of.Status.Conditions.Get(workload.CopiesRemoved); c == nil || !strings.Contains(c.Message, `"web" in namespace "default" of logical cluster `+s.shop.Name+`: configmaps "settings" stays: `) || !strings.Contains(c.Message, "ValidatingAdmissionPolicy 'refuse'") {
			return fmt.Errorf("the SyncTarget says %v", c)
		}
		return nil
	})
	s.empty(t, deployments(), "web")
}

// TestRefusedConfigMap expects that the deletion of a compute workspace waits for a ConfigMap that the physical cluster
// refuses to delete as for other copies, and that an Event says that it may be left.
func TestRefusedConfigMap(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.refusesSettings(t, "east")
	s.later(t, 50*time.Minute)
	s.ended(t)
	if all := s.copies(t, core("configmaps"), "settings"); len(all) != 1 {
		t.Errorf("the copies of the ConfigMap are %v", all)
	}
	if text := s.events(t); strings.Count(text, "CopiesRemain") != 1 || !strings.Contains(text, `physical cluster "east" may still have copies of `) {
		t.Errorf("the events are:\n%s", text)
	}
	placed(t, s.shop, false)
	deleted(t, s.shop)
}

// TestAgentsReportRefusals expects the same with an agent.
func TestAgentsReportRefusals(t *testing.T) { agentSite(t).refusesSettings(t, "west") }

// TestIdleConsumersLearn expects that a Placement that places nothing says that its compute workspace is deleted. A
// workspace that refuses its status holds up nothing.
func TestIdleConsumersLearn(t *testing.T) {
	s := newSite(t, fleet.Options{})
	refuses := s.near.New(t)
	refuses.Apply(s.binding())
	refuses.Apply(placement("all", ""))
	for _, shop := range []*kcptest.Cluster{s.shop, refuses} {
		says(t, shop, placements(), "", "all", "phase:Unbound")
	}
	refuses.Apply(refusing("scheduling.kcp.io", "placements/status", "UPDATE"))
	s.end(t)
	s.ended(t)
	says(t, s.shop, placements(), "", "all", workload.ComputeDeleted)
	o, err := refuses.Dynamic.Resource(placements()).Get(t.Context(), "all", metav1.GetOptions{})
	if err != nil || strings.Contains(fmt.Sprint(o.Object["status"]), workload.ComputeDeleted) {
		t.Errorf("the other Placement does not refuse: %v, %v", o, err)
	}
	if text := s.events(t); text != "" {
		t.Errorf("events: %s", text)
	}
}
