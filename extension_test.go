package kcp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // adds its types to the scheme
	deployments "k8s.io/kubernetes/pkg/registry/apps/deployment/storage"

	"github.com/unforked/kcp"
)

// apps is the group apps with Deployments.
func apps() kcp.Group {
	return kcp.Group{Name: "apps", Build: func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
		info := genericapiserver.NewDefaultAPIGroupInfo("apps", legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
		s, err := deployments.NewStorage(g)
		info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
			"deployments": s.Deployment, "deployments/status": s.Status, "deployments/scale": s.Scale,
		}
		return info, err
	}}
}

// settings is a view of the config maps of each cluster. The group readers may read them,
// without a right in the cluster.
type settings struct{}

func (settings) Name() string { return "settings" }

func (settings) Parse(rest string) (*kcp.ViewRequest, error) {
	at, path, _ := strings.Cut(rest, "/")
	return &kcp.ViewRequest{Home: "root", Cluster: kcp.ClusterName(at), Path: "/" + path}, nil
}

func (settings) Plan(req *http.Request, _ *kcp.ViewRequest) (*kcp.ViewPlan, error) {
	u, _ := request.UserFrom(req.Context())
	info, ok := request.RequestInfoFrom(req.Context())
	if !ok || info.Resource != "configmaps" || info.Verb != "list" {
		return nil, &kcp.ViewRefusal{Attributes: authorizer.AttributesRecord{User: u, Verb: info.Verb, Path: info.Path}, Reason: "only config maps can be listed"}
	}
	return &kcp.ViewPlan{User: u, Reason: "readers may list config maps"}, nil
}

// logs answers requests for the log of a pod.
func logs(w http.ResponseWriter, req *http.Request) {
	info, _ := request.RequestInfoFrom(req.Context())
	u, _ := request.UserFrom(req.Context())
	_, _ = fmt.Fprintf(w, "%s reads %s/%s in %s", u.GetName(), info.Namespace, info.Name, kcp.ClusterFrom(req.Context())) // the client has gone if it fails
}

// An extension adds built-in kinds, views and subresources. Clusters are isolated and RBAC applies
// as for all other requests.
func TestExtension(t *testing.T) {
	srv := start(t, &kcp.Server{Extensions: []kcp.Extension{
		{Groups: []kcp.Group{apps()}},
		{Views: []kcp.View{settings{}}},
		{Subresources: []kcp.Subresource{{Resource: schema.GroupResource{Resource: "pods"}, Name: "log", LongRunning: true, Handler: http.HandlerFunc(logs)}}},
	}})
	one, other := cluster(t, srv, "one"), cluster(t, srv, "other")
	t.Run("built-in kinds", func(t *testing.T) { usesDeployments(t, srv, one, other) })
	as := func(c *clientrest.Config) clientrest.Interface { return clients(t, c).CoreV1().RESTClient() }
	t.Run("subresources", func(t *testing.T) {
		tom, err := srv.As("one", &user.DefaultInfo{Name: "tom", Groups: []string{user.AllAuthenticated}})
		if err != nil {
			t.Fatal(err)
		}
		read := func() (string, error) {
			b, err := as(tom).Get().Namespace("default").Resource("pods").Name("web").SubResource("log").DoRaw(t.Context())
			return string(b), err
		}
		if got, err := read(); !apierrors.IsForbidden(err) {
			t.Errorf("without a right: %q, %v", got, err)
		}
		allow(t, one, "tom", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods/log"}})
		if got, err := read(); err != nil || got != "tom reads default/web in one" {
			t.Errorf("with the right: %q, %v", got, err)
		}
		_, err = as(tom).Get().Namespace("default").Resource("pods").Name("web").SubResource("exec").DoRaw(t.Context())
		if !apierrors.IsForbidden(err) {
			t.Errorf("a subresource of nobody: %v", err)
		}
	})
	t.Run("views", func(t *testing.T) {
		if _, err := one.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		ann, err := srv.As("root", &user.DefaultInfo{Name: "ann", Groups: []string{"readers", user.AllAuthenticated}})
		if err != nil {
			t.Fatal(err)
		}
		ann.Host = srv.URL() + "/services/settings/one"
		list, err := clients(t, ann).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || !slices.ContainsFunc(list.Items, func(c corev1.ConfigMap) bool { return c.Name == "mine" }) {
			t.Errorf("the view lists %v, %v", list, err)
		}
		if _, err := clients(t, ann).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only config maps") {
			t.Errorf("secrets through the view: %v", err)
		}
	})
}

// A resource whose objects are questions answers a creation, by the rules of its extension, and stores
// nothing. Its schema applies.
func TestUnstored(t *testing.T) {
	questions := schema.GroupResource{Group: "example.com", Resource: "questions"}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "questions.example.com"}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.com", Scope: apiextensionsv1.ClusterScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "questions", Kind: "Question"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"ask": {Type: "integer"}, "answer": {Type: "integer"}}}}}}}}
	srv := start(t, &kcp.Server{Extensions: []kcp.Extension{{Kinds: []*apiextensionsv1.CustomResourceDefinition{crd}, Unstored: []schema.GroupResource{questions}, Rules: []kcp.Rule{{
		Name: "Answers",
		Mutate: func(_ context.Context, r kcp.Request) error {
			if o, ok := r.GetObject().(*unstructured.Unstructured); ok && r.Is(questions) {
				o.Object["answer"] = int64(42)
			}
			return nil
		},
	}}}}})
	config, err := srv.Cluster(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	all := d.Resource(questions.WithVersion("v1"))
	question := func(ask any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Question", "metadata": map[string]any{"name": "q"}, "ask": ask}}
	}
	for range 2 { // there is no first one that it could conflict with
		made, err := all.Create(t.Context(), question(int64(1)), metav1.CreateOptions{})
		if err != nil || made.Object["answer"] != int64(42) {
			t.Fatalf("%v, %v", made, err)
		}
	}
	if _, err := all.Create(t.Context(), question("text"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("against the schema: %v", err)
	}
	if list, err := all.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%d are stored, %v", len(list.Items), err)
	}
}

// usesDeployments does what only built-in kinds can: protobuf, strategic merge patches and scale.
func usesDeployments(t *testing.T, srv *kcp.Server, one, other *kubernetes.Clientset) {
	config, err := srv.Cluster(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	inOne := clients(t, config).AppsV1().Deployments("default")
	labels := map[string]string{"app": "web"}
	made := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}}},
	}}
	if made, err = inOne.Create(t.Context(), made, metav1.CreateOptions{}); err != nil || made.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		t.Fatalf("created with strategy %q, %v", made.Spec.Strategy.Type, err)
	}
	patched, err := one.AppsV1().Deployments("default").Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","command":["sh"]}]}}}}`), metav1.PatchOptions{})
	if err != nil || patched.Spec.Template.Spec.Containers[0].Image != "nginx" || len(patched.Spec.Template.Spec.Containers[0].Command) != 1 {
		t.Errorf("patched: %+v, %v", patched.Spec.Template.Spec.Containers, err)
	}
	scale, err := inOne.GetScale(t.Context(), "web", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 1 {
		t.Errorf("scale: %v, %v", scale, err)
	}
	list, err := other.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("another cluster has %v, %v", list.Items, err)
	}
	if groups, err := other.Discovery().ServerResourcesForGroupVersion("apps/v1"); err != nil || len(groups.APIResources) != 3 {
		t.Errorf("discovery: %v, %v", groups, err)
	}
}

// allow binds a role with a rule to a user.
func allow(t *testing.T, c *kubernetes.Clientset, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	access := rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}
	_, err := c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule, access}}, metav1.CreateOptions{})
	if err == nil {
		_, err = c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Extensions that contradict each other, or the server, do not start.
func TestExtensionsThatContradict(t *testing.T) {
	for want, of := range map[string]kcp.Extension{
		`two API groups "apps"`: {Groups: []kcp.Group{apps(), apps()}},
		`/services/settings`:    {Views: []kcp.View{settings{}, settings{}}},
		`no such luck`: {Loops: func(*kcp.Server) ([]kcp.Loop, error) {
			return nil, errors.New("no such luck")
		}},
	} {
		srv := &kcp.Server{NoSync: true, Extensions: []kcp.Extension{of}}
		if err := srv.Start(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNamespaces expects that an extension learns which namespaces change in logical clusters of its choice, and can read
// their labels.
func TestNamespaces(t *testing.T) {
	changed := make(chan kcp.Key, 100)
	var none kcp.Server
	if _, _, err := none.NamespaceLabels(t.Context(), "one", "default"); err == nil {
		t.Error("a server that is not started has namespaces")
	}
	none.NamespaceChanges(func(kcp.ClusterName) bool { return true }).Subscribe(func(kcp.Key) { t.Error("it wakes a loop") })
	srv := start(t, &kcp.Server{Extensions: []kcp.Extension{{Loops: func(s *kcp.Server) ([]kcp.Loop, error) {
		only := s.NamespaceChanges(func(c kcp.ClusterName) bool { return c == "one" })
		return []kcp.Loop{{Name: "changes", On: []kcp.Source{only}, Do: func(_ context.Context, k kcp.Key) error { changed <- k; return nil }}}, nil
	}}}})
	one, other := cluster(t, srv, "one"), cluster(t, srv, "other")
	await := func(name string) {
		t.Helper()
		for {
			select {
			case k := <-changed:
				if k.Cluster != "one" {
					t.Errorf("it learns of %s", k)
				}
				if k == (kcp.Key{Cluster: "one", Name: name}) {
					return
				}
			case <-t.Context().Done():
				t.Fatalf("it does not learn of %s", name)
			}
		}
	}
	for _, c := range []*kubernetes.Clientset{other, one} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"env": "test"}}}
		if _, err := c.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await("team")
	for len(changed) > 0 {
		<-changed
	}
	if _, err := one.CoreV1().Namespaces().Patch(t.Context(), "team", types.MergePatchType, []byte(`{"metadata":{"labels":{"env":"prod"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await("team")
	for c, want := range map[kcp.ClusterName]string{"one": "prod", "other": "test"} {
		got, ok, err := srv.NamespaceLabels(t.Context(), c, "team")
		if err != nil || !ok || got["env"] != want {
			t.Errorf("the namespace of %s: %v, %t, %v", c, got, ok, err)
		}
	}
	if got, ok, err := srv.NamespaceLabels(t.Context(), "one", "none"); got != nil || ok || err != nil {
		t.Errorf("a namespace that does not exist: %v, %t, %v", got, ok, err)
	}
}
