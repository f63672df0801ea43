package hooks

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install" // for conversions

	"github.com/unforked/kcp/internal/cluster"
)

func policyRow(expression string, size int) *row[*admissionregistrationv1.ValidatingAdmissionPolicy] {
	return &row[*admissionregistrationv1.ValidatingAdmissionPolicy]{size: size, object: &admissionregistrationv1.ValidatingAdmissionPolicy{
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{Validations: []admissionregistrationv1.Validation{{Expression: expression}}},
	}}
}

// Compiled policies are kept while they are used, within a limit of all clusters together.
func TestCompiledPoliciesAreBounded(t *testing.T) {
	all := newCompilations(func(c cluster.Name) cluster.Name { return c })
	compiled := map[string]int{}
	of := func(r *row[*admissionregistrationv1.ValidatingAdmissionPolicy]) {
		compiledBy(all, "mine", r, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) int {
			compiled[p.Spec.Validations[0].Expression]++
			return len(compiled)
		})
	}
	used := policyRow("used", maxCompiled/8)
	for i := range 20 {
		of(used)
		of(policyRow(fmt.Sprint("other-", i), maxCompiled/8))
	}
	if compiled["used"] != 1 {
		t.Errorf("a policy that is in use was compiled %d times", compiled["used"])
	}
	unused := policyRow("unused", maxCompiled/8)
	of(unused)
	for i := range 8 {
		of(policyRow(fmt.Sprint("another-", i), maxCompiled/8))
	}
	if unused.cell.compiled.Load() != nil {
		t.Error("a policy that was not used for long is kept compiled")
	}
	if of(unused); compiled["unused"] != 2 {
		t.Errorf("compiled %d times, want once more", compiled["unused"])
	}
	if all.weight > maxCompiled || all.of["mine"].order.Len() != len(all.at) {
		t.Errorf("weight %d, %d in order, %d known", all.weight, all.of["mine"].order.Len(), len(all.at))
	}
	runtime.KeepAlive(used)
}

// A tenant with many policies has only its own compiled again, in however many clusters they are.
func TestTenantsKeepTheirCompiledPolicies(t *testing.T) {
	all := newCompilations(func(c cluster.Name) cluster.Name {
		tenant, _, _ := strings.Cut(string(c), "-")
		return cluster.Name(tenant)
	})
	compiled := map[cluster.Name]int{}
	of := func(c cluster.Name, r *row[*admissionregistrationv1.ValidatingAdmissionPolicy]) {
		compiledBy(all, c, r, func(*admissionregistrationv1.ValidatingAdmissionPolicy) int {
			compiled[c]++
			return 0
		})
	}
	quiet := policyRow("quiet", maxCompiled/8)
	of("quiet-0", quiet)
	for i := range 40 {
		of(cluster.Name(fmt.Sprint("greedy-", i)), policyRow("greedy", maxCompiled/8))
	}
	if of("quiet-0", quiet); compiled["quiet-0"] != 1 {
		t.Errorf("the policy of another tenant was compiled %d times", compiled["quiet-0"])
	}
	for i := range 40 {
		of(cluster.Name(fmt.Sprintf("tenant%d-0", i)), policyRow("one", maxCompiled/20))
	}
	if all.weight > maxCompiled || len(all.of) > 21 {
		t.Errorf("weight %d of %d tenants", all.weight, len(all.of))
	}
	runtime.KeepAlive(quiet)
}

// Plugins of webhooks, which keep compiled match conditions, are kept within the same limit. A
// provider has a plugin for each of its consumers.
func TestCompiledMatchConditionsAreBounded(t *testing.T) {
	built := map[cluster.Name]int{}
	w := &webhooks{hooks: &Hooks{compiled: newCompilations(func(c cluster.Name) cluster.Name { return c })}, slots: map[cluster.Name]map[cluster.Name]*slot{}, build: func(_ *Hooks, at place, _ []configuration) (plugin, error) {
		built[at.in]++
		return func(context.Context, admission.Attributes, admission.ObjectInterfaces) error { return nil }, nil
	}}
	condition := admissionregistrationv1.MatchCondition{Name: "long", Expression: "'" + strings.Repeat("a", maxCompiled/8) + "' != ''"}
	webhook := admissionregistrationv1.ValidatingWebhook{MatchConditions: []admissionregistrationv1.MatchCondition{condition}}
	all := []configuration{{object: &admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []admissionregistrationv1.ValidatingWebhook{webhook}}}}
	of := func(in cluster.Name) {
		if run, err := w.plugin(place{"provider", in}, all); err != nil || run == nil {
			t.Fatalf("the plugin for %s: %v", in, err)
		}
	}
	for i := range 20 {
		of("used")
		of(cluster.Name(fmt.Sprint("consumer-", i)))
	}
	kept := 0
	for _, s := range w.slots["provider"] {
		if s.cell.compiled.Load() != nil {
			kept++
		}
	}
	if kept > 8 || kept < 2 || w.hooks.compiled.weight > maxCompiled {
		t.Errorf("%d plugins are kept, with a weight of %d", kept, w.hooks.compiled.weight)
	}
	if of("consumer-0"); built["used"] != 1 || built["consumer-0"] != 2 {
		t.Errorf("built %d times for a cluster that uses it, %d times for another", built["used"], built["consumer-0"])
	}
	// Configurations without match conditions take little.
	plain := []configuration{{object: &admissionregistrationv1.ValidatingWebhookConfiguration{}, size: maxCompiled}}
	for i := range 20 {
		in := place{"plain", cluster.Name(fmt.Sprint("consumer-", i))}
		_, _ = w.plugin(in, plain)
		_, _ = w.plugin(in, plain)
	}
	if s := w.slots["plain"]["consumer-0"]; s.cell.compiled.Load() == nil {
		t.Error("a plugin without match conditions is not kept")
	}
}

// Regular expressions count as what they take once they are compiled.
func TestInstructionsOfAPolicy(t *testing.T) {
	if got := instructions(policyRow("'a'.matches('a{900}')", 0).object); got < 900 {
		t.Errorf("%d instructions", got)
	}
}
