package server_test

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	claimAllOfSecrets = `{kind: C, claims: [{resource: secrets, verbs: ["*"]}]}`
	acceptLabelled    = `{kind: C, claims: [{resource: secrets, verbs: ["*"], state: Accepted, selector: {matchLabels: {"%s": "%s"}}}]}`
)

// TestClaimedObjectsHaveTheLabelOfTheClaim shows the label of claimed objects: every read through the
// view of the export has it, selectors know it, and it is not stored.
func TestClaimedObjectsHaveTheLabelOfTheClaim(t *testing.T) {
	t.Parallel()
	p, consumer := claiming(t, claimAllOfSecrets), newTenant(t)
	consumer.create(apiBindings, answering(p.name, acceptSecrets))
	consumer.secret("s", map[string]string{"app": "web"})
	key := apisv1alpha2.ClaimedLabelPrefix + apisv1alpha2.ExportLabelValue(string(p.name), "widgets")
	value := apisv1alpha2.ClaimLabelValue("", "secrets", "")
	pat, own := p.view("pat"), consumer.kube.CoreV1().Secrets("default")
	has := func(what string, o metav1.Object, app string) {
		t.Helper()
		if want := map[string]string{"app": app, key: value}; !maps.Equal(o.GetLabels(), want) {
			t.Errorf("%s: labels %v, want %v", what, o.GetLabels(), want)
		}
	}
	stored := func(what, app string) *corev1.Secret {
		t.Helper()
		s := must(own.Get(t.Context(), "s", metav1.GetOptions{}))(t)
		if want := map[string]string{"app": app}; !maps.Equal(s.Labels, want) {
			t.Errorf("%s, the consumer reads labels %v, want %v", what, s.Labels, want)
		}
		return s
	}

	in := pat.kube(consumer.name).CoreV1().Secrets("default")
	has("get", must(in.Get(t.Context(), "s", metav1.GetOptions{}))(t), "web")
	about := must(metadata.NewForConfig(pat.config("*")))(t).Resource(corev1.SchemeGroupVersion.WithResource("secrets"))
	has("list of metadata", &must(about.List(t.Context(), metav1.ListOptions{}))(t).Items[0], "web")
	for _, at := range []cluster.Name{cluster.All, consumer.name} {
		secrets := pat.kube(at).CoreV1().Secrets("")
		for selector, want := range map[string]int{
			"": 1, key: 1, key + "=" + value: 1, key + " in (other," + value + "),app=web": 1,
			"!" + key: 0, key + "=other": 0, key + "!=" + value: 0, key + ",app=db": 0,
			apisv1alpha2.ClaimedLabelPrefix + "other": 0, "!" + apisv1alpha2.ClaimedLabelPrefix + "other": 1,
		} {
			list := must(secrets.List(t.Context(), metav1.ListOptions{LabelSelector: selector}))(t)
			if len(list.Items) != want {
				t.Errorf("in %s, %q selects %d secrets, want %d", at, selector, len(list.Items), want)
			}
			for i := range list.Items {
				has("list", &list.Items[i], "web")
			}
		}
		w := must(secrets.Watch(t.Context(), metav1.ListOptions{LabelSelector: key + "=" + value}))(t)
		defer w.Stop()
		none := must(secrets.Watch(t.Context(), metav1.ListOptions{LabelSelector: key + "=other"}))(t)
		defer none.Stop()
		for i, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Deleted} {
			switch kind {
			case watch.Modified:
				must(own.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"data":{"n":"`+[]string{"MQ==", "Mg=="}[i-1]+`"}}`), metav1.PatchOptions{}))(t)
			case watch.Deleted:
				if err := own.Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			e := next(t, w)
			s, ok := e.Object.(*corev1.Secret)
			if !ok || e.Type != kind {
				t.Fatalf("in %s, the event is %s %v, not %s", at, e.Type, e.Object, kind)
			}
			has("event", s, "web")
		}
		select {
		case e := <-none.ResultChan():
			t.Errorf("in %s, a watch of others has %v", at, e)
		default:
		}
		consumer.secret("s", map[string]string{"app": "web"})
	}

	// A write through the view, with the label, stores nothing else.
	read := must(in.Get(t.Context(), "s", metav1.GetOptions{}))(t)
	before := stored("after reads", "web").ResourceVersion
	has("update", must(in.Update(t.Context(), read, metav1.UpdateOptions{}))(t), "web")
	if now := stored("after an update", "web").ResourceVersion; now != before {
		t.Error("an update that changes nothing was stored")
	}
	has("patch", must(in.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":"forged"}}}`), metav1.PatchOptions{}))(t), "web")
	has("create", must(in.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "made", Labels: map[string]string{"app": "web", key: "forged"}}}, metav1.CreateOptions{}))(t), "web")
	stored("after writes", "web")
	if list := must(own.List(t.Context(), metav1.ListOptions{LabelSelector: key}))(t); len(list.Items) > 0 {
		t.Errorf("for the consumer, %d secrets have the label", len(list.Items))
	}

	together := pat.several("")
	for _, e := range together.events(3) { // the binding and two secrets
		if e.Object.GetLabels()[key] == "" {
			t.Errorf("in a watch of several kinds: %v with labels %v", e, e.Object.GetLabels())
		}
	}

	// The APIBindings in the view have it, too.
	list := must(must(dynamic.NewForConfig(pat.config("*")))(t).Resource(apiBindings).List(t.Context(), metav1.ListOptions{LabelSelector: key}))(t)
	if len(list.Items) != 1 || list.Items[0].GetLabels()[key] != apisv1alpha2.OwnBindingLabelValue {
		t.Errorf("APIBindings with the label: %v", list.Items)
	}
}

// TestClaimedCustomResourcesHaveTheLabel shows the label on objects of another export.
func TestClaimedCustomResourcesHaveTheLabel(t *testing.T) {
	t.Parallel()
	owner, p, consumer := exporter(t), newTenant(t), newTenant(t)
	identity := text(must(owner.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t), "status", "identityHash")
	claim := `{group: example.com, resource: widgets, identityHash: ` + identity + `, verbs: ["*"]`
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: widgets}, spec: {permissionClaims: [%s}]}}`, claim))
	p.provides("pat")
	accepting := answering(p.name, `{kind: C, claims: [`+claim+`, state: Accepted, selector: {matchAll: true}}]}`)
	accepting.SetName("claimer")
	consumer.create(apiBindings, bindingTo("widgets", owner.name, "widgets"))
	consumer.create(apiBindings, accepting)
	consumer.create(sharedWidgets, newWidget("w"))
	key := apisv1alpha2.ClaimedLabelPrefix + apisv1alpha2.ExportLabelValue(string(p.name), "widgets")
	want := map[string]string{key: apisv1alpha2.ClaimLabelValue("example.com", "widgets", identity)}
	view := p.view("pat")
	for _, at := range []cluster.Name{cluster.All, consumer.name} {
		selected := metav1.ListOptions{LabelSelector: key + "=" + want[key]}
		list := must(view.widgets(at).List(t.Context(), selected))(t)
		if len(list.Items) != 1 || !maps.Equal(list.Items[0].GetLabels(), want) {
			t.Errorf("in %s, the list is %v", at, list.Items)
		}
		w := must(view.widgets(at).Watch(t.Context(), selected))(t)
		defer w.Stop()
		if o, ok := next(t, w).Object.(*unstructured.Unstructured); !ok || !maps.Equal(o.GetLabels(), want) {
			t.Errorf("in %s, the event is of %v", at, o)
		}
	}
	patched := must(view.widgets(consumer.name).Namespace("default").Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"size":7}}`), metav1.PatchOptions{}))(t)
	if !maps.Equal(patched.GetLabels(), want) {
		t.Errorf("a patch returns the labels %v", patched.GetLabels())
	}
	if stored := must(consumer.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}))(t); len(stored.GetLabels()) > 0 {
		t.Errorf("the consumer reads the labels %v", stored.GetLabels())
	}
}

// TestALabelOfAClaimGrantsNothing shows that consumers cannot write the labels of claims, and that
// such a label opens nothing.
func TestALabelOfAClaimGrantsNothing(t *testing.T) {
	t.Parallel()
	p, consumer := claiming(t, claimAllOfSecrets), newTenant(t)
	key := apisv1alpha2.ClaimedLabelPrefix + apisv1alpha2.ExportLabelValue(string(p.name), "widgets")
	value := apisv1alpha2.ClaimLabelValue("", "secrets", "")
	forged := map[string]string{key: value}
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	consumer.secret("forged", forged)
	if s := must(consumer.kube.CoreV1().Secrets("default").Get(t.Context(), "forged", metav1.GetOptions{}))(t); len(s.Labels) > 0 {
		t.Errorf("a forged label was stored: %v", s.Labels)
	}
	widget := func() *unstructured.Unstructured {
		w := newWidget("forged")
		w.SetLabels(forged)
		return w
	}
	if made := consumer.create(sharedWidgets, widget()); len(made.GetLabels()) > 0 {
		t.Errorf("a forged label was stored with a custom resource: %v", made.GetLabels())
	}
	applied := must(consumer.any.Resource(sharedWidgets).Namespace("default").Apply(t.Context(), "forged", widget(), metav1.ApplyOptions{FieldManager: "m", Force: true}))(t)
	if len(applied.GetLabels()) > 0 {
		t.Errorf("a forged label was applied: %v", applied.GetLabels())
	}
	pat := p.view("pat").kube("*").CoreV1().Secrets("")
	if all := must(pat.List(t.Context(), metav1.ListOptions{LabelSelector: key}))(t); len(all.Items) > 0 {
		t.Errorf("without an accepted claim, the view has %d secrets", len(all.Items))
	}
	consumer.answer(fmt.Sprintf(acceptLabelled, key, value))
	if all := must(pat.List(t.Context(), metav1.ListOptions{}))(t); len(all.Items) > 0 {
		t.Errorf("a selector of computed labels selects %d secrets", len(all.Items))
	}
	in := p.view("pat").kube(consumer.name).CoreV1().Secrets("default")
	if _, err := in.Patch(t.Context(), "forged", types.MergePatchType, []byte(`{"data":{"word":""}}`), metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a patch of an object that only its computed label selects: %v", err)
	}
	if _, err := in.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "made", Labels: forged}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a creation with a forged label: %v", err)
	}
	if err := in.Delete(t.Context(), "forged", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a deletion of an object that only its computed label selects: %v", err)
	}
}
