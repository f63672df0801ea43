package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
)

// A webhook changes objects. The server's own annotation survives.
func testWebhookChanges(t *testing.T, h *hooked) {
	c := h.tenant(t)
	h.hook.answer("strip", patching(`[{"op":"replace","path":"/metadata/annotations","value":{"kcp.io/cluster":"root"}}]`))
	h.mutates(c, "/label", nil, matching("", "configmaps", admissionregistrationv1.Create))
	h.mutates(c, "/strip", nil, matching("", "configmaps", admissionregistrationv1.Create))
	made := must(c.write("a", metav1.CreateOptions{}))(t)
	if made.Labels["seen"] != "yes" || cluster.Of(made) != c.name {
		t.Errorf("labels %v in %q", made.Labels, cluster.Of(made))
	}
}

// patching returns an answer with a patch.
func patching(patch string) func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		kind := admissionv1.PatchTypeJSONPatch
		return &admissionv1.AdmissionResponse{Allowed: true, PatchType: &kind, Patch: []byte(patch)}
	}
}

// A webhook that asks for it is called again if a later one changed the object.
func testWebhookReinvoked(t *testing.T, h *hooked) {
	c := h.tenant(t)
	again := admissionregistrationv1.IfNeededReinvocationPolicy
	h.mutates(c, "/allow/"+string(c.name), func(w *admissionregistrationv1.MutatingWebhook) { w.ReinvocationPolicy = &again }, matching("", "configmaps", admissionregistrationv1.Create))
	h.mutates(c, "/label", nil, matching("", "configmaps", admissionregistrationv1.Create))
	must(c.write("a", metav1.CreateOptions{}))(t)
	if n := len(h.hook.reviews("/allow/" + string(c.name))); n != 2 {
		t.Errorf("%d reviews", n)
	}
}

// A dry run calls only webhooks without side effects.
func testWebhookDryRun(t *testing.T, h *hooked) {
	c := h.tenant(t)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	path := "/deny/" + string(c.name)
	h.validates(c, path, nil, matching("", "configmaps", admissionregistrationv1.Create))
	_, err := c.write("a", dry)
	wantRefusal(t, err, "not a")
	if all := h.hook.reviews(path); len(all) != 1 || all[0].DryRun == nil || !*all[0].DryRun {
		t.Errorf("reviews %v", all)
	}
}

// Selectors and conditions choose requests. Namespaces are those of the cluster.
func testWebhookSelects(t *testing.T, h *hooked) {
	c := h.tenant(t)
	c.namespace("picked")
	h.validates(c, "/deny/namespaces", func(w *admissionregistrationv1.ValidatingWebhook) {
		w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "picked"}}
		w.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "free", Operator: metav1.LabelSelectorOpDoesNotExist}}}
		w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "name", Expression: `object.metadata.name.startsWith("a")`}}
	}, matching("", "configmaps", admissionregistrationv1.Create))
	must(c.write("a", metav1.CreateOptions{}))(t)
	for name, labels := range map[string]map[string]string{"b": nil, "a-free": {"free": "yes"}} {
		must(c.kube.CoreV1().ConfigMaps("picked").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}))(t)
	}
	_, err := c.kube.CoreV1().ConfigMaps("picked").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	wantRefusal(t, err, "not a")
}

// The failure policy decides if a webhook does not answer.
func testWebhookFails(t *testing.T, h *hooked) {
	c := h.tenant(t)
	ignore := admissionregistrationv1.Ignore
	h.validates(c, "/hang/ignored", func(w *admissionregistrationv1.ValidatingWebhook) {
		w.FailurePolicy, w.TimeoutSeconds = &ignore, new(int32(1))
	},
		matching("", "configmaps", admissionregistrationv1.Create))
	must(c.write("a", metav1.CreateOptions{}))(t)
	h.validates(c, "/hang", func(w *admissionregistrationv1.ValidatingWebhook) { w.TimeoutSeconds = new(int32(1)) },
		matching("", "configmaps", admissionregistrationv1.Create))
	_, err := c.write("b", metav1.CreateOptions{})
	wantRefusal(t, err, `failed calling webhook "a.example.com": failed to call webhook: Post "`+h.hook.URL+`/hang?timeout=1s": `)
}

// A webhook at an address that tenants may not call is refused when it is called.
func testWebhookAddresses(t *testing.T, h *hooked) {
	c := h.tenant(t)
	h.validates(c, "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
		w.ClientConfig.URL, w.ClientConfig.CABundle = new("https://169.254.169.254/"), nil
	}, matching("", "configmaps", admissionregistrationv1.Create))
	_, err := c.write("a", metav1.CreateOptions{})
	wantRefusal(t, err, "169.254.169.254")
	none := admissionregistrationv1.SideEffectClassNone
	_, err = c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "service"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "a.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Name: "a", Namespace: "default"}},
		}},
	}, metav1.CreateOptions{})
	wantRefusal(t, err, "webhooks[0].clientConfig.service: Forbidden: workspaces have no services; use clientConfig.url")
	if !apierrors.IsInvalid(err) {
		t.Errorf("a service: %v", err)
	}
}

// Two webhooks of one cluster at one address have different certificate authorities.
func testWebhookAuthorities(t *testing.T, h *hooked) {
	c := h.tenant(t)
	h.validates(c, "/allow/good", nil, matching("", "configmaps", admissionregistrationv1.Create))
	h.validates(c, "/allow/bad", func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.CABundle = c.server.ca },
		matching("", "secrets", admissionregistrationv1.Create))
	must(c.write("a", metav1.CreateOptions{}))(t)
	_, err := c.kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	wantRefusal(t, err, "certificate")
}

// A webhook that refuses everything locks out neither the administrators of the cluster, who
// can delete it, nor the server itself.
func testWebhookLockOut(t *testing.T, h *hooked) {
	c := h.tenant(t)
	owner := must(c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{}))(t)
	must(c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
	}}}, metav1.CreateOptions{}))(t)
	all := matching("*", "*", admissionregistrationv1.Create, admissionregistrationv1.Update)
	h.validates(c, "/deny/everything", nil, all)
	h.mutates(c, "/hang/everything", nil, matching("*", "*", admissionregistrationv1.OperationAll))
	if err := c.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "hang.everything", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Garbage collection works: it only deletes.
	if err := c.kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("configmaps"), "default", "owned", gone)
	_, err := c.write("a", metav1.CreateOptions{})
	wantRefusal(t, err, "not a")
	if err := c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "deny.everything", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(c.write("a", metav1.CreateOptions{}))(t)
}

// Garbage collection asks the webhooks for deletions.
func testWebhookGarbage(t *testing.T, h *hooked) {
	c := h.tenant(t)
	owner := must(c.write("owner", metav1.CreateOptions{}))(t)
	must(c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
	}}}, metav1.CreateOptions{}))(t)
	path := "/allow/" + string(c.name)
	h.validates(c, path, nil, matching("", "configmaps", admissionregistrationv1.Delete))
	if err := c.kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("configmaps"), "default", "owned", gone)
	if n := len(h.hook.reviews(path)); n != 2 {
		t.Errorf("%d reviews", n)
	}
}

// Webhooks and policies do not change kinds of the server, but may refuse them: their owner would
// borrow rights that the user of the request has in other clusters, or has as an operator.
func testWebhookPrivileges(t *testing.T, h *hooked) {
	parent, provider := h.tenant(t), h.tenant(t)
	provider.create(apiSchemas, widgetSchema("v1", "color"))
	provider.create(apiExports, widgetExport("wanted", "v1"))
	provider.create(apiExports, widgetExport("given", "v1"))
	h.hook.answer("borrow", patching(`[{"op":"replace","path":"/spec/reference/export/name","value":"wanted"}]`))
	h.mutates(parent, "/borrow", nil, matching("apis.kcp.io", "apibindings", admissionregistrationv1.Create))
	parent.changes("borrow", merging(`Object{metadata: Object.metadata{labels: {"seen": "yes"}}}`), matched("*", "*"))
	bound := parent.create(apiBindings, bindingTo("given", provider.name, "given"))
	if got := text(bound, "spec", "reference", "export", "name"); got != "given" || bound.GetLabels()["seen"] != "" {
		t.Errorf("the binding is to %q, with labels %v", got, bound.GetLabels())
	}

	h.hook.answer("lift", patching(`[{"op":"add","path":"/metadata/annotations/core.kcp.io~1max-total-objects","value":"0"}]`))
	h.mutates(parent, "/lift", nil, matching("core.kcp.io", "logicalclusters", admissionregistrationv1.Update))
	operator := at(t, parent.server, parent.name, &user.DefaultInfo{Name: "kcp-admin", Groups: []string{"system:kcp:admin", user.AllAuthenticated}})
	for _, who := range []*tenant{operator, parent} {
		must(who.any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, []byte(`{"metadata":{"annotations":{"core.kcp.io/max-total-objects":"9"}}}`), metav1.PatchOptions{}))(t)
		limited := must(who.any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))(t)
		if got := limited.GetAnnotations()["core.kcp.io/max-total-objects"]; got != "9" {
			t.Errorf("a webhook changed a limit to %q", got)
		}
	}

	h.validates(parent, "/deny/workspaces", nil, matching("tenancy.kcp.io", "workspaces", admissionregistrationv1.Create))
	_, err := parent.any.Resource(workspaces).Create(t.Context(), workspace("b"), metav1.CreateOptions{})
	wantRefusal(t, err, "not b")
}

// The webhooks and policies of the export's cluster apply to the objects of its consumers, as
// do those of the consumer's own cluster. Those of another cluster do not.
func testWebhookProvider(t *testing.T, h *hooked) {
	p, consumer := h.tenant(t), h.tenant(t)
	p.create(apiSchemas, widgetSchema("v1", "color"))
	p.create(apiExports, widgetExport("widgets", "v1"))
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	path := "/label/" + string(p.name)
	h.mutates(p, path, nil, matching("example.com", "widgets", admissionregistrationv1.Create))
	h.mutates(p, "/deny/configmaps", nil, matching("", "configmaps", admissionregistrationv1.Create))
	p.forbids("small", "object.spec.size < 10", func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		s.MatchConstraints = matched("example.com", "widgets")
	})
	made := consumer.create(sharedWidgets, sizedWidget("a", 1))
	if made.GetLabels()["seen"] != "yes" {
		t.Errorf("the provider's webhook did not change the object: %v", made.GetLabels())
	}
	all := h.hook.reviews(path)
	if len(all) != 1 {
		t.Fatalf("%d reviews", len(all))
	}
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(all[0].Object.Raw); err != nil || cluster.Of(&o) != consumer.name {
		t.Errorf("the object in the review is of %q: %v", cluster.Of(&o), err)
	}
	_, err := consumer.any.Resource(sharedWidgets).Namespace("default").Create(t.Context(), sizedWidget("b", 11), metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'small'")
	must(consumer.write("a", metav1.CreateOptions{}))(t) // config maps are not the provider's
	consumer.forbids("tiny", "object.spec.size < 2", func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		s.MatchConstraints = matched("example.com", "widgets")
	})
	_, err = consumer.any.Resource(sharedWidgets).Namespace("default").Create(t.Context(), sizedWidget("b", 3), metav1.CreateOptions{})
	wantRefusal(t, err, "ValidatingAdmissionPolicy 'tiny'")
}

// A provider's webhook that does not answer holds up deletions of the provider's own resources by the
// server's loops, and of nothing else that its consumers have.
func testWebhookProviderHangs(t *testing.T, h *hooked) {
	p, consumer := h.tenant(t), h.tenant(t)
	p.create(apiSchemas, widgetSchema("v1", "color"))
	p.create(apiExports, widgetExport("widgets", "v1"))
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	h.validates(p, "/hang/"+string(p.name), nil, matching("example.com", "widgets", admissionregistrationv1.Delete))
	for _, name := range []string{"held", "free"} {
		consumer.create(core("namespaces"), decoded(`{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, name))
	}
	must(consumer.any.Resource(sharedWidgets).Namespace("held").Create(t.Context(), sizedWidget("a", 1), metav1.CreateOptions{}))(t)
	must(consumer.kube.CoreV1().Secrets("free").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}))(t)
	late := func(o *unstructured.Unstructured) bool {
		return o != nil && strings.Contains(fmt.Sprint(o.Object["status"]), "did not answer within 3s")
	}
	end := func(name string) {
		if err := consumer.kube.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	end("held")
	consumer.await(core("namespaces"), "", "held", late)
	end("free")
	consumer.await(core("namespaces"), "", "free", func(o *unstructured.Unstructured) bool {
		if late(o) {
			t.Fatalf("the webhook of the provider holds up other objects: %v", o.Object["status"])
		}
		return gone(o)
	})
}

// sizedWidget returns a widget of a size.
func sizedWidget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: object{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": object{"name": name}, "spec": object{"size": size},
	}}
}

// Calls of a webhook that hangs hold up neither other requests of the cluster nor other
// clusters.
func testWebhookHangs(t *testing.T, h *hooked) {
	bad, good := h.tenant(t), h.tenant(t)
	ann := bad.allow("ann")
	h.validates(bad, "/hang/"+string(bad.name), nil, matching("", "configmaps", admissionregistrationv1.Create))
	h.validates(good, "/allow/"+string(good.name), nil, matching("", "configmaps", admissionregistrationv1.Create))
	ctx, cancel := context.WithCancel(t.Context())
	var writes sync.WaitGroup
	for range 20 {
		writes.Go(func() {
			_, err := ann.kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
			if err == nil {
				t.Error("a request passes a webhook that does not answer")
			}
		})
	}
	for len(h.hook.reviews("/hang/"+string(bad.name))) < 10 {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		_, err := ann.kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		must(0, err)(t)
		_, err = good.kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		must(0, err)(t)
	}
	cancel()
	writes.Wait()
}

// The number of configurations is limited.
func testWebhookLimits(t *testing.T, h *hooked) {
	c := h.tenant(t)
	configs := c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	var err error
	for range 210 {
		_, err = configs.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		if err != nil {
			break
		}
	}
	wantRefusal(t, err, "a workspace has at most 200 validatingwebhookconfigurations")
	_, err = configs.Patch(t.Context(), "none", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		t.Errorf("a missing configuration: %v", err)
	}
}

// The deletion of a workspace asks the webhooks and policies that apply, and says which refuses.
// It ends when they allow it.
func testWebhookPurge(t *testing.T, h *hooked) {
	parent := h.tenant(t)
	child := parent.workspace("child")
	child.content("kept")
	path := "/allow/" + string(child.name)
	h.validates(child, path, nil, matching("", "configmaps", admissionregistrationv1.Delete))
	child.forbids("stays", `oldObject.metadata.name != "kept"`, func(p *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		p.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
			{RuleWithOperations: matching("", "configmaps", admissionregistrationv1.Delete)},
		}}
	})
	parent.deleteWorkspace("child")
	parent.says(workspaces, "child", "configmaps default/kept cannot be deleted", "ValidatingAdmissionPolicy 'stays'")
	if len(h.hook.reviews(path)) == 0 {
		t.Error("the webhook was not asked")
	}
	if err := child.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(t.Context(), "stays", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	parent.await(workspaces, "", "child", gone)

	// A webhook that does not answer blocks the deletion of its own workspace alone, and a forced
	// one does not wait for it.
	child = parent.workspace("silent")
	child.content("kept")
	h.validates(child, "/hang/"+string(child.name), nil, matching("*", "*", admissionregistrationv1.Delete))
	parent.deleteWorkspace("silent")
	parent.says(workspaces, "silent", "did not answer within 3s")
	parent.workspace("other")
	parent.deleteWorkspace("other")
	parent.await(workspaces, "", "other", gone)
	force := []byte(`{"metadata":{"annotations":{"core.kcp.io/force-delete":"its webhook is gone"}}}`)
	must(parent.any.Resource(workspaces).Patch(t.Context(), "silent", types.MergePatchType, force, metav1.PatchOptions{}))(t)
	parent.await(workspaces, "", "silent", gone)
}
