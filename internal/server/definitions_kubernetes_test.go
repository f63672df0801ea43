package server_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
)

// kubernetesCRD returns a definition in a group of Kubernetes, with the changes merged over
// it.
func kubernetesCRD(t testing.TB, plural, group string, changes ...string) *definition {
	t.Helper()
	return crd(t, plural, append([]string{`{"metadata": {"name": "` + plural + "." + group + `"}, "spec": {"group": "` + group + `"}}`}, changes...)...)
}

const deploymentSchema = `{type: object, properties: {
	spec: {type: object, properties: {replicas: {type: integer, default: 1}, selector: {type: object, x-kubernetes-preserve-unknown-fields: true}, strategy: {type: object},
		template: {type: object, properties: {metadata: {type: object, x-kubernetes-preserve-unknown-fields: true}, spec: {type: object, properties: {
			containers: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, image: {type: string}, resources: {type: object}}}}}}}}}},
	status: {type: object, properties: {replicas: {type: integer}}}}}`

// Definitions in the groups of Kubernetes without a dot are served. Typed clients can use
// their objects.
func TestDefinitionsInKubernetesGroups(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(kubernetesCRD(t, "deployments", "apps", schemaOf(deploymentSchema, "subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}"),
		"spec: {names: {shortNames: [deploy], categories: [all]}}"))
	if !conditionIs(d, apiextensionsv1.Established, "True") {
		t.Fatal(d.Status)
	}
	all := c.kube.AppsV1().Deployments("default")
	o := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	o.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "one"}}
	o = must(all.Create(t.Context(), o, metav1.CreateOptions{}))(t) // in protobuf
	if *o.Spec.Replicas != 1 || o.Spec.Template.Spec.Containers[0].Image != "one" {
		t.Errorf("created %v", o.Spec)
	}
	o = must(all.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"b","image":"two"}]}}}}`), metav1.PatchOptions{}))(t)
	if len(o.Spec.Template.Spec.Containers) != 2 {
		t.Errorf("patched by strategic merge to %v", o.Spec.Template.Spec.Containers)
	}
	applied := must(all.Patch(t.Context(), "web", types.ApplyPatchType, []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"template":{"spec":{"containers":[{"name":"b","image":"three"}]}}}}`),
		metav1.PatchOptions{FieldManager: "ci", Force: new(true)}))(t)
	if got := applied.Spec.Template.Spec.Containers; len(got) != 2 || got[0].Image+got[1].Image != "threeone" && got[0].Image+got[1].Image != "onethree" {
		t.Errorf("applied to %v", got)
	}
	must(all.UpdateScale(t.Context(), "web", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: autoscalingv1.ScaleSpec{Replicas: 4}}, metav1.UpdateOptions{}))(t)
	o = must(all.Get(t.Context(), "web", metav1.GetOptions{}))(t)
	if *o.Spec.Replicas != 4 {
		t.Errorf("scaled to %d", *o.Spec.Replicas)
	}
	client := must(discovery.NewDiscoveryClientForConfig(c.config()))(t)
	resources := must(client.ServerResourcesForGroupVersion("apps/v1"))(t)
	if len(resources.APIResources) != 3 || resources.APIResources[0].ShortNames[0] != "deploy" {
		t.Errorf("discovery has %v", resources.APIResources)
	}
	for _, group := range []string{"autoscaling", "batch", "extensions", "policy"} {
		one := c.newKind(kubernetesCRD(t, "things", group))
		c.instance(one, "o")
		resources := must(client.ServerResourcesForGroupVersion(group + "/v1"))(t)
		if len(resources.APIResources) != 1 {
			t.Errorf("discovery has %v", resources.APIResources)
		}
		if _, err := c.redefine(one.Name, `{"spec":{"group":"apps"}}`); !apierrors.IsInvalid(err) {
			t.Errorf("%s moved to another group: %v", one.Name, err)
		}
		if _, err := c.redefine(one.Name, `{"spec":{"names":{"shortNames":["th"]}}}`); err != nil {
			t.Errorf("%s changed: %v", one.Name, err)
		}
	}
	for name, tt := range map[string]struct {
		d    *definition
		says []string
	}{
		"another name": {kubernetesCRD(t, "jobs", "batch", `{"metadata": {"name": "jobs.apps"}}`), []string{`"jobs.apps"`, `spec.names.plural+"."+spec.group`}},
		"no group":     {kubernetesCRD(t, "jobs", "work"), []string{`spec.group: Invalid value: "work": should be a domain with at least one dot`}},
		"core":         {kubernetesCRD(t, "jobs", "core"), []string{`spec.group: Invalid value: "core"`}},
	} {
		_, err := c.crds().Create(t.Context(), tt.d, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range tt.says {
			if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "kcp.io") {
				t.Errorf("%s: %v, not %s", name, err, text)
			}
		}
	}
}

// Errors for resources that are not served are readable, and clients recognize them as a
// missing resource.
func TestUnservedResources(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	_, err := c.kube.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		t.Fatalf("%#v", err)
	}
	for _, text := range []string{"the server could not find the requested resource", "deployments.apps", "no containers", "kubectl api-resources", "docs/custom-resources.md"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v, without %q", err, text)
		}
	}
	v := c.owner()
	for path, says := range map[string]string{
		"/api/v1/namespaces/default/pods":          "this one serves no pods;",
		"/api/v1/namespaces/default/pods/p/log":    "this one serves no pods;",
		"/apis/example.com/v1/widgets":             "this workspace serves no widgets.example.com;",
		"/apis/rbac.authorization.k8s.io/v1/oaths": "this workspace serves no oaths.rbac.authorization.k8s.io;",
	} {
		if a := v.send("GET", c.path(path), ""); a.code != 404 || !strings.Contains(a.body, says) || !strings.Contains(a.body, `"reason":"NotFound"`) {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
	}
	// Users who may not enter get 403 for served and unserved resources alike.
	if a := c.nobody().send("GET", c.path("/api/v1/pods"), ""); a.code != 403 {
		t.Errorf("a stranger: %d %s", a.code, a.body)
	}
}

// Clients of the Go library print a refusal of discovery only if it is plain text.
func TestRefusedDiscovery(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	for _, at := range []string{c.path(""), "/clusters/nowhere"} {
		for _, root := range []string{"/api", "/apis"} {
			a := c.nobody().send("GET", at+root, "", "Accept", aggregated)
			if a.code != 403 || !strings.HasPrefix(a.body, `forbidden: User "nobody" cannot get path "`+root+`": access denied; you may not enter this workspace, or it does not exist: `) {
				t.Errorf("%s%s: %d %s", at, root, a.code, a.body)
			}
			if a = c.nobody().send("GET", at+root, ""); a.code != 403 || !strings.Contains(a.body, `"reason":"Forbidden"`) {
				t.Errorf("%s%s as a Status: %d %s", at, root, a.code, a.body)
			}
		}
	}
	if a := c.owner().send("GET", c.path("/apis"), "", "Accept", aggregated); a.code != 200 || !strings.Contains(a.body, "APIGroupDiscoveryList") {
		t.Errorf("the owner: %d %s", a.code, a.body)
	}
	config := c.withToken("nobodys-token")
	_, err := must(discovery.NewDiscoveryClientForConfig(config))(t).ServerGroups()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubectl ws share") {
		t.Errorf("client-go says %v", err)
	}
}

// The older discovery lists have a kind, a version and the server address.
func TestOlderDiscovery(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	v := c.owner()
	for _, path := range []string{"/api", "/apis"} {
		a := v.send("GET", c.path(path), "")
		if a.code != 200 || strings.Contains(a.body, "kcp:443") || !strings.Contains(a.body, `"serverAddress":"127.0.0.1:`) {
			t.Errorf("%s: %d %.300s", path, a.code, a.body)
		}
		if path == "/apis" && !strings.HasPrefix(strings.TrimSpace(a.body), `{"kind":"APIGroupList","apiVersion":"v1"`) {
			t.Errorf("%.300s", a.body)
		}
	}
}

// A watch with an invalid resource version gets 400, like a list.
func TestWatchFromNonsense(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "things"))
	v := c.owner()
	for _, path := range []string{"/api/v1/configmaps", "/apis/example.com/v1/" + d.Spec.Names.Plural} {
		for _, verb := range []string{"", "&watch=1"} {
			if a := v.send("GET", c.path(path+"?resourceVersion=abc"+verb), ""); a.code != 400 || !strings.Contains(a.body, "invalid resource version") {
				t.Errorf("%s%s: %d %s", path, verb, a.code, a.body)
			}
		}
	}
}
