package upstream

import (
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// API Priority and Fairness runs with informers that never change and without a client, and
// queues a request by the flow schema that it matches.
func TestLevels(t *testing.T) {
	schemas := slices.Concat(flowcontrolbootstrap.MandatoryFlowSchemas, flowcontrolbootstrap.SuggestedFlowSchemas)
	configurations := slices.Concat(flowcontrolbootstrap.MandatoryPriorityLevelConfigurations, flowcontrolbootstrap.SuggestedPriorityLevelConfigurations)
	levels := NewLevels(schemas, configurations, 100)
	stop, ended := make(chan struct{}), make(chan error)
	go func() { ended <- levels.Run(stop) }()
	for _, want := range []struct {
		user   user.DefaultInfo
		schema string
	}{
		{user.DefaultInfo{Name: "a", Groups: []string{user.AllAuthenticated}}, "global-default"},
		{user.DefaultInfo{Name: "b", Groups: []string{user.SystemPrivilegedGroup}}, "exempt"},
	} {
		ran, matched := false, ""
		digest := utilflowcontrol.RequestDigest{RequestInfo: &request.RequestInfo{Path: "/x", Verb: "get"}, User: &want.user}
		for !ran { // before Run has read the configuration, requests match the mandatory schemas
			levels.Handle(t.Context(), digest, func(s *flowcontrolv1.FlowSchema, _ *flowcontrolv1.PriorityLevelConfiguration, _ string) {
				matched = s.Name
			},
				func() flowcontrolrequest.WorkEstimate { return flowcontrolrequest.WorkEstimate{InitialSeats: 1} }, func(bool) {},
				func() { ran = matched == want.schema })
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
