package server_test

import (
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
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
		"deletable": testPolicyDeletable, "custom": testPolicyCustom, "claims": testPolicyAndClaims,
		"descendants": testPolicyDescendants, "patterns": testPolicyPatterns, "descendants that change": testChangesOfDescendants,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
}

// The policies of a consumer apply to writes of a provider to claimed resources. The policies of the
// provider apply to its own resources only.
func testPolicyAndClaims(t *testing.T) {
	p, consumer := claiming(t, claimSecrets), newTenant(t)
	consumer.create(apiBindings, answering(p.name, acceptSecrets))
	about := func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		s.MatchConstraints = matched("", "secrets")
	}
	consumer.forbids("theirs", "object.metadata.name != 'theirs'", about)
	p.forbids("ours", "object.metadata.name != 'ours'", about)
	secrets := p.view("pat").kube(consumer.name).CoreV1().Secrets("default")
	_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'theirs'")
	must(secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "ours"}}, metav1.CreateOptions{}))(t)
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

// below marks the binding of a policy for the workspaces below, or takes the mark away.
func (c *tenant) below(name string, marked bool) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{"admission.kcp.io/descendants":"%t"}}}`, marked)
	_, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Patch(c.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// A marked binding holds in all workspaces below, at once, and until the mark is gone.
func testPolicyDescendants(t *testing.T) {
	top, other := newTenant(t).workspace("top"), newTenant(t)
	low := top.workspace("middle").workspace("low")
	top.forbids("short", `object.metadata.name.size() < 5`, nil)
	must(low.write("a-long-name", metav1.CreateOptions{}))(t)
	if err := top.below("short", true); err != nil {
		t.Fatal(err)
	}
	_, err := low.write("a-longer-name", metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'short'")
	wantRefusal(t, err, ":top for all workspaces below it)")
	_, err = low.workspace("new").write("a-longer-name", metav1.CreateOptions{})
	wantRefusal(t, err, "for all workspaces below it)")
	must(low.write("a", metav1.CreateOptions{}))(t)
	must(other.write("a-long-name", metav1.CreateOptions{}))(t)
	if err := top.below("short", false); err != nil {
		t.Fatal(err)
	}
	must(low.write("a-longer-name", metav1.CreateOptions{}))(t)

	top.forbids("kept", `oldObject == null || oldObject.metadata.name != "kept"`, func(p *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		p.MatchConstraints.ResourceRules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Delete}
	})
	if err := top.below("kept", true); err != nil {
		t.Fatal(err)
	}
	must(low.write("kept", metav1.CreateOptions{}))(t)
	wantRefusal(t, low.kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "kept", metav1.DeleteOptions{}), "'kept'")
	must(top.any.Resource(workspaces).Get(t.Context(), "middle", metav1.GetOptions{}))(t)
	if err := top.any.Resource(workspaces).Delete(t.Context(), "middle", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deletion names the policy", func() bool {
		w, err := top.any.Resource(workspaces).Get(t.Context(), "middle", metav1.GetOptions{})
		return err == nil && strings.Contains(fmt.Sprint(w.Object["status"]), "kept")
	})
	if err := top.below("kept", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the workspace is deleted", func() bool {
		_, err := top.any.Resource(workspaces).Get(t.Context(), "middle", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// Only policies in root change objects below. Others could take over the rights of the users there.
func testChangesOfDescendants(t *testing.T) {
	c := newTenant(t)
	marked := metav1.ObjectMeta{Name: "marked-" + string(c.name), Labels: map[string]string{"admission.kcp.io/descendants": "true"}}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: marked, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: marked.Name}}
	bind := func(c *tenant) error {
		_, err := c.kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{})
		return err
	}
	if err := bind(c); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "only in the root workspace") {
		t.Error(err)
	}
	_, err := c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: marked}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Error(err)
	}
	c.forbids("short", `true`, nil)
	patch := []byte(`{"metadata":{"labels":{"admission.kcp.io/descendants":"yes"}}}`)
	if _, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Patch(t.Context(), "short", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Error(err)
	}

	root := at(t, c.server, cluster.Root, server.System())
	what := matched("", "configmaps")
	what.ResourceRules[0].ResourceNames = []string{marked.Name}
	root.changes(marked.Name, merging(`Object{metadata: Object.metadata{labels: {"merged": "yes"}}}`), what)
	must(root.kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Get(t.Context(), marked.Name, metav1.GetOptions{}))(t)
	binding.Name += "-below"
	if err := bind(root); err != nil {
		t.Fatal(err)
	}
	low := root.workspace(binding.Name) // a tenant of the tests is not below root
	if made := must(low.write(marked.Name, metav1.CreateOptions{}))(t); made.Labels["merged"] != "yes" {
		t.Errorf("labels are %v", made.Labels)
	}
	for _, name := range []string{marked.Name, binding.Name} {
		if err := root.kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
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

// Regular expressions that would take gigabytes once they are compiled are refused before that, in
// all expressions.
func testPolicyPatterns(t *testing.T) {
	c := newTenant(t)
	bomb := "'a'.matches('" + strings.Repeat("a{1000}", 2000) + "')"
	text := "'a'.find('" + strings.Repeat("a{1000}", 2000) + "')"
	conditions := []admissionregistrationv1.MatchCondition{{Name: "bomb", Expression: bomb}}
	variables := []admissionregistrationv1.Variable{{Name: "bomb", Expression: bomb}}
	for name, change := range map[string]func(*admissionregistrationv1.ValidatingAdmissionPolicySpec){
		"conditions":  func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) { s.MatchConditions = conditions },
		"variables":   func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) { s.Variables = variables },
		"validations": func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) { s.Validations[0].Expression = bomb },
		"messages": func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.Validations[0].MessageExpression = text
		},
		"annotations": func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.AuditAnnotations = []admissionregistrationv1.AuditAnnotation{{Key: "bomb", ValueExpression: text}}
		},
	} {
		policy, _ := policyThat("bomb", "true")
		change(&policy.Spec)
		_, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{})
		wantInvalid(t, name, err)
	}
	patch := admissionregistrationv1.Mutation{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: "[JSONPatch{op: 'test', path: '/a', value: " + bomb + "}]"}}
	for name, m := range map[string]admissionregistrationv1.Mutation{"merge": merging("Object{metadata: Object.metadata{name: " + text + "}}"), "patch": patch} {
		_, err := c.kube.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "bomb"},
			Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints: matched("", "configmaps"), Mutations: []admissionregistrationv1.Mutation{m}, ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			},
		}, metav1.CreateOptions{})
		wantInvalid(t, name, err)
	}
	none := admissionregistrationv1.SideEffectClassNone
	_, err := c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "bomb"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "a.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://example.com")}, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"}, MatchConditions: conditions,
		}},
	}, metav1.CreateOptions{})
	wantInvalid(t, "webhook", err)
}

func wantInvalid(t *testing.T, name string, err error) {
	t.Helper()
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "repeats too much") {
		t.Errorf("%s: %.300v", name, err)
	}
}
