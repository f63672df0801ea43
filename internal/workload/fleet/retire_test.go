package fleet_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/kcptest"
)

// A site is a compute workspace with one physical cluster, and a consumer whose workloads run there. The physical
// cluster is a logical cluster of another server.
type site struct {
	near     *kcptest.Universe
	dir      string // of near
	compute  computing
	parent   *kcptest.Cluster // has the Workspace "compute"
	far      *kcptest.Universe
	physical *kcptest.Cluster
	shop     *kcptest.Cluster
}

const kinds = `
apiVersion: apis.kcp.io/v1alpha2
kind: APIExport
metadata: {name: kubernetes}
spec:
  resources:
  - {group: apps, name: deployments, storage: {native: {}}}
  - {group: apps, name: statefulsets, storage: {native: {}}}
  - {group: apps, name: replicasets, storage: {native: {}}}
  - {group: batch, name: jobs, storage: {native: {}}}
  - {group: "", name: services, storage: {native: {}}}
  - {group: "", name: persistentvolumeclaims, storage: {native: {}}}
`

const binding = `
apiVersion: apis.kcp.io/v1alpha2
kind: APIBinding
metadata: {name: kubernetes}
spec:
  reference: {export: {path: "%s", name: kubernetes}}
  permissionClaims: [%s]
`

// workloads are a Deployment with what it needs and what follows it. The claim is used by a Deployment of its own.
const workloads = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {key: value}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: nginx, envFrom: [{configMapRef: {name: settings}}]}]}
`

const withData = `
apiVersion: v1
kind: ConfigMap
metadata: {name: of-data}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db}
spec:
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: db, image: postgres, envFrom: [{configMapRef: {name: of-data}}]}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

func newSite(t *testing.T, o fleet.Options) *site {
	t.Helper()
	s := &site{far: &kcptest.Universe{Server: server(time.Second)}, dir: t.TempDir()}
	s.serve(o)
	t.Cleanup(func() {
		if err := errors.Join(s.near.Close(), s.far.Close()); err != nil {
			t.Error(err)
		}
	})
	provider := s.far.New(t)
	provider.Apply(kinds)
	s.physical = s.far.New(t)
	s.physical.Apply(fmt.Sprintf(binding, provider.Name, ""))
	s.parent = s.near.New(t)
	c := child(t, s.parent, "compute")
	reference := map[string]any{"reference": map[string]any{"export": map[string]any{"path": "root", "name": workload.Export}}}
	create(t, c, apis.GroupVersion.WithResource("apibindings"), "APIBinding", workload.Export, reference)
	create(t, c, core("namespaces"), "Namespace", workload.TargetsNamespace, nil)
	create(t, c, scheduling.GroupVersion.WithResource("locations"), "Location", "here", map[string]any{})
	s.compute = computingIn(t, c)
	s.compute.register(t, "east", kubeconfigFor(t, s.physical))
	s.compute.wait(t, "east", func(of *workload.SyncTarget) bool { return of.Status.LastSyncerHeartbeatTime != nil })
	s.shop = s.near.New(t)
	s.shop.Apply(s.binding())
	s.shop.Apply(placement("all", ""))
	return s
}

// serve makes the server that has the compute workspace.
func (s *site) serve(o fleet.Options) {
	o.Renew = 300 * time.Millisecond
	s.near = &kcptest.Universe{Server: &kcp.Server{Dir: s.dir, Listen: "127.0.0.1:0", NoSync: true, EgressAllow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Extensions: []kcp.Extension{fleet.Extension(o)}}}
}

// restart starts another server on the same data.
func (s *site) restart(t *testing.T, o fleet.Options) {
	t.Helper()
	if err := s.near.Close(); err != nil {
		t.Fatal(err)
	}
	s.serve(o)
	s.parent, s.shop = moved(t, s.near, s.parent), moved(t, s.near, s.shop)
}

// binding returns the APIBinding of a consumer.
func (s *site) binding() string {
	return fmt.Sprintf(binding, s.compute.Name, `{group: "", resource: configmaps, verbs: ["*"], state: Accepted, selector: {matchAll: true}}`)
}

func bindings() schema.GroupVersionResource { return apis.GroupVersion.WithResource("apibindings") }

// child makes a workspace, and returns its logical cluster.
func child(t *testing.T, parent *kcptest.Cluster, name string) *kcptest.Cluster {
	t.Helper()
	made := create(t, parent, workspaces(), "Workspace", name, map[string]any{})
	c := &kcptest.Cluster{Server: parent.Server}
	var err error
	if c.Name, _, err = unstructured.NestedString(made.Object, "spec", "cluster"); err != nil {
		t.Fatal(err)
	}
	if c.Config, err = c.Server.Cluster(t.Context(), c.Name); err != nil {
		t.Fatal(err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		t.Fatal(err)
	}
	return c
}

// create creates an object without a namespace.
func create(t *testing.T, in *kcptest.Cluster, of schema.GroupVersionResource, kind, name string, spec map[string]any) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": of.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name}}}
	if spec != nil {
		o.Object["spec"] = spec
	}
	made, err := in.Dynamic.Resource(of).Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func workspaces() schema.GroupVersionResource { return tenancy.GroupVersion.WithResource("workspaces") }

func core(resource string) schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource(resource)
}

// copies returns what the physical cluster has of an object, in namespaces of consumers.
func (s *site) copies(t *testing.T, of schema.GroupVersionResource, name string) []unstructured.Unstructured {
	t.Helper()
	all, err := s.physical.Dynamic.Resource(of).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(o unstructured.Unstructured) bool {
		return o.GetName() != name || !strings.HasPrefix(o.GetNamespace(), "kcp-")
	})
}

// runs waits until the physical cluster has a copy of an object.
func (s *site) runs(t *testing.T, of schema.GroupVersionResource, name string) {
	t.Helper()
	eventually(t, func() error {
		if all := s.copies(t, of, name); len(all) != 1 {
			return fmt.Errorf("%d copies of %s %s", len(all), of.Resource, name)
		}
		return nil
	})
}

// end deletes the compute workspace.
func (s *site) end(t *testing.T) {
	t.Helper()
	if err := s.parent.Dynamic.Resource(workspaces()).Delete(t.Context(), "compute", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// ended waits until the compute workspace is gone.
func (s *site) ended(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		o, err := s.parent.Dynamic.Resource(workspaces()).Get(t.Context(), "compute", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the compute workspace exists: %v, %v", o, err)
	})
}

// events returns the messages of the Events about the Workspace.
func (s *site) events(t *testing.T) string {
	t.Helper()
	all, err := s.parent.Dynamic.Resource(core("events")).Namespace(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, e := range all.Items {
		text = append(text, fmt.Sprint(e.Object["reason"], " ", e.Object["message"]))
	}
	return strings.Join(text, "\n")
}

// TestCopiesGoWithTheirComputeWorkspace expects that nothing of the consumers is left in a physical cluster when the
// compute workspace is gone, and that the consumers say so. Only volume claims stay, and belong to no workspace.
func TestCopiesGoWithTheirComputeWorkspace(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	s.shop.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: data}\n")
	for _, o := range strings.Split(withData, "---") {
		s.shop.Apply(strings.Replace(o, "metadata: {name: ", "metadata: {namespace: data, name: ", 1))
	}
	for name, of := range map[string]schema.GroupVersionResource{"web": deployments(), "db": deployments(), "settings": core("configmaps"), "data": core("persistentvolumeclaims"), "of-data": core("configmaps")} {
		s.runs(t, of, name)
	}
	s.runs(t, core("services"), "web")
	claims := s.copies(t, core("persistentvolumeclaims"), "data")
	s.end(t)
	s.ended(t)
	for name, of := range map[string]schema.GroupVersionResource{"web": deployments(), "db": deployments(), "settings": core("configmaps"), "of-data": core("configmaps")} {
		if left := slices.DeleteFunc(s.copies(t, of, name), func(o unstructured.Unstructured) bool { return o.GetDeletionTimestamp() != nil }); len(left) > 0 {
			t.Errorf("%s %s is left: %v", of.Resource, name, left)
		}
	}
	left := s.copies(t, core("persistentvolumeclaims"), "data")
	if len(left) != 1 || left[0].GetUID() != claims[0].GetUID() || left[0].GetDeletionTimestamp() != nil || left[0].GetLabels()[workload.OwnerLabel] != "" {
		t.Errorf("the claim is %v", left)
	}
	namespaces, err := s.physical.Dynamic.Resource(core("namespaces")).List(t.Context(), metav1.ListOptions{LabelSelector: workload.OwnerLabel})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range namespaces.Items {
		if n.GetDeletionTimestamp() == nil && n.GetName() != claims[0].GetNamespace() {
			t.Errorf("namespace %s is left", n.GetName())
		}
	}
	placed(t, s.shop, false)
	o, err := s.shop.Dynamic.Resource(deployments()).Namespace("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || !strings.Contains(fmt.Sprint(o.Object["status"]), workload.ComputeDeleted) {
		t.Errorf("the Deployment says %v, %v", o.Object["status"], err)
	}
	if text := s.events(t); text != "" {
		t.Errorf("events: %s", text)
	}
	deleted(t, s.shop)
}

// TestOrphansOutliveTheirComputeWorkspace expects that the copies in a physical cluster stay if its SyncTarget says so,
// with a ConfigMap that several need.
func TestOrphansOutliveTheirComputeWorkspace(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	for i := range 8 {
		s.shop.Apply(strings.ReplaceAll(workloads, "{name: web}", fmt.Sprintf("{name: web-%d}", i)))
		s.runs(t, deployments(), fmt.Sprintf("web-%d", i))
	}
	s.runs(t, deployments(), "web")
	s.runs(t, core("services"), "web")
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, workload.OrphanAnnotation)
	if _, err := s.compute.targets.Patch(t.Context(), "east", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	s.ended(t)
	for name, of := range map[string]schema.GroupVersionResource{"web": deployments(), "settings": core("configmaps")} {
		if left := s.copies(t, of, name); len(left) != 1 || left[0].GetDeletionTimestamp() != nil || left[0].GetLabels()[workload.OwnerLabel] != "" {
			t.Errorf("%s %s: %v", of.Resource, name, left)
		}
	}
	deleted(t, s.shop)
}

// dies ends the physical cluster while a workload runs there. It returns the SyncTarget as it was before.
func (s *site) dies(t *testing.T) *workload.SyncTarget {
	t.Helper()
	s.shop.Apply(workloads)
	s.runs(t, deployments(), "web")
	before, err := s.compute.targets.Get(t.Context(), "east", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.far.Close(); err != nil {
		t.Fatal(err)
	}
	return before
}

// TestDeadClusterDoesNotKeepItsComputeWorkspace expects that the deletion of a compute workspace goes on without a
// physical cluster that does not answer, and that the parent of the workspace then says what is left to do.
func TestDeadClusterDoesNotKeepItsComputeWorkspace(t *testing.T) {
	s := newSite(t, fleet.Options{Expire: time.Second, Retire: 3 * time.Second})
	before := s.dies(t)
	s.end(t)
	s.ended(t)
	if text := s.events(t); !strings.Contains(text, `CopiesRemain physical cluster "east" may still have copies`) || !strings.Contains(text, "kubectl delete namespaces -l "+workload.OwnerLabel+"="+before.Status.Key) {
		t.Errorf("the events are:\n%s", text)
	}
	placed(t, s.shop, false)
	says(t, s.shop, deployments(), "default", "web", workload.ComputeDeleted)
	deleted(t, s.shop)
}
