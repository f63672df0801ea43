package flow

import (
	"context"
	"net/http"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/upstream"
)

// Levels are the priority levels of API Priority and Fairness, with the default
// configuration of kube-apiserver. Each tenant is one flow.
type Levels struct{ utilflowcontrol.Interface }

// NewLevels returns levels with as many seats as the limits of requests in flight.
func NewLevels(c *genericapiserver.Config) Levels {
	var schemas []*flowcontrolv1.FlowSchema
	for _, s := range slices.Concat(flowcontrolbootstrap.MandatoryFlowSchemas, flowcontrolbootstrap.SuggestedFlowSchemas, []*flowcontrolv1.FlowSchema{leases(), agents()}) {
		schemas = append(schemas, byTenant(s))
	}
	configurations := slices.Concat(flowcontrolbootstrap.MandatoryPriorityLevelConfigurations, flowcontrolbootstrap.SuggestedPriorityLevelConfigurations)
	seats := c.MaxRequestsInFlight + c.MaxMutatingRequestsInFlight
	if seats <= 0 {
		seats = MaxReads + MaxWrites
	}
	return Levels{upstream.NewLevels(schemas, configurations, seats)}
}

// leases returns a flow schema that gives lease renewals of authenticated users priority.
// A controller that cannot renew its lease stops.
func leases() *flowcontrolv1.FlowSchema {
	return schemaOf("leases", "leader-election", user.AllAuthenticated, flowcontrolv1.PolicyRulesWithSubjects{
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
			Verbs: []string{"get", "create", "update", "patch"}, APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"},
			Namespaces: []string{flowcontrolv1.NamespaceEvery},
		}},
	})
}

// agents returns a flow schema for the agents of extensions, with the priority of the nodes of Kubernetes. An agent
// that cannot send its heartbeats loses its workloads.
func agents() *flowcontrolv1.FlowSchema {
	return schemaOf("agents", "system", auth.Agents, flowcontrolv1.PolicyRulesWithSubjects{
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
			Verbs: []string{flowcontrolv1.VerbAll}, APIGroups: []string{flowcontrolv1.APIGroupAll}, Resources: []string{flowcontrolv1.ResourceAll},
			Namespaces: []string{flowcontrolv1.NamespaceEvery}, ClusterScope: true,
		}},
		NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{flowcontrolv1.VerbAll}, NonResourceURLs: []string{flowcontrolv1.NonResourceAll}}},
	})
}

// schemaOf returns a flow schema that puts requests of a group of users on a priority level.
func schemaOf(name, level, group string, rules flowcontrolv1.PolicyRulesWithSubjects) *flowcontrolv1.FlowSchema {
	rules.Subjects = []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: group}}}
	return &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence:         150,
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
			Rules:                      []flowcontrolv1.PolicyRulesWithSubjects{rules},
		},
	}
}

// Prefixes of the groups by which [byTenant] replaces users and service accounts.
const (
	asUser    = "\x00user:"
	asAccount = "\x00serviceaccount:"
)

// byTenant returns a copy of a flow schema whose flows are tenants. Upstream can only
// derive the flow from the user name. So [Levels.Handle] passes the tenant as user name
// and the user as a group, and byTenant matches subjects by that group.
func byTenant(s *flowcontrolv1.FlowSchema) *flowcontrolv1.FlowSchema {
	s = s.DeepCopy()
	s.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType}
	for i := range s.Spec.Rules {
		for j, subject := range s.Spec.Rules[i].Subjects {
			group := ""
			switch {
			case subject.User != nil && subject.User.Name == flowcontrolv1.NameAll:
				group = flowcontrolv1.NameAll
			case subject.User != nil:
				group = asUser + subject.User.Name
			case subject.ServiceAccount != nil:
				group = asAccount + subject.ServiceAccount.Namespace + ":" + subject.ServiceAccount.Name
			default:
				continue
			}
			s.Spec.Rules[i].Subjects[j] = flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: group}}
		}
	}
	return s
}

// Handle implements [utilflowcontrol.Interface].
func (l Levels) Handle(ctx context.Context, digest utilflowcontrol.RequestDigest, note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	estimate func() flowcontrolrequest.WorkEstimate, queued fq.QueueNoteFn, execute func(),
) {
	digest.User = flowOf(digest.User, fair.From(ctx).Tenant())
	l.Interface.Handle(ctx, digest, note, estimate, queued, execute)
}

// RegisterWatch implements [utilflowcontrol.WatchTracker]. It does nothing: upstream counts
// the watches of all clusters together, and this server does not use the count.
func (l Levels) RegisterWatch(*http.Request) utilflowcontrol.ForgetWatchFunc { return func() {} }

// flowOf returns a user whose name is the tenant. The groups that [byTenant] matches
// identify u.
func flowOf(u user.Info, tenant string) user.Info {
	groups := append(slices.Clone(u.GetGroups()), asUser+u.GetName())
	if account, ok := strings.CutPrefix(u.GetName(), "system:serviceaccount:"); ok {
		namespace, _, _ := strings.Cut(account, ":")
		groups = append(groups, asAccount+account, asAccount+namespace+":"+flowcontrolv1.NameAll)
	}
	return &user.DefaultInfo{Name: tenant, Groups: groups}
}
