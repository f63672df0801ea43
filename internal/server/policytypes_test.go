package server_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// typesOf creates a policy, and returns the warnings of its status once there are some, or none.
func (c *tenant) typesOf(p *admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	c.t.Helper()
	policies := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	must(policies.Create(c.t.Context(), p, metav1.CreateOptions{}))(c.t)
	return c.checkedTypes(p.Name)
}

// checkedTypes returns the warnings in the status of a policy for its current generation.
func (c *tenant) checkedTypes(policy string) (out []admissionregistrationv1.ExpressionWarning) {
	c.t.Helper()
	eventually(c.t, "the types of policy "+policy+" are checked", func() bool {
		p := must(c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(c.t.Context(), policy, metav1.GetOptions{}))(c.t)
		if p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation {
			return false
		}
		out = p.Status.TypeChecking.ExpressionWarnings
		return true
	})
	return out
}

func typedPolicy(name, group, resource string, all ...admissionregistrationv1.Validation) *admissionregistrationv1.ValidatingAdmissionPolicy {
	rules := matched(group, resource)
	rules.ResourceRules[0].APIVersions = []string{"v1"} // wildcards are not checked
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionregistrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: rules, Validations: all},
	}
}

// The status of a policy has the mistakes of its expressions, for native and for custom kinds, and
// of its current generation only.
func TestPolicyTypes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.define(endpointDefinition(v1, newConverter(t).client()))
	wants := func(got []admissionregistrationv1.ExpressionWarning, want ...string) {
		t.Helper()
		if len(got) != len(want)/2 {
			t.Fatalf("got the warnings %v, want %q", got, want)
		}
		for i, w := range got {
			if w.FieldRef != want[2*i] || !strings.Contains(w.Warning, want[2*i+1]) {
				t.Errorf("got the warning %v, want %s: %q", w, want[2*i], want[2*i+1])
			}
		}
	}
	wants(c.typesOf(typedPolicy("right", "", "configmaps", admissionregistrationv1.Validation{Expression: `object.data["a"] == "b"`})))
	wants(c.typesOf(typedPolicy("wrong", "", "configmaps", admissionregistrationv1.Validation{
		Expression: `object.data["a"] > 1`, MessageExpression: `"got " + object.data`,
	})), "spec.validations[0].expression", "found no matching overload for '_>_' applied to '(string, int)'",
		"spec.validations[0].messageExpression", "found no matching overload for '_+_'")
	wants(c.typesOf(typedPolicy("custom", "convert.example.com", "endpoints", admissionregistrationv1.Validation{Expression: `object.spec.hostPort > 1`},
		admissionregistrationv1.Validation{Expression: `object.spec.none == "x"`})),
		"spec.validations[0].expression", "found no matching overload for '_>_' applied to '(string, int)'",
		"spec.validations[1].expression", "undefined field 'none'")
	wants(c.typesOf(typedPolicy("unserved", "apps", "deployments", admissionregistrationv1.Validation{Expression: `object.spec > 1`})))

	mended := []byte(`[{"op":"replace","path":"/spec/validations/0","value":{"expression":"object.data['a'] == 'b'"}}]`)
	must(c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Patch(t.Context(), "wrong", "application/json-patch+json", mended, metav1.PatchOptions{}))(t)
	wants(c.checkedTypes("wrong"))
}

// Types are checked by a loop of the server, so a policy cannot make that costly.
func TestPolicyTypesAreBounded(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	large := typedPolicy("large", "", "configmaps")
	long := `object.data["a"] == "` + strings.Repeat("x", 10_000) + `"`
	for range 100 {
		large.Spec.Validations = append(large.Spec.Validations, admissionregistrationv1.Validation{Expression: long})
	}
	got := c.typesOf(large)
	if len(got) != 1 || !strings.Contains(got[0].Warning, "too large") {
		t.Errorf("got the warnings %v", got)
	}
}
