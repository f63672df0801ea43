package kinds_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/kcptest"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// deploy creates a Deployment in a cluster.
func deploy(t *testing.T, c *kcptest.Cluster, name string) {
	t.Helper()
	if _, err := typed(t, c).AppsV1().Deployments("default").Create(t.Context(), deployment(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// identity returns the identity of the export of a provider.
func identity(t *testing.T, p *kcptest.Cluster) string {
	t.Helper()
	e, err := p.Dynamic.Resource(exports).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := unstructured.NestedString(e.Object, "status", "identityHash")
	return id
}

// view returns a client of the view of a provider for a cluster, or "*".
func view(t *testing.T, p *kcptest.Cluster, in string, as ...user.Info) dynamic.Interface {
	t.Helper()
	config := rest.CopyConfig(p.Config)
	if len(as) > 0 {
		var err error
		if config, err = p.Server.As(p.Name, as[0]); err != nil {
			t.Fatal(err)
		}
	}
	config.Host = p.Server.URL() + "/services/apiexport/" + p.Name + "/kubernetes/clusters/" + in
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// namesIn returns "cluster/name" of all items, sorted.
func namesIn(list *unstructured.UnstructuredList) []string {
	var all []string
	if list != nil {
		for _, o := range list.Items {
			all = append(all, o.GetAnnotations()["kcp.io/cluster"]+"/"+o.GetName())
		}
	}
	slices.Sort(all)
	return all
}

// Two providers of one kind do not see each other's consumers, in any way that the wire has.
func TestProvidersAreIsolated(t *testing.T) {
	t.Parallel()
	one, two := provider(t, "deployments.apps", "services"), provider(t, "deployments.apps")
	a, b, c := consumer(t, one), consumer(t, one), consumer(t, two)
	for i, in := range []*kcptest.Cluster{a, b, c} {
		deploy(t, in, fmt.Sprint("web-", i))
	}
	want := []string{a.Name + "/web-0", b.Name + "/web-1"}
	slices.Sort(want)
	got, err := view(t, one, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
	if err != nil || !slices.Equal(namesIn(got), want) {
		t.Errorf("the view lists %s, %v; want %s", namesIn(got), err, want)
	}
	if got.GetKind() != "DeploymentList" {
		t.Errorf("the list is a %s", got.GetKind())
	}
	if got, err := view(t, one, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=web-1"}); err != nil || !slices.Equal(namesIn(got), []string{b.Name + "/web-1"}) {
		t.Errorf("by name: %s, %v", namesIn(got), err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "lb"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := typed(t, b).CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := view(t, one, "*").Resource(corev1.SchemeGroupVersion.WithResource("services")).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.type=LoadBalancer"}); err != nil || !slices.Equal(namesIn(got), []string{b.Name + "/lb"}) {
		t.Errorf("by type: %s, %v", namesIn(got), err)
	}
	if got, err := view(t, two, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{}); err != nil || !slices.Equal(namesIn(got), []string{c.Name + "/web-2"}) {
		t.Errorf("the other view lists %s, %v", namesIn(got), err)
	}
	// The view of one provider has neither the consumers nor the kinds of the other.
	if got, err := view(t, two, a.Name).Resource(deployments).Namespace("default").Get(t.Context(), "web-0", metav1.GetOptions{}); err == nil {
		t.Errorf("provider two reads %s", text(got))
	}
	if got, err := view(t, two, "*").Resource(corev1.SchemeGroupVersion.WithResource("services")).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Errorf("provider two lists services: %s", namesIn(got))
	}
	// An identity in the URL gives nothing that the cluster has not bound.
	for _, in := range []*kcptest.Cluster{a, two} {
		if got, err := get(t, in, "/apis/apps/v1/namespaces/default/deployments:"+identity(t, two)); !apierrors.IsNotFound(err) {
			t.Errorf("%s by identity: %s, %v", in.Name, got, err)
		}
	}
	if got, err := get(t, a, "/apis/apps/v1/namespaces/default/deployments:"+identity(t, one)); err != nil || !strings.Contains(got, "web-0") {
		t.Errorf("by its own identity: %s, %v", got, err)
	}
	// Nobody else may use the view.
	if got, err := view(t, one, "*", &user.DefaultInfo{Name: "eve", Groups: []string{user.AllAuthenticated}}).Resource(deployments).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("eve lists %s, %v", namesIn(got), err)
	}
	// The operator reads all clusters with the identity.
	everywhere, err := one.Server.As("*", &user.DefaultInfo{Name: "operator", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	if err != nil {
		t.Fatal(err)
	}
	all := &kcptest.Cluster{Config: everywhere}
	if got, err := get(t, all, "/apis/apps/v1/deployments:"+identity(t, one)); err != nil || strings.Count(got, `"kind":"DeploymentList"`) != 1 || !strings.Contains(got, "web-1") || strings.Contains(got, "web-2") {
		t.Errorf("all clusters by identity: %.300s, %v", got, err)
	}
}

// The view of a provider follows consumers that come, change and go.
func TestViewWatches(t *testing.T) {
	t.Parallel()
	p := provider(t, "deployments.apps")
	a := consumer(t, p)
	deploy(t, a, "first")
	list, err := view(t, p, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := view(t, p, "*").Resource(deployments).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func(kind watch.EventType, of *kcptest.Cluster, name string) *unstructured.Unstructured {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			u, _ := e.Object.(*unstructured.Unstructured)
			if u == nil || e.Type != kind || u.GetName() != name || u.GetAnnotations()["kcp.io/cluster"] != of.Name || u.GetKind() != "Deployment" {
				t.Fatalf("%s %s, want %s of %s in %s", e.Type, text(e.Object), kind, name, of.Name)
			}
			return u
		case <-time.After(kcptest.DefaultTimeout):
			t.Fatalf("no %s of %s", kind, name)
			return nil
		}
	}
	b := consumer(t, p)
	deploy(t, b, "second")
	next(watch.Added, b, "second")
	// The provider writes the status; its consumer sees it.
	in := view(t, p, b.Name).Resource(deployments).Namespace("default")
	if _, err := in.Patch(t.Context(), "second", "application/merge-patch+json", []byte(`{"status":{"replicas":1,"readyReplicas":1}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	next(watch.Modified, b, "second")
	if got, err := typed(t, b).AppsV1().Deployments("default").Get(t.Context(), "second", metav1.GetOptions{}); err != nil || got.Status.ReadyReplicas != 1 {
		t.Errorf("the consumer reads %s, %v", text(got), err)
	}
	unbind(t, a)
	next(watch.Deleted, a, "first")
}

// Names conflict between bindings, and between bindings and definitions, and the first one stays.
func TestConflicts(t *testing.T) {
	t.Parallel()
	one, two := provider(t, "deployments.apps"), provider(t, "deployments.apps", "services")
	c := consumer(t, one)
	b, err := c.Dynamic.Resource(bindings).Create(t.Context(), binding("another", two), metav1.CreateOptions{})
	if err != nil || !strings.Contains(text(b.Object["status"]), "NamingConflicts") || !strings.Contains(text(b.Object["status"]), "deployments.apps is bound by APIBinding kubernetes") {
		t.Errorf("bound twice: %s, %v", text(b), err)
	}
	if _, err := get(t, c, "/api/v1/services"); !apierrors.IsNotFound(err) {
		t.Errorf("a part of the export is served: %v", err)
	}
	own := crd("deployments")
	got, err := c.Dynamic.Resource(definitions).Create(t.Context(), own, metav1.CreateOptions{})
	if err == nil && strings.Contains(text(got.Object["status"]), `"type":"Established","status":"True"`) {
		t.Errorf("a definition of a bound kind: %s", text(got.Object["status"]))
	}
	deploy(t, c, "web") // still the bound kind
	// Where nothing is bound, such a definition is possible, and then the binding conflicts.
	free := universe.New(t)
	if _, err := free.Dynamic.Resource(definitions).Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err = free.Dynamic.Resource(bindings).Create(t.Context(), binding("kubernetes", one), metav1.CreateOptions{})
	if err != nil || !strings.Contains(text(b.Object["status"]), "NamingConflicts") || !strings.Contains(text(b.Object["status"]), "CustomResourceDefinition deployments.apps") {
		t.Errorf("bound over a definition: %s, %v", text(b), err)
	}
	if _, err := free.Dynamic.Resource(deployments).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "own"}, "spec": map[string]any{"anything": "goes"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("an object of the definition: %v", err)
	}
}

// crd returns a definition in the group apps that has the names of Deployments.
func crd(plural string) *unstructured.Unstructured {
	var u unstructured.Unstructured
	_ = json.Unmarshal([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"`+plural+`.apps","annotations":{"api-approved.kubernetes.io":"unapproved"}},
		"spec":{"group":"apps","scope":"Namespaced","names":{"plural":"`+plural+`","singular":"deployment","kind":"Deployment","listKind":"DeploymentList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`), &u.Object)
	return &u
}

// A binding that ends takes no new objects, and waits for those with finalizers.
func TestUnbinding(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, "deployments.apps"))
	web := typed(t, c).AppsV1().Deployments("default")
	held := deployment("held")
	held.Finalizers = []string{"example.com/hold"}
	if _, err := web.Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Dynamic.Resource(bindings).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		got, err := web.Get(t.Context(), "held", metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp == nil {
			return fmt.Errorf("it is not being deleted: %v", err)
		}
		return nil
	})
	if _, err := web.Create(t.Context(), deployment("late"), metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("created while the binding is being deleted: %v", err)
	}
	if _, err := web.Patch(t.Context(), "late", "application/apply-patch+yaml", []byte(text(map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "late"}, "spec": deployment("late").Spec})), metav1.PatchOptions{FieldManager: "x"}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("applied while the binding is being deleted: %v", err)
	}
	if _, err := web.Patch(t.Context(), "held", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if _, err := c.Dynamic.Resource(bindings).Get(t.Context(), "kubernetes", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the binding is still there: %v", err)
		}
		return nil
	})
}

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

// The provider reads claimed objects of a native kind of another export, where this is accepted.
func TestClaims(t *testing.T) {
	t.Parallel()
	compute := provider(t, "deployments.apps")
	p := universe.New(t)
	claiming := export("kubernetes")
	claiming.Object["spec"] = map[string]any{"permissionClaims": []any{map[string]any{"group": "apps", "resource": "deployments", "identityHash": identity(t, compute), "verbs": []any{"get", "list", "watch"}}}}
	if _, err := p.Dynamic.Resource(exports).Create(t.Context(), claiming, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	accepting, other := consumer(t, compute), consumer(t, compute)
	deploy(t, accepting, "shown")
	deploy(t, other, "hidden")
	for in, state := range map[*kcptest.Cluster]string{accepting: "Accepted", other: "Rejected"} {
		b := binding("claims", p)
		b.Object["spec"].(map[string]any)["permissionClaims"] = []any{map[string]any{
			"group": "apps", "resource": "deployments", "identityHash": identity(t, compute), "verbs": []any{"get", "list", "watch"}, "state": state, "selector": map[string]any{"matchAll": true},
		}}
		if _, err := in.Dynamic.Resource(bindings).Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		got, err := view(t, p, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
		if err != nil || !slices.Equal(namesIn(got), []string{accepting.Name + "/shown"}) {
			return fmt.Errorf("the view lists %s, %v", namesIn(got), err)
		}
		return nil
	})
	if err := view(t, p, accepting.Name).Resource(deployments).Namespace("default").Delete(t.Context(), "shown", metav1.DeleteOptions{}); err == nil {
		t.Error("a provider deleted what it may only read")
	}
}

// Where nothing is bound, the extension takes no goroutine. Consumers and their objects take none
// either.
func TestCosts(t *testing.T) {
	plain := func() *kcptest.Universe { return &kcptest.Universe{Server: &kcp.Server{NoSync: true}} }
	run(t, plain(), func() {}) // libraries start goroutines of their own with the first server
	without, left := run(t, plain(), func() {})
	u := &kcptest.Universe{Server: &kcp.Server{NoSync: true, Extensions: universe.Server.Extensions}}
	with, _ := run(t, u, func() {
		of := func() *kcptest.Cluster { return u.New(t) }
		p := of()
		if _, err := p.Dynamic.Resource(exports).Create(t.Context(), export("kubernetes", everything()...), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c := of()
		bind(t, c, p)
		deploy(t, c, "web")
		one := settled(t)
		for range 30 {
			c := of()
			bind(t, c, p)
			deploy(t, c, "web")
		}
		if many := settled(t); many > one+5 { // connections of the test, and requests that end
			t.Errorf("%d goroutines with 31 consumers, %d with one", many, one)
		}
	})
	if with > without {
		t.Errorf("%d goroutines with the extension, %d without", with, without)
	}
	eventually(t, func() error { // upstream's handlers of definitions end a moment after Close
		if now := runtime.NumGoroutine(); now > left {
			return fmt.Errorf("%d goroutines after Close, %d after that of a server without the extension", now, left)
		}
		return nil
	})
}

// run starts a server, calls use, and stops the server. It returns the number of goroutines before use
// and after the end.
func run(t *testing.T, u *kcptest.Universe, use func()) (idle, left int) {
	t.Helper()
	if _, err := u.Start(); err != nil {
		t.Fatal(err)
	}
	idle = settled(t)
	use()
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	return idle, settled(t)
}

// settled returns the number of goroutines when it does not change any more.
func settled(t *testing.T) int {
	t.Helper()
	last, times := -1, 0
	eventually(t, func() error {
		now := runtime.NumGoroutine()
		if times++; now != last {
			last, times = now, 0
		}
		if times < 15 {
			return fmt.Errorf("there are %d goroutines, and their number changes", now)
		}
		return nil
	})
	return last
}
