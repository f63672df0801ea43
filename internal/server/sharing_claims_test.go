package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
)

// claiming returns a cluster that exports widgets and claims, as YAML.
func claiming(t *testing.T, claims string) *tenant {
	p := newTenant(t)
	p.create(apiSchemas, widgetSchema("v1", "color"))
	e := widgetExport("widgets", "v1")
	_ = unstructured.SetNestedField(e.Object, decoded("%s", claims).Object["claims"], "spec", "permissionClaims")
	p.create(apiExports, e)
	p.provides("pat")
	return p
}

// answering is a binding to widgets with answers to claims, as YAML.
func answering(provider cluster.Name, answers string) *unstructured.Unstructured {
	b := bindingTo("widgets", provider, "widgets")
	_ = unstructured.SetNestedField(b.Object, decoded("%s", answers).Object["claims"], "spec", "permissionClaims")
	return b
}

// answer replaces the answers of a binding.
func (c *tenant) answer(answers string) {
	c.t.Helper()
	data := must(decoded("%s", answers).MarshalJSON())(c.t)
	patch := strings.Replace(string(data), `"claims"`, `"permissionClaims"`, 1)
	must(c.any.Resource(apiBindings).Patch(c.t.Context(), "widgets", types.MergePatchType, []byte(`{"spec":`+patch+`}`), metav1.PatchOptions{}))(c.t)
}

const (
	claimSecrets  = `{kind: C, claims: [{resource: secrets, verbs: [get, list, watch, create]}]}`
	acceptSecrets = `{kind: C, claims: [{resource: secrets, verbs: ["*"], state: Accepted, selector: {matchAll: true}}]}`
	acceptWebOnly = `{kind: C, claims: [{resource: secrets, verbs: ["*"], state: Accepted, selector: {matchLabels: {app: web}}}]}`
	rejectSecrets = `{kind: C, claims: [{resource: secrets, verbs: [get], state: Rejected, selector: {matchAll: true}}]}`
)

func (c *tenant) secret(name string, labels map[string]string) {
	c.t.Helper()
	must(c.kube.CoreV1().Secrets("default").Create(c.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string][]byte{"word": []byte(name)},
	}, metav1.CreateOptions{}))(c.t)
}

// expectSecret fails unless the next event of a watch is of a secret of a cluster.
func expectSecret(t *testing.T, w watch.Interface, kind watch.EventType, in *tenant, name string) {
	t.Helper()
	e := next(t, w)
	if s, ok := e.Object.(*corev1.Secret); !ok || e.Type != kind || cluster.Of(s) != in.name || s.Name != name {
		t.Fatalf("the event is %s %v, not %s of %s in %s", e.Type, e.Object, kind, name, in.name)
	}
}

// expectGone fails unless the next event of a watch is that a cluster has left with a secret, of
// which the event has only the name.
func expectGone(t *testing.T, w watch.Interface, in *tenant, name string) {
	t.Helper()
	e := next(t, w)
	if s, ok := e.Object.(*corev1.Secret); !ok || e.Type != watch.Deleted || cluster.Of(s) != in.name || s.Name != name || len(s.Data) > 0 {
		t.Fatalf("the event is %s %v, not the end of %s in %s", e.Type, e.Object, name, in.name)
	}
}

// TestAClaimIsReadWhereItIsAccepted shows the list and watch of a claimed resource in all
// clusters: they have the objects of the clusters that accept the claim, as far as the selectors
// select them, and follow every change of the answers.
func TestAClaimIsReadWhereItIsAccepted(t *testing.T) {
	t.Parallel()
	p := claiming(t, claimSecrets)
	a, b, c := newTenant(t), newTenant(t), newTenant(t)
	a.create(apiBindings, answering(p.name, acceptSecrets))
	b.create(apiBindings, answering(p.name, acceptWebOnly))
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	for _, of := range []*tenant{a, b, c} {
		of.secret("web", map[string]string{"app": "web"})
		of.secret("own", nil)
	}
	pat := p.view("pat").kube("*")
	list := must(pat.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}))(t)
	got := []string{}
	for _, s := range list.Items {
		got = append(got, string(cluster.Of(&s))+"/"+s.Name)
	}
	want := []string{string(a.name) + "/own", string(a.name) + "/web", string(b.name) + "/web"}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Fatalf("in the view are %v, not %v", got, want)
	}
	w := must(pat.CoreV1().Secrets("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	defer w.Stop()
	c.secret("more", nil)
	a.secret("more", nil)
	expectSecret(t, w, watch.Added, a, "more")
	must(b.kube.CoreV1().Secrets("default").Patch(t.Context(), "own", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"web"}}}`), metav1.PatchOptions{}))(t)
	expectSecret(t, w, watch.Added, b, "own")
	must(b.kube.CoreV1().Secrets("default").Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"db"}}}`), metav1.PatchOptions{}))(t)
	expectSecret(t, w, watch.Deleted, b, "web")
	b.answer(rejectSecrets)
	expectGone(t, w, b, "own")
	again := must(pat.CoreV1().Secrets("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	defer again.Stop()
	for e := next(t, again); e.Type != watch.Deleted; e = next(t, again) {
		if s, _ := e.Object.(*corev1.Secret); cluster.Of(s) != a.name {
			t.Errorf("after the rejection a watch resumes with %s %v", e.Type, e.Object)
		}
	}
	c.answer(acceptWebOnly)
	expectSecret(t, w, watch.Added, c, "web")
	c.answer(acceptSecrets)
	expectGone(t, w, c, "web")
	for _, name := range []string{"more", "own", "web"} {
		expectSecret(t, w, watch.Added, c, name)
	}
	begins := must(pat.CoreV1().Secrets("").Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=web"}))(t)
	defer begins.Stop()
	var both []string
	for range 2 {
		e := next(t, begins)
		s, _ := e.Object.(*corev1.Secret)
		both = append(both, string(cluster.Of(s))+"/"+s.Name)
	}
	want = []string{string(a.name) + "/web", string(c.name) + "/web"}
	slices.Sort(want)
	if slices.Sort(both); !slices.Equal(both, want) {
		t.Errorf("a watch begins with %v, not %v", both, want)
	}
}

// TestAClaimGrantsWhatBothSay shows requests for claimed objects in one cluster: with the verbs
// of the export and of the answer, for the selected objects, and until the claim is rejected.
func TestAClaimGrantsWhatBothSay(t *testing.T) {
	t.Parallel()
	p, consumer := claiming(t, claimSecrets), newTenant(t)
	made := consumer.create(apiBindings, answering(p.name, acceptWebOnly))
	for _, of := range []string{"PermissionClaimsApplied True", "Ready True"} {
		if kind, want, _ := strings.Cut(of, " "); conditionOf(made, kind) != want {
			t.Errorf("%s is %q", kind, conditionOf(made, kind))
		}
	}
	applied, _, _ := unstructured.NestedSlice(made.Object, "status", "appliedPermissionClaims")
	if len(applied) != 1 || len(applied[0].(map[string]any)["verbs"].([]any)) != 4 {
		t.Errorf("applied are %v", applied)
	}
	consumer.secret("web", map[string]string{"app": "web"})
	consumer.secret("own", nil)
	in := p.view("pat").kube(consumer.name).CoreV1().Secrets("default")
	if _, err := in.Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if list, err := in.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("listed: %v, %v", list.Items, err)
	}
	if _, err := in.Get(t.Context(), "own", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a secret without the label: %v", err)
	}
	if _, err := in.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a secret without the label was created: %v", err)
	}
	if _, err := in.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "made", Labels: map[string]string{"app": "web"}}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if err := in.Delete(t.Context(), "made", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a verb that the export does not claim: %v", err)
	}
	if _, err := p.view("pat").kube(consumer.name).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a resource that the export does not claim: %v", err)
	}
	w := must(in.Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	consumer.answer(rejectSecrets)
	for open := true; open; {
		_, open = <-w.ResultChan()
	}
	if _, err := in.Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("after the rejection: %v", err)
	}
	if list, err := p.view("pat").kube("*").CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("after the rejection: %v, %v", list.Items, err)
	}
}

// A claim covers no subresources but the status and the scale: with a token of a service account, its
// provider would get all the rights of that account.
func TestAClaimCoversNoOtherSubresources(t *testing.T) {
	t.Parallel()
	const all = `verbs: [get, list, create, update, patch]`
	p := claiming(t, `{kind: C, claims: [{resource: serviceaccounts, `+all+`}, {resource: namespaces, `+all+`}]}`)
	consumer := newTenant(t)
	consumer.create(apiBindings, answering(p.name, `{kind: C, claims: [
		{resource: serviceaccounts, `+all+`, state: Accepted, selector: {matchAll: true}},
		{resource: namespaces, `+all+`, state: Accepted, selector: {matchAll: true}}]}`))
	kube := p.view("pat").kube(consumer.name).CoreV1()
	account := must(kube.ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "claimed"}}, metav1.CreateOptions{}))(t)
	_, err := kube.ServiceAccounts("default").CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a token: %v", err)
	}
	namespace := must(kube.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "claimed"}}, metav1.CreateOptions{}))(t)
	if _, err := kube.Namespaces().Finalize(t.Context(), namespace, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("finalize: %v", err)
	}
	namespace.Labels = map[string]string{"claimed": "yes"}
	if namespace, err = kube.Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.Namespaces().UpdateStatus(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Errorf("status: %v", err)
	}
}

// TestClaimsOfOtherExports shows a claim on a resource of another export: it needs the identity
// of that export, and obeys its maximal permission policy.
func TestClaimsOfOtherExports(t *testing.T) {
	t.Parallel()
	owner := exporter(t)
	owner.provides("olga")
	identity := text(must(owner.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t), "status", "identityHash")
	p, stranger, consumer := newTenant(t), exporter(t), newTenant(t)
	stranger.provides("sam")
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: widgets}, spec: {permissionClaims: [{group: example.com, resource: widgets, identityHash: %s, verbs: ["*"]}]}}`, identity))
	p.provides("pat")
	accept := `{kind: C, claims: [{group: example.com, resource: widgets, identityHash: ` + identity + `, verbs: ["*"], state: Accepted, selector: {matchAll: true}}]}`
	accepting := answering(p.name, accept)
	accepting.SetName("claimer")
	consumer.create(apiBindings, bindingTo("widgets", owner.name, "widgets"))
	consumer.create(apiBindings, accepting)
	consumer.create(sharedWidgets, newWidget("w"))
	other := newTenant(t)
	other.create(apiBindings, bindingTo("widgets", stranger.name, "widgets"))
	other.create(apiBindings, accepting.DeepCopy())
	other.create(sharedWidgets, newWidget("w"))
	view := p.view("pat")
	if list := must(view.widgets("*").List(t.Context(), metav1.ListOptions{}))(t); !slices.Equal(names(list), []string{string(consumer.name)}) {
		t.Errorf("in the view are %v", names(list))
	}
	if _, err := view.widgets(other.name).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("widgets of another identity: %v", err)
	}
	must(view.widgets(consumer.name).Namespace("default").Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"size":7}}`), metav1.PatchOptions{}))(t)
	must(owner.any.Resource(apiExports).Patch(t.Context(), "widgets", types.MergePatchType, []byte(`{"spec":{"maximalPermissionPolicy":{"local":{}}}}`), metav1.PatchOptions{}))(t)
	if _, err := view.widgets("*").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("against the policy of the owner: %v", err)
	}
	if _, err := view.widgets(consumer.name).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("against the policy of the owner: %v", err)
	}
}

// TestAProviderLimitsItsConsumers shows a maximal permission policy: what consumers may do with
// a resource needs RBAC in the cluster of the export, too.
func TestAProviderLimitsItsConsumers(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	p.provides("pat")
	must(p.any.Resource(apiExports).Patch(t.Context(), "widgets", types.MergePatchType, []byte(`{"spec":{"maximalPermissionPolicy":{"local":{}}}}`), metav1.PatchOptions{}))(t)
	account := consumer.owner()
	owner := must(dynamic.NewForConfig(consumer.withToken(account.token)))(t)
	must(owner.Resource(apiBindings).Create(t.Context(), bindingTo("widgets", p.name, "widgets"), metav1.CreateOptions{}))(t)
	own := owner.Resource(sharedWidgets).Namespace("default")
	if _, err := own.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("without a rule in the export's cluster: %v", err)
	}
	must(p.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "limit"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get", "list", "create"}, APIGroups: []string{"example.com"}, Resources: []string{"widgets"}}},
	}, metav1.CreateOptions{}))(t)
	must(p.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "limit"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "limit"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "apis.kcp.io:binding:system:authenticated"}},
	}, metav1.CreateOptions{}))(t)
	must(own.Create(t.Context(), newWidget("w"), metav1.CreateOptions{}))(t)
	if err := own.Delete(t.Context(), "w", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("beyond the rules in the export's cluster: %v", err)
	}
	must(p.view("pat").widgets(consumer.name).Namespace("default").Patch(t.Context(), "w", types.MergePatchType, []byte(`{"status":{"phase":"x"}}`), metav1.PatchOptions{}, "status"))(t) // the provider itself
}

// TestClaimsThatAreRefused shows the errors of claims and answers, and that nobody grants more
// than they have.
func TestClaimsThatAreRefused(t *testing.T) {
	t.Parallel()
	p, consumer := claiming(t, claimSecrets), newTenant(t)
	for name, c := range map[string]struct{ claims, want string }{
		"identity missing": {`{kind: C, claims: [{group: example.com, resource: widgets, verbs: [get]}]}`, "identityHash is required for widgets.example.com"},
		"identity given":   {`{kind: C, claims: [{resource: secrets, identityHash: abc, verbs: [get]}]}`, "identityHash must be empty: secrets is built in"},
		"selector":         {`{kind: C, claims: [{resource: secrets, verbs: [get], defaultSelector: {}}]}`, "either one of matchAll, matchLabels, or matchExpressions must be set"},
		"bindings":         {`{kind: C, claims: [{group: apis.kcp.io, resource: apibindings, verbs: [get]}]}`, "remove the claim on APIBindings"},
		"verbs":            {`{kind: C, claims: [{resource: secrets, verbs: []}]}`, "verbs"},
	} {
		e := widgetExport("refused", "v1")
		_ = unstructured.SetNestedField(e.Object, decoded("%s", c.claims).Object["claims"], "spec", "permissionClaims")
		if _, err := p.any.Resource(apiExports).Create(t.Context(), e, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
	empty := answering(p.name, `{kind: C, claims: [{resource: secrets, verbs: [get], state: Accepted, selector: {}}]}`)
	if _, err := consumer.any.Resource(apiBindings).Create(t.Context(), empty, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "either one of matchAll, matchLabels, or matchExpressions must be set") {
		t.Errorf("an empty selector: %v", err)
	}
	consumer.allows("binder", rbacv1.UserKind, "alice", []string{rbacv1.VerbAll}, "apibindings")
	alice := must(dynamic.NewForConfig(consumer.server.InProcess(string(consumer.name), as("alice"))))(t).Resource(apiBindings)
	if _, err := alice.Create(t.Context(), answering(p.name, acceptSecrets), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "so you cannot accept a claim to") {
		t.Errorf("a claim was accepted by a user without the right: %v", err)
	}
	must(alice.Create(t.Context(), answering(p.name, rejectSecrets), metav1.CreateOptions{}))(t)
	unasked := answering(p.name, `{kind: C, claims: [{resource: configmaps, verbs: [get], state: Accepted, selector: {matchAll: true}}]}`)
	unasked.SetName("unasked")
	other := newTenant(t)
	if made := other.create(apiBindings, unasked); conditionOf(made, "PermissionClaimsValid") != "False InvalidPermissionClaims" {
		t.Errorf("an answer without a claim: %s", conditionOf(made, "PermissionClaimsValid"))
	}
}

// TestOlderClientsAreWarned shows that a claim which an older client accepts for some objects comes with a warning: as
// in the existing kcp, it accepts all.
func TestOlderClientsAreWarned(t *testing.T) {
	t.Parallel()
	p, consumer := newTenant(t), newTenant(t)
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: any}, spec: {permissionClaims: [{resource: configmaps, verbs: ["*"]}]}}`))
	p.allow("alice")
	consumer.allow("alice")
	for i, c := range []struct {
		claim string
		warns bool
	}{
		{`"resourceSelector":[{"name":"a"}],"state":"Accepted"`, true},
		{`"resourceSelector":[{"name":"a"}],"state":"Rejected"`, false},
		{`"all":true,"state":"Accepted"`, false},
	} {
		got := consumer.alice().send(http.MethodPost, consumer.path("/apis/apis.kcp.io/v1alpha1/apibindings"), fmt.Sprintf(
			`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIBinding","metadata":{"name":"b%d"},"spec":{"reference":{"export":{"path":%q,"name":"any"}},"permissionClaims":[{"resource":"configmaps",%s}]}}`,
			i, p.name, c.claim), "Content-Type", "application/json")
		if warned := strings.Contains(got.header.Get("Warning"), "has no effect: the provider has access to all configmaps"); got.code != http.StatusCreated || warned != c.warns {
			t.Errorf("%s: %d %s, warning %q", c.claim, got.code, got.body, got.header.Get("Warning"))
		}
	}
}
