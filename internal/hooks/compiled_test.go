package hooks

import (
	"fmt"
	"runtime"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install" // for conversions
)

func policyRow(expression string, size int) *row[*admissionregistrationv1.ValidatingAdmissionPolicy] {
	return &row[*admissionregistrationv1.ValidatingAdmissionPolicy]{size: size, object: &admissionregistrationv1.ValidatingAdmissionPolicy{
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{Validations: []admissionregistrationv1.Validation{{Expression: expression}}},
	}}
}

// Compiled policies are kept while they are used, within a limit of all clusters together.
func TestCompiledPoliciesAreBounded(t *testing.T) {
	var all compilations
	compiled := map[string]int{}
	of := func(r *row[*admissionregistrationv1.ValidatingAdmissionPolicy]) {
		compiledBy(&all, r, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) int {
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
	if all.weight > maxCompiled || all.order.Len() != len(all.at) {
		t.Errorf("weight %d, %d in order, %d known", all.weight, all.order.Len(), len(all.at))
	}
	runtime.KeepAlive(used)
}

// Regular expressions count as what they take once they are compiled.
func TestInstructionsOfAPolicy(t *testing.T) {
	if got := instructions(policyRow("'a'.matches('a{900}')", 0).object); got < 900 {
		t.Errorf("%d instructions", got)
	}
}
