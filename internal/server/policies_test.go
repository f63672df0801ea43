package server_test

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// matched returns the rules of a policy for all writes of a resource.
func matched(group, resource string) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: matching(group, resource, admissionregistrationv1.Create, admissionregistrationv1.Update),
	}}}
}

// policyThat returns a policy with an expression for config maps, and its binding.
func policyThat(name, expression string) (*admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: matched("", "configmaps"), Validations: []admissionregistrationv1.Validation{{Expression: expression}},
			},
		}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		}
}

// forbids creates a policy with an expression, and its binding.
func (c *tenant) forbids(name, expression string, change func(*admissionregistrationv1.ValidatingAdmissionPolicySpec, *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec)) {
	c.t.Helper()
	policy, binding := policyThat(name, expression)
	if change != nil {
		change(&policy.Spec, &binding.Spec)
	}
	must(c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(c.t.Context(), policy, metav1.CreateOptions{}))(c.t)
	must(c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(c.t.Context(), binding, metav1.CreateOptions{}))(c.t)
}

// changes creates a mutating policy, and its binding.
func (c *tenant) changes(name string, to admissionregistrationv1.Mutation, what *admissionregistrationv1.MatchResources) {
	c.t.Helper()
	never := admissionregistrationv1.NeverReinvocationPolicy
	must(c.kube.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(c.t.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: what, Mutations: []admissionregistrationv1.Mutation{to}, ReinvocationPolicy: never,
		},
	}, metav1.CreateOptions{}))(c.t)
	must(c.kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Create(c.t.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}, metav1.CreateOptions{}))(c.t)
}

// merging returns a mutation that merges an object into that of the request.
func merging(expression string) admissionregistrationv1.Mutation {
	return admissionregistrationv1.Mutation{
		PatchType: admissionregistrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression},
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"refuses": testPolicyRefuses, "changes": testPolicyChanges, "parameters": testPolicyParameters, "rights": testPolicyRights,
		"deletable": testPolicyDeletable, "custom": testPolicyCustom,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
}

// A policy is in force in its own cluster, as soon as its binding is created and until it is
// deleted.
func testPolicyRefuses(t *testing.T) {
	c, other := newTenant(t), newTenant(t)
	c.forbids("short", `object.metadata.name.size() < 5 && namespaceObject.metadata.name == "default"`, nil)
	_, err := c.write("a-long-name", metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'short' with binding 'short' denied request: failed expression: ")
	_, err = c.write("a-long-name", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'short'")
	must(c.write("a", metav1.CreateOptions{}))(t)
	must(other.write("a-long-name", metav1.CreateOptions{}))(t)
	if err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "short", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(c.write("a-long-name", metav1.CreateOptions{}))(t)
}

func testPolicyChanges(t *testing.T) {
	c := newTenant(t)
	c.changes("merge", merging(`Object{metadata: Object.metadata{labels: {"merged": "yes"}}}`), matched("", "configmaps"))
	c.changes("patch", admissionregistrationv1.Mutation{
		PatchType: admissionregistrationv1.PatchTypeJSONPatch,
		JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/data", value: {"patched": object.metadata.name}}]`},
	}, matched("", "configmaps"))
	made := must(c.write("a", metav1.CreateOptions{}))(t)
	if made.Labels["merged"] != "yes" || made.Data["patched"] != "a" {
		t.Errorf("the policies made it %v, %v", made.Labels, made.Data)
	}
	kept := must(c.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "a", metav1.GetOptions{}))(t)
	if kept.Labels["merged"] != "yes" || kept.Data["patched"] != "a" {
		t.Errorf("stored is %v, %v", kept.Labels, kept.Data)
	}
}

// Parameters are objects of the policy's cluster. A change of one is in force at once.
func testPolicyParameters(t *testing.T) {
	c := newTenant(t)
	deny := admissionregistrationv1.DenyAction
	c.forbids("limited", `object.metadata.name.size() <= int(params.data.longest)`, func(p *admissionregistrationv1.ValidatingAdmissionPolicySpec, b *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		p.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
		p.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "others", Expression: `object.metadata.name != "limits"`}}
		b.ParamRef = &admissionregistrationv1.ParamRef{Name: "limits", Namespace: "default", ParameterNotFoundAction: &deny}
	})
	_, err := c.write("abc", metav1.CreateOptions{})
	wantRefusal(t, err, "no params found for policy binding with `Deny` parameterNotFoundAction")
	wantRefusal(t, c.limits("2"), "no params found") // it would be the first parameter itself
	if err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "limited", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.limits("2"); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "limited"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "limited", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			ParamRef: &admissionregistrationv1.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"limits": "yes"}}, Namespace: "default", ParameterNotFoundAction: &deny},
		},
	}
	must(c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}))(t)
	_, err = c.write("abc", metav1.CreateOptions{})
	wantRefusal(t, err, "denied request: failed expression")
	patched := must(c.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "limits", metav1.GetOptions{}))(t)
	patched.Data["longest"] = "3"
	must(c.kube.CoreV1().ConfigMaps("default").Update(t.Context(), patched, metav1.UpdateOptions{}))(t)
	must(c.write("abc", metav1.CreateOptions{}))(t)
}

// limits creates the parameter of a policy.
func (c *tenant) limits(longest string) error {
	_, err := c.kube.CoreV1().ConfigMaps("default").Create(c.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "limits", Labels: map[string]string{"limits": "yes"}}, Data: map[string]string{"longest": longest},
	}, metav1.CreateOptions{})
	return err
}

// An expression may ask for the user's rights in its cluster. Users need the right to read the
// parameters of a policy that they create.
func testPolicyRights(t *testing.T) {
	c := newTenant(t)
	c.forbids("may", `authorizer.group("").resource("secrets").namespace("default").check("delete").allowed()`, nil)
	ctx := t.Context()
	must(c.kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"configmaps"}},
		{Verbs: []string{"*"}, APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"*"}},
		{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}},
	}}, metav1.CreateOptions{}))(t)
	must(c.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "bob"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "writer"},
	}, metav1.CreateOptions{}))(t)
	bob := must(kubernetes.NewForConfig(c.server.InProcess(string(c.name), as("bob"))))(t)
	a := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	_, err := bob.CoreV1().ConfigMaps("default").Create(ctx, a, metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'may'")
	must(c.write("a", metav1.CreateOptions{}))(t)

	for kind, allowed := range map[string]bool{"ConfigMap": true, "Secret": false, "Unknown": false} {
		policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "reads-"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				ParamKind:        &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: kind},
				MatchConstraints: matched("", "configmaps"), Validations: []admissionregistrationv1.Validation{{Expression: "true"}},
			},
		}
		_, err := bob.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
		if (err == nil) != allowed || err != nil && !apierrors.IsInvalid(err) {
			t.Errorf("a policy with parameters of kind %s: %v", kind, err)
		}
	}
}

// A policy that refuses everything can be deleted.
func testPolicyDeletable(t *testing.T) {
	c := newTenant(t)
	c.forbids("all", "false", func(p *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		p.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: matching("*", "*", admissionregistrationv1.OperationAll),
		}}}
	})
	_, err := c.write("a", metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'all'")
	if err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(t.Context(), "all", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(c.write("a", metav1.CreateOptions{}))(t)
}

func testPolicyCustom(t *testing.T) {
	c := newTenant(t)
	c.define(endpointDefinition(v1, newConverter(t).client()))
	c.forbids("custom", `object.spec.hostPort.endsWith(":1")`, func(p *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		p.MatchConstraints = matched("convert.example.com", "endpoints")
	})
	c.changes("custom", merging(`Object{spec: Object.spec{note: "merged"}}`), matched("convert.example.com", "endpoints"))
	_, err := c.endpoints(v1).Create(t.Context(), endpoint(v1, "a", object{"hostPort": "h:2"}), metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'custom'")
	made := c.endpoint(v1, "a", object{"hostPort": "h:1"})
	wantSpec(t, made, v1, object{"hostPort": "h:1", "note": "merged"})
}
