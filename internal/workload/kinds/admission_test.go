package kinds_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/kcptest"
)

// Quotas, roles, owners and namespaces hold for bound kinds as for others.
func TestObjectsOfOtherKinds(t *testing.T) {
	t.Parallel()
	p := provider(t, everything()...)
	c := consumer(t, p)
	client := typed(t, c)
	t.Run("quota", func(t *testing.T) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "limited"}}
		hard := corev1.ResourceList{"count/deployments.apps": resource.MustParse("1"), "services": resource.MustParse("1")}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().ResourceQuotas("limited").Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for i, refused := range []bool{false, true} {
			if _, err := client.AppsV1().Deployments("limited").Create(t.Context(), deployment(fmt.Sprint("d", i)), metav1.CreateOptions{}); apierrors.IsForbidden(err) != refused {
				t.Errorf("Deployment %d: %v", i, err)
			}
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
			if _, err := client.CoreV1().Services("limited").Create(t.Context(), service, metav1.CreateOptions{}); apierrors.IsForbidden(err) != refused {
				t.Errorf("Service %d: %v", i, err)
			}
		}
		if err := client.CoreV1().Namespaces().Delete(t.Context(), "limited", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if _, err := client.CoreV1().Namespaces().Get(t.Context(), "limited", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the namespace is still there: %v", err)
			}
			return nil
		})
		if left, err := client.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.namespace=limited"}); err != nil || len(left.Items) > 0 {
			t.Errorf("left: %s, %v", text(left), err)
		}
	})
	t.Run("owners", func(t *testing.T) {
		owner, err := client.AppsV1().Deployments("default").Create(t.Context(), deployment("owner"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ref := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: owner.Name, UID: owner.UID}
		for _, made := range []error{
			second(client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{ref}}}, metav1.CreateOptions{})),
			second(client.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{ref}}}, metav1.CreateOptions{})),
			client.AppsV1().Deployments("default").Delete(t.Context(), "owner", metav1.DeleteOptions{}),
		} {
			if made != nil {
				t.Fatal(made)
			}
		}
		eventually(t, func() error {
			_, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "owned", metav1.GetOptions{})
			_, other := client.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "owned", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) || !apierrors.IsNotFound(other) {
				return fmt.Errorf("what it owned is still there: %v, %v", err, other)
			}
			return nil
		})
	})
	t.Run("roles", func(t *testing.T) { asEditor(t, c) })
	t.Run("webhook", func(t *testing.T) { withWebhook(t, c) })
	t.Run("policy", func(t *testing.T) { withPolicy(t, c, c, 5) })
	t.Run("mutating policy", func(t *testing.T) { withMutation(t, c) })
	t.Run("policy of the provider", func(t *testing.T) { withPolicy(t, p, c, 3) })
}

func second[T any](_ T, err error) error { return err }

// asEditor binds the role "edit" of Kubernetes, which has the kinds already.
func asEditor(t *testing.T, c *kcptest.Cluster) {
	meta := metav1.ObjectMeta{Name: "ed"}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ed"}}
	_, err := typed(t, c).RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}}}, metav1.CreateOptions{})
	if err == nil {
		_, err = typed(t, c).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "ed"}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = typed(t, c).RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.Server.As(c.Name, &user.DefaultInfo{Name: "ed", Groups: []string{user.AllAuthenticated}})
	if err != nil {
		t.Fatal(err)
	}
	ed := &kcptest.Cluster{Name: c.Name, Server: c.Server, Config: config}
	deploy(t, ed, "of-ed")
	if _, err := typed(t, ed).AppsV1().Deployments("kube-system").Create(t.Context(), deployment("of-ed"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("in another namespace: %v", err)
	}
	if _, err := typed(t, ed).NetworkingV1().IngressClasses().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a cluster-scoped kind: %v", err)
	}
}

// withWebhook gets Deployments as Kubernetes sends them.
func withWebhook(t *testing.T, c *kcptest.Cluster) {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review struct {
			Request struct {
				UID    string
				Object struct {
					APIVersion, Kind string
					Metadata         metav1.ObjectMeta
					Spec             struct{ Replicas *int }
				}
			}
		}
		err := json.NewDecoder(req.Body).Decode(&review)
		o := review.Request.Object
		refused := err != nil || o.APIVersion != "apps/v1" || o.Kind != "Deployment" || o.Spec.Replicas == nil || o.Metadata.Name == "refused"
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":%t,"status":{"message":"not by this webhook"}}}`, review.Request.UID, !refused)
	}))
	defer hook.Close()
	fails, none := admissionv1.Fail, admissionv1.SideEffectClassNone
	ca := hook.Certificate()
	_, err := typed(t, c).AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "hook.example.com", FailurePolicy: &fails, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{URL: &hook.URL, CABundle: pemOf(ca.Raw)},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deploy(t, c, "allowed")
	if _, err := typed(t, c).AppsV1().Deployments("default").Create(t.Context(), deployment("refused"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "not by this webhook") {
		t.Errorf("refused by the webhook: %v", err)
	}
	if err := typed(t, c).AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "hook", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// withPolicy refuses Deployments of a cluster by an expression over their fields, in a policy of the
// same cluster or of the provider.
func withPolicy(t *testing.T, in, c *kcptest.Cluster, most int32) {
	fails := admissionv1.Fail
	policies := typed(t, in).AdmissionregistrationV1()
	_, err := policies.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fails,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}, Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("object.spec.replicas <= %d", most), Message: fmt.Sprintf("more than %d replicas", most)}},
	}}, metav1.CreateOptions{})
	if err == nil {
		_, err = policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "few", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	deploy(t, c, fmt.Sprint("few-", most))
	many := deployment("many")
	many.Spec.Replicas = new(most + 1)
	if _, err := typed(t, c).AppsV1().Deployments("default").Create(t.Context(), many, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d replicas", most)) {
		t.Errorf("refused by the policy: %v", err)
	}
}

// withMutation lets a policy apply fields to Deployments, which needs their types.
func withMutation(t *testing.T, c *kcptest.Cluster) {
	fails, once := admissionv1.Fail, admissionv1.NeverReinvocationPolicy
	policies := typed(t, c).AdmissionregistrationV1()
	_, err := policies.MutatingAdmissionPolicies().Create(t.Context(), &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: admissionv1.MutatingAdmissionPolicySpec{
		FailurePolicy: &fails, ReinvocationPolicy: once,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{ResourceNames: []string{"mutated"}, RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
		}}}},
		Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{
			Expression: `Object{spec: Object.spec{replicas: 2, template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: "sidecar", image: "s"}]}}}}`,
		}}},
	}}, metav1.CreateOptions{})
	if err == nil {
		_, err = policies.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "two"}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	made, err := typed(t, c).AppsV1().Deployments("default").Create(t.Context(), deployment("mutated"), metav1.CreateOptions{})
	if err != nil || *made.Spec.Replicas != 2 || len(made.Spec.Template.Spec.Containers) != 2 {
		t.Errorf("mutated: %s, %v", text(made), err)
	}
}
