package server_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// coreCRD returns a definition in the core group, with the changes merged over it.
func coreCRD(t testing.TB, plural string, changes ...string) *definition {
	t.Helper()
	return crd(t, plural, append([]string{fmt.Sprintf(`{"metadata": {"name": "%s.core"}, "spec": {"group": ""}}`, plural)}, changes...)...)
}

const podSchema = `{type: object, properties: {
	spec: {type: object, properties: {node: {type: string, default: any}, replicas: {type: integer, maximum: 9}}},
	status: {type: object, properties: {replicas: {type: integer}, selector: {type: string}}}}}`

// pods creates a definition of pods with status, scale and a column.
func (c *tenant) pods() *definition {
	c.t.Helper()
	return c.newKind(coreCRD(c.t, "pods", schemaOf(podSchema,
		"subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}",
		"additionalPrinterColumns: [{name: Node, type: string, jsonPath: .spec.node}]", "selectableFields: [{jsonPath: .spec.node}]"),
		"spec: {names: {shortNames: [po], categories: [all]}}"))
}

// isPod checks that an object looks like one of the core group.
func isPod(t *testing.T, when string, o *unstructured.Unstructured, generation int64) {
	t.Helper()
	if o.GetAPIVersion() != "v1" || o.GetKind() != "Pod" || o.GetGeneration() != generation {
		t.Errorf("%s: %s %s at generation %d, want v1 Pod at %d", when, o.GetAPIVersion(), o.GetKind(), o.GetGeneration(), generation)
	}
	for _, f := range o.GetManagedFields() {
		if f.APIVersion != "v1" {
			t.Errorf("%s: fields of %s are managed in version %q", when, f.Manager, f.APIVersion)
		}
	}
}

// Kinds that are not built in can be defined in the core group, in each cluster with its own
// schema.
func TestCoreGroup(t *testing.T) {
	t.Parallel()
	c, other, none := newTenant(t), newTenant(t), newTenant(t)
	d := c.pods()
	if !conditionIs(d, apiextensionsv1.Established, "True") {
		t.Fatal(d.Status)
	}
	other.newKind(coreCRD(t, "pods", "spec: {scope: Cluster}", schemaOf("{type: object, properties: {size: {type: string, enum: [S, L]}}}")))
	o := c.instance(d, "o", "spec: {replicas: 1, unknown: 2}\nstatus: {replicas: 7}")
	isPod(t, "created", o, 1)
	if text(o, "spec") != "map[node:any replicas:1]" || o.Object["status"] != nil || o.GetAnnotations()[cluster.Annotation] != string(c.name) {
		t.Errorf("created %v", o)
	}
	if _, err := c.of(d).Create(t.Context(), instance(d, "bad", "spec: {replicas: 10}"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "less than or equal to 9") {
		t.Errorf("what the schema does not allow: %v", err)
	}
	if _, err := c.of(d).Create(t.Context(), instance(d, "o"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second one: %v", err)
	}
	theirs := other.any.Resource(core("pods"))
	large := must(theirs.Create(t.Context(), instance(d, "o", "size: L"), metav1.CreateOptions{}))(t)
	if isPod(t, "elsewhere", large, 1); text(large, "size") != "L" {
		t.Errorf("elsewhere: %v", large)
	}
	if _, err := none.of(d).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("where nobody defined them: %v", err)
	}
	if _, err := c.any.Resource(core("nodes")).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what nobody defined: %v", err)
	}
	typed := must(c.kube.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}))(t)
	if len(typed.Items) != 1 || typed.Items[0].Name != "o" {
		t.Errorf("a typed client finds %v", typed.Items)
	}
	c.configMap("still")
	for name, group := range map[string]string{"in a group of the name": "core", "in another": "example.com"} {
		r := core("pods")
		if r.Group = group; group == "core" {
			r.Version = "v1"
		}
		if _, err := c.any.Resource(r).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Updates and patches increase the generation for changes of the spec only, and return
// objects in the core group's version.
func TestWritesInTheCoreGroup(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.pods()
	o := c.instance(d, "o", "spec: {replicas: 1}")
	update := func(when string, generation int64, change func(*unstructured.Unstructured), sub ...string) {
		t.Helper()
		before := o.GetResourceVersion()
		change(o)
		o = must(c.of(d).Update(t.Context(), o, metav1.UpdateOptions{FieldManager: "m"}, sub...))(t)
		if isPod(t, when, o, generation); when == "nothing changed" && o.GetResourceVersion() != before {
			t.Error("an update that changes nothing was written")
		}
	}
	update("nothing changed", 1, func(*unstructured.Unstructured) {})
	update("labelled", 1, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) })
	update("changed", 2, func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"replicas": int64(2)} })
	update("status", 2, func(o *unstructured.Unstructured) {
		o.Object["spec"], o.Object["status"] = map[string]any{}, map[string]any{"replicas": int64(3)}
	}, "status")
	if text(o, "spec", "replicas") != "2" || text(o, "status", "replicas") != "3" {
		t.Errorf("the update of its status made %v", o)
	}
	patch := func(when string, how types.PatchType, p string, generation int64, sub ...string) {
		t.Helper()
		o = must(c.of(d).Patch(t.Context(), "o", how, []byte(p), metav1.PatchOptions{}, sub...))(t)
		isPod(t, when, o, generation)
	}
	patch("merged", types.MergePatchType, `{"spec":{"replicas":3}}`, 3)
	patch("merged nothing", types.MergePatchType, `{"apiVersion":"v1","spec":{"replicas":3}}`, 3)
	patch("JSON patch", types.JSONPatchType, `[{"op":"test","path":"/apiVersion","value":"v1"},{"op":"replace","path":"/spec/replicas","value":4}]`, 4)
	patch("status merged", types.MergePatchType, `{"status":{"replicas":5}}`, 4, "status")
	scale := must(c.of(d).Get(t.Context(), "o", metav1.GetOptions{}, "scale"))(t)
	if scale.GetAPIVersion() != "autoscaling/v1" || text(scale, "spec", "replicas") != "4" || text(scale, "status", "replicas") != "5" {
		t.Errorf("scale: %v", scale)
	}
	scale.Object["spec"] = map[string]any{"replicas": int64(6)}
	must(c.of(d).Update(t.Context(), scale, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}, "scale"))(t)
	if scale = must(c.of(d).Update(t.Context(), scale, metav1.UpdateOptions{}, "scale"))(t); scale.GetAPIVersion() != "autoscaling/v1" || text(scale, "spec", "replicas") != "6" {
		t.Errorf("scaled: %v", scale)
	}
	o = must(c.of(d).Get(t.Context(), "o", metav1.GetOptions{}))(t)
	if isPod(t, "scaled", o, 5); text(o, "spec", "replicas") != "6" {
		t.Errorf("scaled: %v", o)
	}
	if _, err := c.of(d).Patch(t.Context(), "o", types.MergePatchType, []byte(`{"spec":{"replicas":99}}`), metav1.PatchOptions{}, "scale"); !apierrors.IsInvalid(err) {
		t.Errorf("scaled too far: %v", err)
	}
	stale := o.DeepCopy()
	patch("annotated", types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`, 5)
	if _, err := c.of(d).Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of what has changed: %v", err)
	}
	other := instance(d, "o")
	other.SetAPIVersion("v2")
	if _, err := c.of(d).Update(t.Context(), other, metav1.UpdateOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("in another version: %v", err)
	}
}

// Managed fields have the version that clients use.
func TestAppliedInTheCoreGroup(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.pods()
	apply := func(manager, spec string, force bool) (*unstructured.Unstructured, error) {
		return c.of(d).Apply(t.Context(), "o", instance(d, "o", "spec: "+spec), metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	o := must(apply("one", "{replicas: 1}", false))(t)
	isPod(t, "applied", o, 1)
	if again := must(apply("one", "{replicas: 1}", false))(t); again.GetResourceVersion() != o.GetResourceVersion() {
		t.Error("applying what is there was written")
	}
	if _, err := apply("two", "{replicas: 2}", false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `"one"`) {
		t.Errorf("two managers of one field: %v", err)
	}
	o = must(apply("two", "{replicas: 2}", true))(t)
	if isPod(t, "applied by two", o, 2); len(o.GetManagedFields()) != 1 || o.GetManagedFields()[0].Manager != "two" {
		t.Errorf("managed by %v", o.GetManagedFields())
	}
	o = must(c.of(d).ApplyStatus(t.Context(), "o", instance(d, "o", "status: {replicas: 2}"), metav1.ApplyOptions{FieldManager: "controller"}))(t)
	if isPod(t, "status applied", o, 2); text(o, "status", "replicas") != "2" {
		t.Errorf("status applied: %v", o)
	}
	if _, err := c.of(d).Apply(t.Context(), "p", instance(d, "p", "spec: {replicas: no}"), metav1.ApplyOptions{FieldManager: "one"}); err == nil {
		t.Error("applied what the schema does not allow")
	}
}

// A dry run of a write in the core group answers like the write.
func TestDryRunsInTheCoreGroup(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d, dry := c.pods(), []string{metav1.DryRunAll}
	isPod(t, "created", must(c.of(d).Create(t.Context(), instance(d, "o"), metav1.CreateOptions{DryRun: dry}))(t), 1)
	isPod(t, "applied", must(c.of(d).Apply(t.Context(), "o", instance(d, "o"), metav1.ApplyOptions{DryRun: dry, FieldManager: "m"}))(t), 1)
	if n := c.stored(d); n != 0 {
		t.Fatalf("dry runs made %d", n)
	}
	o := c.instance(d, "o", "metadata: {finalizers: ["+hold+"]}")
	isPod(t, "patched", must(c.of(d).Patch(t.Context(), "o", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{DryRun: dry}))(t), 2)
	isPod(t, "updated", must(c.of(d).Update(t.Context(), o, metav1.UpdateOptions{DryRun: dry}))(t), 1)
	isPod(t, "status", must(c.of(d).UpdateStatus(t.Context(), o, metav1.UpdateOptions{DryRun: dry}))(t), 1)
	for _, options := range []metav1.DeleteOptions{{DryRun: dry}, {}} {
		if err := c.of(d).Delete(t.Context(), "o", options); err != nil {
			t.Fatal(err)
		}
	}
	release := []byte(`{"metadata":{"finalizers":null}}`)
	isPod(t, "let go of", must(c.of(d).Patch(t.Context(), "o", types.MergePatchType, release, metav1.PatchOptions{DryRun: dry}))(t), 2)
	o = must(c.of(d).Get(t.Context(), "o", metav1.GetOptions{}))(t)
	isPod(t, "held", o, 2)
	isPod(t, "let go of in earnest", must(c.of(d).Patch(t.Context(), "o", types.MergePatchType, release, metav1.PatchOptions{}))(t), 2)
	c.await(core("pods"), "default", "o", gone)
}

// Lists and watches of the core group support all formats.
func TestReadsInTheCoreGroup(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	d := c.pods()
	other.newKind(coreCRD(t, "pods", "spec: {scope: Cluster}"))
	must(other.any.Resource(core("pods")).Create(t.Context(), instance(d, "theirs"), metav1.CreateOptions{}))(t)
	c.instance(d, "a", "spec: {node: one}\nmetadata: {labels: {l: a}}")
	w := must(c.of(d).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"}))(t)
	defer w.Stop()
	c.instance(d, "b", "spec: {node: two}")
	must(c.of(d).Patch(t.Context(), "b", types.MergePatchType, []byte(`{"spec":{"node":"three"}}`), metav1.PatchOptions{}))(t)
	for _, sel := range []metav1.ListOptions{{LabelSelector: "l=a"}, {FieldSelector: "spec.node=one"}, {FieldSelector: "metadata.name=a"}} {
		l := must(c.of(d).List(t.Context(), sel))(t)
		if l.GetAPIVersion() != "v1" || l.GetKind() != "PodList" || len(l.Items) != 1 || l.Items[0].GetName() != "a" {
			t.Errorf("%v: %v", sel, l)
		}
	}
	if err := c.of(d).Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ADDED a 1", "ADDED b 1", "MODIFIED b 2", "DELETED b 2"} {
		e := next(t, w)
		o := e.Object.(*unstructured.Unstructured)
		if got := fmt.Sprint(e.Type, " ", o.GetName(), " ", o.GetGeneration()); got != want || o.GetAPIVersion() != "v1" {
			t.Errorf("event %s of %s, want %s", got, o.GetAPIVersion(), want)
		}
	}
	var table metav1.Table
	raw := must(c.kube.CoreV1().RESTClient().Get().Namespace("default").Resource("pods").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context()))(t)
	if err := json.Unmarshal(raw, &table); err != nil || len(table.ColumnDefinitions) != 2 || len(table.Rows) != 1 || fmt.Sprint(table.Rows[0].Cells) != "[a one]" {
		t.Errorf("table: %v %s", err, raw)
	}
	partial := must(must(metadata.NewForConfig(c.config()))(t).Resource(core("pods")).Namespace("default").List(t.Context(), metav1.ListOptions{}))(t)
	if len(partial.Items) != 1 || partial.Items[0].Name != "a" {
		t.Errorf("metadata: %v", partial)
	}
	everywhere := must(metadata.NewForConfig(c.server.InProcess(string(cluster.All), server.System())))(t).Resource(core("pods"))
	in := map[string]cluster.Name{}
	for _, o := range must(everywhere.List(t.Context(), metav1.ListOptions{}))(t).Items {
		in[o.Name] = cluster.Of(&o)
	}
	if in["a"] != c.name || in["theirs"] != other.name {
		t.Errorf("in all clusters there are %v", in)
	}
	for _, other := range []schema.GroupVersionResource{{Version: "v2", Resource: "pods"}, {Group: "core", Version: "v1", Resource: "pods"}} {
		if _, err := must(metadata.NewForConfig(c.server.InProcess(string(cluster.All), server.System())))(t).Resource(other).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%v in all clusters: %v", other, err)
		}
	}
	all := must(everywhere.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=late-" + string(c.name)}))(t)
	defer all.Stop()
	c.instance(d, "late-"+string(c.name))
	if e := next(t, all); e.Type != watch.Added {
		t.Errorf("in all clusters there comes %v", e)
	}
	if err := c.of(d).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if n := c.stored(d); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Discovery and OpenAPI contain the kinds defined in the core group next to the built-in
// ones, in their cluster only.
func TestDiscoveryOfTheCoreGroup(t *testing.T) {
	t.Parallel()
	c, none := newTenant(t), newTenant(t)
	c.pods()
	for tenant, want := range map[*tenant]bool{c: true, none: false} {
		client := must(discovery.NewDiscoveryClientForConfig(tenant.config()))(t)
		older := client.WithLegacy()
		for form, from := range map[string]discovery.DiscoveryInterface{"aggregated": client, "older": older} {
			found := map[string]metav1.APIResource{}
			_, lists, err := from.ServerGroupsAndResources()
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lists {
				for _, r := range l.APIResources {
					if l.GroupVersion == "v1" {
						found[r.Name] = r
					}
				}
			}
			pod := found["pods"]
			if _, scale := found["pods/scale"]; (pod.Kind == "Pod") != want || scale != want || found["configmaps"].Kind != "ConfigMap" {
				t.Errorf("%s discovery finds %v", form, found)
			}
			if want && (!slices.Contains(pod.Verbs, "deletecollection") || !slices.Equal(pod.ShortNames, []string{"po"}) || pod.SingularName != "pod" || !pod.Namespaced) {
				t.Errorf("%s discovery says %v", form, pod)
			}
		}
		for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1"} {
			raw := string(must(tenant.kube.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context()))(t))
			if strings.Contains(raw, `"/api/v1/namespaces/{namespace}/pods/{name}/status"`) != want || !strings.Contains(raw, `"/api/v1/namespaces/{namespace}/configmaps/{name}"`) || strings.Contains(raw, "/apis//") {
				t.Errorf("%s in the cluster that defines pods (%t): wrong paths", path, want)
			}
		}
	}
}

// Validation rules of a schema see objects in the core group and their version.
func TestRulesInTheCoreGroup(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(coreCRD(t, "pods", schemaOf(`{type: object, properties: {spec: {type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf", message: "it is fixed"}]}}}},
		x-kubernetes-validations: [{rule: "self.apiVersion == 'core/v1' && self.metadata.name.startsWith('p')", message: "odd"}]}`)))
	isPod(t, "created", c.instance(d, "p", "spec: {a: b}"), 1)
	if _, err := c.of(d).Create(t.Context(), instance(d, "q"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "odd") {
		t.Errorf("of another name: %v", err)
	}
	if _, err := c.of(d).Patch(t.Context(), "p", types.MergePatchType, []byte(`{"spec":{"a":"c"}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "it is fixed") {
		t.Errorf("what is fixed has changed: %v", err)
	}
	if _, err := c.of(d).Patch(t.Context(), "p", types.MergePatchType, []byte(`{"apiVersion":"v2"}`), metav1.PatchOptions{}); err == nil || strings.Contains(err.Error(), "core/v1") {
		t.Errorf("moved to another version: %v", err)
	}
}

// Roles can grant rights on defined kinds of the core group like on built-in ones.
func TestRolesInTheCoreGroup(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.pods()
	c.instance(d, "o")
	if _, err := c.kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	as := must(dynamic.NewForConfig(c.withToken(c.token("reader"))))(t).Resource(core("pods")).Namespace("default")
	if _, err := as.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `cannot list resource "pods" in API group ""`) {
		t.Errorf("without a role: %v", err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	if _, err := c.kube.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}}}
	if _, err := c.kube.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if l, err := as.List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
		t.Errorf("with a role: %v, %v", l, err)
	}
	if err := as.Delete(t.Context(), "o", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("more than the role allows: %v", err)
	}
}

// Objects in the core group can own and be owned. They are deleted with their namespace and
// with their definition.
func TestCoreGroupIsCollected(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.pods()
	top := c.instance(d, "top")
	owned := instance(d, "owned")
	owner := c.configMap("owner", metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "top", UID: top.GetUID()})
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}})
	must(c.of(d).Create(t.Context(), owned, metav1.CreateOptions{}))(t)
	c.caughtUp()
	c.stays("owner")
	how := metav1.DeletePropagationForeground
	if err := c.of(d).Delete(t.Context(), "top", metav1.DeleteOptions{PropagationPolicy: &how}); err != nil {
		t.Fatal(err)
	}
	c.awaitConfigMap("owner", gone)
	for _, name := range []string{"owned", "top"} {
		c.await(core("pods"), "default", name, gone)
	}
	c.namespace("n")
	in := c.any.Resource(core("pods")).Namespace("n")
	must(in.Create(t.Context(), instance(d, "goes"), metav1.CreateOptions{}))(t)
	if err := c.kube.CoreV1().Namespaces().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("namespaces"), "", "n", gone)
	c.instance(d, "last")
	c.instance(d, "held", "metadata: {finalizers: ["+hold+"]}")
	c.undefine(d.Name)
	c.untilTold(d.Name, apiextensionsv1.Terminating, "True", "default/held is kept by finalizers")
	if _, err := c.of(d).Create(t.Context(), instance(d, "late"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("created while its definition goes: %v", err)
	}
	isPod(t, "let go of", must(c.of(d).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t), 2)
	c.undefined(d)
	c.configMap("still")
}

// Built-in names of the core group cannot be defined.
func TestReservedInTheCoreGroup(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	for _, plural := range []string{"namespaces", "configmaps", "secrets", "events", "serviceaccounts", "resourcequotas"} {
		if _, err := c.crds().Create(t.Context(), coreCRD(t, plural), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), plural+" is served by the server itself") {
			t.Errorf("%s: %v", plural, err)
		}
	}
	for name, names := range map[string]string{"cm": "shortNames: [cm]", "secret": "singular: secret", "Namespace": "kind: Namespace", "EventList": "listKind: EventList"} {
		d := c.newKind(coreCRD(t, "things", "spec: {names: {"+names+"}}"))
		if conditionIs(d, apiextensionsv1.Established, "True") || !strings.Contains(fmt.Sprint(d.Status.Conditions), fmt.Sprintf("%q is already in use by the server; choose another name", name)) {
			t.Errorf("%s: %v", names, d.Status)
		}
		c.undefine(d.Name)
		c.await(definitions, "", d.Name, gone)
	}
	for name, tc := range map[string]struct{ change, words string }{
		"version":        {"spec: {versions: [{name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}", `spec.versions[0].name: Invalid value: "v2": must be v1`},
		"name":           {"metadata: {name: things.example.com}", `metadata.name: Invalid value: "things.example.com": must be spec.names.plural+".core"`},
		"another's name": {"metadata: {name: pods.core}", `metadata.name: Invalid value: "pods.core": must be spec.names.plural+".core"`},
		"no dot":         {"metadata: {name: things}", `metadata.name: Invalid value: "things": must be`},
		"of the group":   {"spec: {group: core.kcp.io}", `metadata.name: Invalid value`},
		"schema":         {schemaOf("{type: string}"), "openAPIV3Schema.type: Invalid value"},
	} {
		_, err := c.crds().Create(t.Context(), coreCRD(t, "things", tc.change), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.words) || strings.Contains(err.Error(), "things.core.kcp.io") {
			t.Errorf("%s: %v", name, err)
		}
	}
	d := c.newKind(coreCRD(t, "things"))
	for change, words := range map[string]string{"spec: {group: example.com}": "spec.group: Invalid value", "spec: {names: {plural: others}}": "spec.names.plural: Invalid value",
		"spec: {versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}, {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}": `"v2": must be v1`} {
		if _, err := c.redefine(d.Name, change); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", change, err)
		}
	}
	if d := must(c.redefine(d.Name, "spec: {names: {shortNames: [th]}}"))(t); !slices.Equal(d.Status.AcceptedNames.ShortNames, []string{"th"}) {
		t.Errorf("renamed: %v", d.Status)
	}
}
