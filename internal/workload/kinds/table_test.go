package kinds_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"github.com/unforked/kcp/internal/workload/kinds"
)

// objects has a minimal object of each resource.
func objects() map[string]string {
	pods := `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	job := `{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}`
	return map[string]string{
		"deployments.apps": `{"spec":{` + pods + `}}`, "replicasets.apps": `{"spec":{` + pods + `}}`, "daemonsets.apps": `{"spec":{` + pods + `}}`,
		"statefulsets.apps": `{"spec":{"serviceName":"s",` + pods + `}}`,
		"jobs.batch":        `{"spec":` + job + `}`, "cronjobs.batch": `{"spec":{"schedule":"* * * * *","jobTemplate":{"spec":` + job + `}}}`,
		"services": `{"spec":{"selector":{"a":"b"},"ports":[{"port":80}]}}`, "endpoints": `{"subsets":[{"addresses":[{"ip":"192.0.2.1"}],"ports":[{"port":80}]}]}`,
		"persistentvolumeclaims":               `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
		"endpointslices.discovery.k8s.io":      `{"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}]}`,
		"ingresses.networking.k8s.io":          `{"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`,
		"ingressclasses.networking.k8s.io":     `{"spec":{"controller":"example.com/ingress"}}`,
		"networkpolicies.networking.k8s.io":    `{"spec":{"podSelector":{}}}`,
		"horizontalpodautoscalers.autoscaling": `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}`,
		"poddisruptionbudgets.policy":          `{"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}`,
	}
}

// The offers say of each kind what discovery says of its registry.
func TestOffersAreTheRegistries(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, everything()...))
	for _, o := range kinds.Offers(nil) {
		for _, of := range o.Resources {
			for i, v := range of.Versions {
				found := discovered(t, func(path string) (string, error) {
					return get(t, c, path, "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
				}, of.GroupResource.WithVersion(v))
				if found == nil {
					t.Errorf("%s/%s is not served", of.GroupResource, v)
					continue
				}
				if found.ResponseKind.Kind != of.Names.Kind || !slices.Equal(found.ShortNames, of.Names.ShortNames) || !slices.Equal(found.Categories, of.Names.Categories) ||
					(found.Scope == apidiscoveryv2.ScopeCluster) != of.ClusterScoped || len(found.Verbs) != 8 {
					t.Errorf("%s: %s, offered as %s", of.GroupResource, text(found), text(of))
				}
				var subresources []string
				for _, s := range found.Subresources {
					subresources = append(subresources, s.Subresource)
				}
				slices.Sort(subresources)
				var want []string
				if of.Scale {
					want = append(want, "scale")
				}
				if of.Status {
					want = append(want, "status")
				}
				if !slices.Equal(subresources, want) {
					t.Errorf("%s has the subresources %s, offered with %s", of.GroupResource, subresources, want)
				}
				if list, err := get(t, c, path(of.GroupResource.WithVersion(v), "")); err != nil || !strings.Contains(list, discovery.StorageVersionHash(of.Group, of.Versions[0], of.Names.Kind)) {
					t.Errorf("%s (%d) is not stored in version %s: %s, %v", of.GroupResource, i, of.Versions[0], list, err)
				}
			}
		}
	}
}

// path returns the path of the discovery of a version, or of its objects.
func path(gvr schema.GroupVersionResource, rest string) string {
	if gvr.Group == "" {
		return "/api/" + gvr.Version + rest
	}
	return "/apis/" + gvr.Group + "/" + gvr.Version + rest
}

func discovered(t *testing.T, read func(path string) (string, error), gvr schema.GroupVersionResource) *apidiscoveryv2.APIResourceDiscovery {
	t.Helper()
	root := "/apis"
	if gvr.Group == "" {
		root = "/api"
	}
	var all apidiscoveryv2.APIGroupDiscoveryList
	body, err := read(root)
	if err == nil {
		err = json.Unmarshal([]byte(body), &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all.Items {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if g.Name == gvr.Group && v.Version == gvr.Version && r.Resource == gvr.Resource {
					return &r
				}
			}
		}
	}
	return nil
}

// Each kind is created, listed, watched, patched and deleted.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, everything()...))
	all := objects()
	for _, o := range kinds.Offers(nil) {
		for _, of := range o.Resources {
			manifest := all[of.GroupResource.String()]
			if manifest == "" {
				t.Errorf("no object of %s", of.GroupResource)
				continue
			}
			for _, v := range of.Versions {
				t.Run(of.GroupResource.String()+"/"+v, func(t *testing.T) {
					gvr := of.GroupResource.WithVersion(v)
					client := c.Dynamic.Resource(gvr).Namespace("default")
					if of.ClusterScoped {
						client = c.Dynamic.Resource(gvr).Namespace("")
					}
					w, err := client.Watch(t.Context(), metav1.ListOptions{})
					if err != nil {
						t.Fatal(err)
					}
					defer w.Stop()
					u := &unstructured.Unstructured{}
					if err := json.Unmarshal([]byte(manifest), &u.Object); err != nil {
						t.Fatal(err)
					}
					u.SetGroupVersionKind(gvr.GroupVersion().WithKind(of.Names.Kind))
					u.SetName("one")
					made, err := client.Create(t.Context(), u, metav1.CreateOptions{})
					if err != nil {
						t.Fatal(err)
					}
					patched, err := client.Patch(t.Context(), "one", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"patched":"yes"}}}`), metav1.PatchOptions{})
					if err != nil || patched.GetLabels()["patched"] != "yes" || patched.GetUID() != made.GetUID() {
						t.Errorf("patched: %s, %v", text(patched), err)
					}
					list, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: "patched=yes"})
					if err != nil || len(list.Items) != 1 || list.GetKind() != of.Names.Kind+"List" || list.GetAPIVersion() != gvr.GroupVersion().String() {
						t.Errorf("listed: %s, %v", text(list), err)
					}
					if none, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=one"}); err != nil || len(none.Items) != 0 {
						t.Errorf("selected: %s, %v", text(none), err)
					}
					background := metav1.DeletePropagationBackground
					if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil {
						t.Error(err)
					}
					for _, want := range []string{"ADDED", "MODIFIED"} {
						e := <-w.ResultChan()
						got, ok := e.Object.(*unstructured.Unstructured)
						if !ok || string(e.Type) != want || got.GetUID() != made.GetUID() || got.GetAPIVersion() != gvr.GroupVersion().String() {
							t.Errorf("watched %s: %s", e.Type, text(e.Object))
						}
					}
					for e := range w.ResultChan() { // a claim loses its finalizer first
						if e.Type == "DELETED" {
							break
						}
						if u, ok := e.Object.(*unstructured.Unstructured); ok && u.GetDeletionTimestamp() != nil {
							_, err := client.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
							if err != nil {
								t.Fatal(err)
							}
						}
					}
				})
			}
		}
	}
}

// A Service keeps what its user wrote: no cluster has given it an address yet.
func TestServices(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, "services", "ingresses.networking.k8s.io", "endpointslices.discovery.k8s.io"))
	services := typed(t, c).CoreV1().Services("default")
	create := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		t.Helper()
		spec.Ports = []corev1.ServicePort{{Port: 80}}
		s, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Spec.IPFamilies) > 0 || s.Spec.IPFamilyPolicy != nil || s.Spec.HealthCheckNodePort != 0 {
			t.Errorf("%s got %s", name, text(s.Spec))
		}
		return s
	}
	if s := create("plain", corev1.ServiceSpec{}); s.Spec.ClusterIP != "" || len(s.Spec.ClusterIPs) != 0 || s.Spec.Type != corev1.ServiceTypeClusterIP {
		t.Errorf("got %s", text(s.Spec))
	}
	if s := create("port", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}); s.Spec.Ports[0].NodePort != 0 {
		t.Errorf("got %s", text(s.Spec))
	}
	create("balanced", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal})
	headless := create("headless", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone})
	if !slices.Equal(headless.Spec.ClusterIPs, []string{corev1.ClusterIPNone}) {
		t.Errorf("got %s", text(headless.Spec))
	}
	headless.Spec.ClusterIP = "192.0.2.1"
	if _, err := services.Update(t.Context(), headless, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "may not change once set") {
		t.Errorf("changed the address: %v", err)
	}
	if _, err := services.Patch(t.Context(), "absent", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"absent"},"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`), metav1.PatchOptions{FieldManager: "x"}, "status"); err == nil {
		t.Error("the status made a Service")
	}
	list, err := services.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.type=NodePort"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "port" {
		t.Errorf("selected by type: %s, %v", text(list), err)
	}
	w, err := services.Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.type=LoadBalancer", ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := services.Patch(t.Context(), "port", types.StrategicMergePatchType, []byte(`{"spec":{"type":"LoadBalancer"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Service).Name != "port" {
		t.Errorf("watched %s %s", e.Type, text(e.Object))
	}
	got, err := services.Patch(t.Context(), "balanced", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"balanced"},"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`), metav1.PatchOptions{FieldManager: "x"}, "status")
	if err != nil || len(got.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("status: %s, %v", text(got), err)
	}
	if _, err := typed(t, c).NetworkingV1().Ingresses("default").Create(t.Context(), &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}, metav1.CreateOptions{}); err == nil {
		t.Error("an Ingress without a rule or backend was created")
	}
	if _, err := typed(t, c).DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "none"}}, metav1.CreateOptions{}); err == nil {
		t.Error("an EndpointSlice without a type was created")
	}
}

// A program that embeds kcp without the extension does not link the registries.
func TestCoreHasNoRegistries(t *testing.T) {
	t.Parallel()
	of := func(pkg string) []string {
		t.Helper()
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(strings.Split(string(out), "\n"), func(p string) bool {
			own := strings.HasPrefix(p, "github.com/unforked/kcp/internal/workload")
			for _, group := range []string{"apps", "autoscaling", "batch", "discovery", "networking", "policy"} {
				own = own || strings.HasPrefix(p, "k8s.io/kubernetes/pkg/registry/"+group+"/")
			}
			return !own
		})
	}
	if linked := of("github.com/unforked/kcp"); len(linked) > 0 {
		t.Errorf("package kcp links %s", linked)
	}
	if linked := of("github.com/unforked/kcp/internal/workload"); len(linked) < 7 {
		t.Errorf("the extension links only %s", linked)
	}
}
