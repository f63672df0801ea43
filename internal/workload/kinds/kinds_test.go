package kinds_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsconfig "k8s.io/client-go/applyconfigurations/apps/v1"
	coreconfig "k8s.io/client-go/applyconfigurations/core/v1"
	metaconfig "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/unforked/kcp/kcptest"
)

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}}},
	}}
}

// A bound Deployment has what only registries of Kubernetes give: protobuf, defaults, validation,
// strategic merge patches, a scale, printed columns and the schema of its fields.
func TestDeployment(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, "deployments.apps"))
	web := typed(t, c).AppsV1().Deployments("default")
	made, err := web.Create(t.Context(), deployment("web"), metav1.CreateOptions{})
	if err != nil || *made.Spec.Replicas != 1 || made.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || made.Generation != 1 {
		t.Fatalf("created: %s, %v", text(made), err)
	}
	wrong := deployment("wrong")
	wrong.Spec.Selector.MatchLabels = map[string]string{"app": "another"}
	if _, err := web.Create(t.Context(), wrong, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.template.metadata.labels") {
		t.Errorf("a selector that does not match: %v", err)
	}
	patched, err := web.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","command":["sh"]}]}}}}`), metav1.PatchOptions{})
	if err != nil || patched.Spec.Template.Spec.Containers[0].Image != "nginx" || len(patched.Spec.Template.Spec.Containers[0].Command) != 1 || patched.Generation != 2 {
		t.Errorf("patched: %s, %v", text(patched), err)
	}
	scaled, err := web.UpdateScale(t.Context(), "web", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, metav1.UpdateOptions{})
	if err != nil || scaled.Spec.Replicas != 3 || scaled.Status.Selector != "app=web" {
		t.Errorf("scaled: %s, %v", text(scaled), err)
	}
	if table, err := get(t, c, "/apis/apps/v1/namespaces/default/deployments", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1"); err != nil || !strings.Contains(table, "Up-to-date") || !strings.Contains(table, "0/3") {
		t.Errorf("printed: %s, %v", table, err)
	}
	if doc, err := get(t, c, "/openapi/v3/apis/apps/v1"); err != nil || !strings.Contains(doc, "io.k8s.api.apps.v1.DeploymentSpec") || strings.Contains(doc, "io.k8s.api.apps.v1.StatefulSet") {
		t.Errorf("OpenAPI: %v, %.200s", err, doc)
	}
	if doc, err := get(t, c, "/openapi/v2", "Accept: application/json"); err != nil || !strings.Contains(doc, "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale") || strings.Contains(doc, "io.k8s.api.apps.v1.StatefulSet") {
		t.Errorf("OpenAPI v2: %v", err)
	}
}

// Fields have owners, and the status belongs to others than the rest.
func TestApply(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, "deployments.apps"))
	web := typed(t, c).AppsV1().Deployments("default")
	want := func(image string) *appsconfig.DeploymentApplyConfiguration {
		labels := map[string]string{"app": "web"}
		return appsconfig.Deployment("web", "default").WithSpec(appsconfig.DeploymentSpec().WithSelector(metaconfig.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreconfig.PodTemplateSpec().WithLabels(labels).WithSpec(coreconfig.PodSpec().WithContainers(coreconfig.Container().WithName("web").WithImage(image)))))
	}
	for _, image := range []string{"one", "two"} {
		got, err := web.Apply(t.Context(), want(image), metav1.ApplyOptions{FieldManager: "first"})
		if err != nil || got.Spec.Template.Spec.Containers[0].Image != image {
			t.Fatalf("applied %s: %v", image, err)
		}
	}
	if _, err := web.Apply(t.Context(), want("three"), metav1.ApplyOptions{FieldManager: "second"}); !apierrors.IsConflict(err) {
		t.Errorf("applied by another: %v", err)
	}
	status := appsconfig.Deployment("web", "default").WithStatus(appsconfig.DeploymentStatus().WithReplicas(1).WithReadyReplicas(1)).WithSpec(appsconfig.DeploymentSpec().WithReplicas(9))
	got, err := web.ApplyStatus(t.Context(), status, metav1.ApplyOptions{FieldManager: "agent"})
	if err != nil || got.Status.ReadyReplicas != 1 || *got.Spec.Replicas != 1 || got.Generation != 2 {
		t.Errorf("applied the status: %s, %v", text(got), err)
	}
}

// Where nothing is bound, there is no such kind. After unbinding its objects are gone.
func TestUnbound(t *testing.T) {
	t.Parallel()
	p := provider(t, everything()...)
	c := universe.New(t)
	absent := func() {
		t.Helper()
		if groups, err := typed(t, c).Discovery().ServerGroups(); err != nil || slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "apps" || g.Name == "networking.k8s.io" }) {
			t.Errorf("groups: %s, %v", text(groups), err)
		}
		if core, err := get(t, c, "/api/v1"); err != nil || strings.Contains(core, "services") || !strings.Contains(core, "configmaps") {
			t.Errorf("core group: %s, %v", core, err)
		}
		if doc, err := get(t, c, "/openapi/v3/api/v1"); err != nil || strings.Contains(doc, "/services") {
			t.Errorf("OpenAPI of the core group: %v", err)
		}
		for _, path := range []string{"/apis/apps/v1/deployments", "/api/v1/services", "/openapi/v3/apis/apps/v1", "/apis/apps/v1"} {
			if got, err := get(t, c, path); !apierrors.IsNotFound(err) {
				t.Errorf("%s: %.200s, %v", path, got, err)
			}
		}
	}
	absent()
	bind(t, c, p)
	if _, err := typed(t, c).AppsV1().Deployments("default").Create(t.Context(), deployment("web"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if core, err := get(t, c, "/api/v1"); err != nil || !strings.Contains(core, `"services/status"`) || !strings.Contains(core, "configmaps") {
		t.Errorf("core group: %s, %v", core, err)
	}
	unbind(t, c)
	absent()
	bind(t, c, p)
	if left, err := typed(t, c).AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != 0 {
		t.Errorf("after unbinding: %v, %v", left, err)
	}
}

// Exports of what the server does not offer are refused.
func TestNotOffered(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]*kcptest.Cluster{"it offers cronjobs.batch, ": universe.New(t), "this server has no native kinds to export": without.New(t)} {
		_, err := of.Dynamic.Resource(exports).Create(t.Context(), export("kubernetes", "gizmos.apps"), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %s", err, name)
		}
	}
	both := export("kubernetes", "deployments.apps")
	both.Object["spec"].(map[string]any)["resources"].([]any)[0].(map[string]any)["schema"] = "v1.deployments.apps"
	if _, err := universe.New(t).Dynamic.Resource(exports).Create(t.Context(), both, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "schema must be set, unless") {
		t.Errorf("a schema of one's own: %v", err)
	}
}
