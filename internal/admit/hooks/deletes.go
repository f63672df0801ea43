package hooks

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// Deletes reports whether webhooks or policies may refuse to delete objects of a resource in a
// cluster. It does not look at selectors and conditions.
func (h *Hooks) Deletes(c cluster.Name, gr schema.GroupResource) bool {
	from, err := h.sources(context.Background(), c, gr)
	return err != nil || slices.ContainsFunc(from, func(s source) bool {
		return !s.above && h.webhooksDelete(s.cluster, gr) || h.policiesDelete(s, gr)
	})
}

func (h *Hooks) webhooksDelete(from cluster.Name, gr schema.GroupResource) bool {
	for _, r := range h.validating.table.List(from, "") {
		o, ok := r.object.(*admissionregistrationv1.ValidatingWebhookConfiguration)
		if !ok || r.unreadable != nil {
			return true
		}
		for _, w := range o.Webhooks {
			if slices.ContainsFunc(w.Rules, func(r admissionregistrationv1.RuleWithOperations) bool { return deletes(r, gr) }) {
				return true
			}
		}
	}
	return false
}

func (h *Hooks) policiesDelete(from source, gr schema.GroupResource) bool {
	for _, b := range h.validators.bound(from) {
		if b.unreadable != nil {
			return true
		}
		p, ok := h.validators.policies.Get(from.cluster, "", b.object.Spec.PolicyName)
		if !ok {
			continue
		}
		if p.unreadable != nil || p.object.Spec.MatchConstraints == nil {
			return true
		}
		if slices.ContainsFunc(p.object.Spec.MatchConstraints.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
			return deletes(r.RuleWithOperations, gr)
		}) {
			return true
		}
	}
	return false
}

// deletes reports whether a rule matches deletions of a resource.
func deletes(r admissionregistrationv1.RuleWithOperations, gr schema.GroupResource) bool {
	operation := slices.Contains(r.Operations, admissionregistrationv1.Delete) || slices.Contains(r.Operations, admissionregistrationv1.OperationAll)
	group := slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, gr.Group)
	return operation && group && slices.ContainsFunc(r.Resources, func(resource string) bool {
		name, subresource, _ := strings.Cut(resource, "/")
		return (name == "*" || name == gr.Resource) && (subresource == "" || subresource == "*")
	})
}
