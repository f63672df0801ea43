//go:build unix

package physical

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	schemas "github.com/unforked/kcp/apis/apis/v1alpha1"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/test/stock"
)

const engines = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: engines.example.com}
spec:
  group: example.com
  names: {plural: engines, singular: engine, kind: Engine, listKind: EngineList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

func engineResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "engines"}
}

// Custom resources are placed as a ResourceProfile says; existing objects are adopted, and left behind.
func TestProfilesAndOwnership(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "west")
	w.compute(t, "compute", "east", "west")
	w.offerEngines(t)
	s := w.shop(t, "shop", "compute")
	t.Run("custom resources", func(t *testing.T) { s.customResources(t) })
	t.Run("a foreground deletion waits for the copy", func(t *testing.T) {
		s.engine(t, "slow")
		s.outlivesCopies(t, engineResource(), "slow", 1)
	})
	t.Run("a kind that the clusters do not serve", func(t *testing.T) { s.notServed(t) })
	t.Run("clusters that do not accept an object", func(t *testing.T) { w.shop(t, "picky", "compute").refusedObjects(t) })
	t.Run("adoption", func(t *testing.T) { s.adopts(t) })
	t.Run("deletion that orphans", func(t *testing.T) { s.deletesWithoutCopies(t) })
	t.Run("a singleton waits for its lost cluster", func(t *testing.T) { s.singletonIsLost(t) })
	t.Run("unsync that orphans", func(t *testing.T) { s.unsyncsWithoutCopies(t) })
}

// offerEngines adds a resource to the export of the compute workspace, with a profile.
func (w *world) offerEngines(t *testing.T) {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(engines), crd); err != nil {
		t.Fatal(err)
	}
	made, err := schemas.FromCustomResourceDefinition(crd, "v1")
	if err != nil {
		t.Fatal(err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(made)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: content}
	o.SetGroupVersionKind(schemas.GroupVersion.WithKind("APIResourceSchema"))
	home := w.in(t, "compute")
	if _, err := home.Resource(schemas.GroupVersion.WithResource("apiresourceschemas")).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/resources/-","value":{"group":"example.com","name":"engines","schema":%q,"storage":{"crd":{}}}}]`, made.Name)
	if _, err := home.Resource(apis.GroupVersion.WithResource("apiexports")).Patch(t.Context(), "kubernetes", "application/json-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	profiles := home.Resource(schema.GroupVersionResource{Group: "workload.kcp.io", Version: "v1alpha1", Resource: "resourceprofiles"})
	profile := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "workload.kcp.io/v1alpha1", "kind": "ResourceProfile",
		"metadata": map[string]any{"name": "engines.example.com"}, "spec": map[string]any{"group": "example.com", "version": "v1", "resource": "engines", "conditions": true}}}
	eventually(t, "profile", func() error {
		_, err := profiles.Create(t.Context(), profile, metav1.CreateOptions{})
		return err
	})
}

// define defines engines in the physical cluster.
func (c *cluster) define(t *testing.T, definition string) {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(definition), &o.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := dynamicFor(t, c.Config(stock.AdminToken)).Resource(definitions).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "engines", func() error {
		_, err := dynamicFor(t, c.Config(stock.AdminToken)).Resource(engineResource()).List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// undefine deletes the definition of engines.
func (c *cluster) undefine(t *testing.T) {
	t.Helper()
	if err := dynamicFor(t, c.Config(stock.AdminToken)).Resource(definitions).Delete(t.Context(), "engines.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) engine(t *testing.T, name string) {
	t.Helper()
	s.engineOf(t, name, map[string]any{"power": int64(3)})
}

func (s *tenant) engineOf(t *testing.T, name string, spec map[string]any) {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Engine", "metadata": map[string]any{"name": name}, "spec": spec}}
	if _, err := s.dynamic.Resource(engineResource()).Namespace("default").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// customResources expects a custom resource at one cluster, with its status in the workspace.
func (s *tenant) customResources(t *testing.T) {
	for _, c := range s.clusters {
		c.define(t, engines)
	}
	s.engine(t, "one")
	eventually(t, "the copy", func() error {
		found := 0
		for _, c := range s.clusters {
			list, err := dynamicFor(t, c.Config(stock.AdminToken)).Resource(engineResource()).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, o := range list.Items {
				found++
				if _, has := o.Object["status"]; has {
					continue
				}
				// A controller of the physical cluster.
				patch := []byte(`{"status":{"speed":7,"conditions":[{"type":"Ready","status":"True"}]}}`)
				if _, err := dynamicFor(t, c.Config(stock.AdminToken)).Resource(engineResource()).Namespace(o.GetNamespace()).Patch(t.Context(), "one", "application/merge-patch+json", patch, metav1.PatchOptions{}, "status"); err != nil {
					return err
				}
			}
		}
		if found != 1 {
			return fmt.Errorf("%d copies", found)
		}
		return nil
	})
	eventually(t, "its status", func() error {
		o, err := s.dynamic.Resource(engineResource()).Namespace("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(o.Object["status"]), "speed:7") {
			err = fmt.Errorf("%v", o.Object)
		}
		return err
	})
	if err := s.dynamic.Resource(engineResource()).Namespace("default").Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "removal", func() error {
		for _, c := range s.clusters {
			list, err := dynamicFor(t, c.Config(stock.AdminToken)).Resource(engineResource()).List(t.Context(), metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("it is there")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// notServed expects the reason in the workspace.
func (s *tenant) notServed(t *testing.T) {
	for _, c := range s.clusters {
		c.undefine(t)
	}
	s.engine(t, "two")
	eventually(t, "condition", func() error {
		o, err := s.dynamic.Resource(engineResource()).Namespace("default").Get(t.Context(), "two", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(o.Object["status"]), "does not serve engines.example.com") {
			err = fmt.Errorf("%v", o.Object["status"])
		}
		return err
	})
	if err := s.dynamic.Resource(engineResource()).Namespace("default").Delete(t.Context(), "two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "removal", func() error {
		_, err := s.dynamic.Resource(engineResource()).Namespace("default").Get(t.Context(), "two", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("it exists")
		}
		return ignoreMissing(err)
	})
}

// foreign creates a Deployment in the physical namespace of the workspace's namespace, by another client.
func (s *tenant) foreign(t *testing.T, at, name string, replicas int32) *appsv1.Deployment {
	t.Helper()
	namespace := s.clusters[at].only(t, "anchor").Namespace
	d := deployment(name, replicas)
	d.Spec.Template.Spec.AutomountServiceAccountToken = new(false) // as the server has it in physical clusters
	made, err := s.clusters[at].AppsV1().Deployments(namespace).Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (s *tenant) adopts(t *testing.T) {
	s.create(t, "anchor", 2)
	s.rolledOut(t, "anchor")
	for _, c := range []struct {
		policy   string
		replicas int32 // of the existing object; 2 are wanted
		want     bool
	}{{"Adopt", 2, true}, {"Adopt", 1, false}, {"AdoptIfEqual", 2, true}, {"AdoptIfEqual", 1, false}, {"Overwrite", 1, true}} {
		s.place(t, fmt.Sprintf(`{"spec":{"conflict":%q}}`, c.policy))
		name := fmt.Sprintf("%s-%d", strings.ToLower(c.policy), c.replicas)
		theirs := s.foreign(t, "east", name, c.replicas)
		s.create(t, name, 4)
		eventually(t, name, func() error {
			now := s.clusters["east"].only(t, name)
			d, err := s.AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			refused := strings.Contains(fmt.Sprint(d.Status.Conditions), "was not created by this workspace")
			if now.UID != theirs.UID || c.want == refused || c.want && (*now.Spec.Replicas != 2 || now.Labels["internal.workload.kcp.io/cluster"] == "") {
				return fmt.Errorf("refused: %v, %d replicas, labels %v", refused, *now.Spec.Replicas, now.Labels)
			}
			return nil
		})
		s.remove(t, name)
		if c.want {
			s.clusters["east"].lacks(t, name)
		} else if left := s.clusters["east"].only(t, name); left.UID != theirs.UID || *left.Spec.Replicas != c.replicas {
			t.Errorf("%s is touched: %+v", name, left)
		}
	}
	s.place(t, `{"spec":{"conflict":null}}`)
}

func (s *tenant) deletesWithoutCopies(t *testing.T) {
	s.place(t, `{"spec":{"deletion":"Orphan"}}`)
	s.configMap(t, "kept", "value")
	s.using(t, "orphan", 2, "kept", "absent", "")
	s.rolledOut(t, "orphan")
	for _, c := range s.clusters {
		c.has(t, "kept", "value")
	}
	eventually(t, "the policy is settled", func() error {
		list, err := s.dynamic.Resource(schema.GroupVersionResource{Group: "workload.kcp.io", Version: "v1alpha1", Resource: "assignments"}).Namespace("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(list.Items), "deletion:Orphan") {
			err = fmt.Errorf("%v", list.Items)
		}
		return err
	})
	s.remove(t, "orphan")
	for name, c := range s.clusters {
		if d := c.only(t, "orphan"); d.Labels["internal.workload.kcp.io/cluster"] != "" || d.DeletionTimestamp != nil {
			t.Errorf("%s: %+v", name, d.ObjectMeta)
		}
		c.has(t, "kept", "value")
	}
	s.place(t, `{"spec":{"deletion":null}}`)
}

// singletonIsLost expects that a StatefulSet is not started elsewhere while it may still run at the lost one.
func (s *tenant) singletonIsLost(t *testing.T) {
	s.place(t, `{"spec":{"tolerations":[{"key":"workload.kcp.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":1}]}}`)
	s.statefulSet(t, "one")
	at := s.setRolledOut(t, "one")
	other := map[string]string{"east": "west", "west": "east"}[at]
	s.clusters[at].signal(t, syscall.SIGSTOP)
	stopped := true
	t.Cleanup(func() {
		if stopped {
			s.clusters[at].signal(t, syscall.SIGCONT)
		}
	})
	eventually(t, "condition", func() error {
		o, err := s.AppsV1().StatefulSets("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(o.Status.Conditions), "NotFenced") {
			err = fmt.Errorf("%v", o.Status.Conditions)
		}
		return err
	})
	list, err := s.clusters[other].AppsV1().StatefulSets("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("%d copies at %s, %v", len(list.Items), other, err)
	}
	s.clusters[at].signal(t, syscall.SIGCONT)
	stopped = false
	eventually(t, "it goes on", func() error {
		o, err := s.AppsV1().StatefulSets("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err == nil && (strings.Contains(fmt.Sprint(o.Status.Conditions), "NotFenced") || o.Status.ReadyReplicas != 2) {
			err = fmt.Errorf("%v", o.Status)
		}
		return err
	})
	if err := s.AppsV1().StatefulSets("default").Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) unsyncsWithoutCopies(t *testing.T) {
	s.create(t, "stays", 4)
	s.rolledOut(t, "stays")
	if _, err := s.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "stays"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.at(t, "svc/stays", "east 0/-, west 0/-")
	before := s.clusters["east"].only(t, "stays")
	must(t, "workload", "unsync", "east", "--orphan", "-w", ":root:compute")
	s.split(t, "stays", "west 4/4")
	after := s.clusters["east"].only(t, "stays")
	if after.UID != before.UID || after.Labels["internal.workload.kcp.io/cluster"] != "" || after.DeletionTimestamp != nil || *after.Spec.Replicas != 2 {
		t.Errorf("%+v", after.ObjectMeta)
	}
	if svc, err := s.clusters["east"].CoreV1().Services(before.Namespace).Get(t.Context(), "stays", metav1.GetOptions{}); err != nil || svc.DeletionTimestamp != nil {
		t.Error(err)
	}
}
