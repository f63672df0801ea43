package fleet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/agent"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/kcptest"
)

// refusing returns a policy of a workspace that refuses operations on a resource.
func refusing(group, resource, operations string) string {
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refuse}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [%q], apiVersions: ["*"], resources: [%q], operations: [%s]}]}
  validations: [{expression: "false", reason: Invalid}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refuse}
spec: {policyName: refuse, validationActions: [Deny]}
`, group, resource, operations)
}

// holds puts a finalizer on the copy of an object, so that the physical cluster does not get rid of it.
func (s *site) holds(t *testing.T, of schema.GroupVersionResource, name string) (release func()) {
	t.Helper()
	s.runs(t, of, name)
	copied := s.copies(t, of, name)[0]
	patch := func(finalizers string) error {
		_, err := s.physical.Dynamic.Resource(of).Namespace(copied.GetNamespace()).Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
		return err
	}
	if err := patch(`["example.com/hold"]`); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		eventually(t, func() error { return patch("null") })
	}
}

// leaves waits until the physical cluster deletes the copy of an object.
func (s *site) leaves(t *testing.T, of schema.GroupVersionResource, name string) {
	t.Helper()
	eventually(t, func() error {
		if all := s.copies(t, of, name); len(all) != 1 || all[0].GetDeletionTimestamp() == nil {
			return fmt.Errorf("the copies of %s %s: %v", of.Resource, name, all)
		}
		return nil
	})
}

// empty waits until the physical cluster has no copy of an object.
func (s *site) empty(t *testing.T, of schema.GroupVersionResource, name string) {
	t.Helper()
	eventually(t, func() error {
		if all := s.copies(t, of, name); len(all) > 0 {
			return fmt.Errorf("%s %s is left: %v", of.Resource, name, all)
		}
		return nil
	})
}

// assigned returns the Assignment of an object in the namespace default of a consumer, nil if there is none.
func assigned(t *testing.T, shop *kcptest.Cluster, resource, name string) *unstructured.Unstructured {
	t.Helper()
	all, err := shop.Dynamic.Resource(workload.GroupVersion.WithResource("assignments")).Namespace("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all.Items, func(o unstructured.Unstructured) bool {
		of, _, _ := unstructured.NestedStringMap(o.Object, "spec", "workload")
		return of["resource"] == resource && of["name"] == name
	})
	if i < 0 {
		return nil
	}
	return &all.Items[i]
}

// other returns another consumer of the compute workspace of a site, with the same workloads in a namespace of its own.
func (s *site) other(t *testing.T, name string) *kcptest.Cluster {
	t.Helper()
	c := child(t, s.parent, name)
	s.consumes(t, c, name)
	return c
}

// consumes makes a logical cluster a consumer with workloads of a name.
func (s *site) consumes(t *testing.T, c *kcptest.Cluster, name string) {
	t.Helper()
	for _, text := range append([]string{s.binding(), placement("all", "")}, strings.Split(strings.ReplaceAll(workloads, "{name: web}", "{name: "+name+"}"), "---")...) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		gv, in := o.GroupVersionKind().GroupVersion(), "default"
		if strings.HasSuffix(gv.Group, "kcp.io") {
			in = ""
		}
		if _, err := c.Dynamic.Resource(gv.WithResource(strings.ToLower(o.GetKind())+"s")).Namespace(in).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// later makes it look as if the deletion of the compute workspace had begun an hour ago, and starts another server.
func (s *site) later(t *testing.T, retire time.Duration) {
	t.Helper()
	eventually(t, func() error {
		of, err := s.compute.targets.Get(t.Context(), "east", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := of.Status.Conditions.Get(workload.CopiesRemoved)
		if c == nil {
			return fmt.Errorf("the status is %v", of.Status)
		}
		c.LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
		_, err = s.compute.targets.UpdateStatus(t.Context(), of, metav1.UpdateOptions{})
		return err
	})
	s.restart(t, fleet.Options{Retire: retire})
}

// TestServicesOutliveTheirWorkloads expects that what follows workloads, such as a Service or a NetworkPolicy, leaves a
// physical cluster after them when the compute workspace is deleted. A server that starts meanwhile goes on, and
// waits no longer than the first one would have.
func TestServicesOutliveTheirWorkloads(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	s.runs(t, core("services"), "web")
	release := s.holds(t, deployments(), "web")
	s.end(t)
	s.leaves(t, deployments(), "web")
	waits := func() {
		t.Helper()
		eventually(t, func() error {
			a := assigned(t, s.shop, "services", "web")
			if a == nil {
				t.Fatal("the Service has no Assignment")
			}
			if reason, _, _ := unstructured.NestedString(a.Object, "spec", "reason"); reason != workload.ComputeDeleted {
				return fmt.Errorf("the Assignment of the Service is %v", a.Object["spec"])
			}
			if text := fmt.Sprint(a.Object["spec"]); !strings.Contains(text, "phase:"+string(workload.Active)) {
				t.Fatalf("the Service leaves before the Deployment: %s", text)
			}
			return nil
		})
	}
	waits()
	s.restart(t, fleet.Options{})
	waits()
	release()
	s.ended(t)
	s.empty(t, core("services"), "web")
	s.empty(t, deployments(), "web")
	says(t, s.shop, deployments(), "default", "web", workload.ComputeDeleted)
	says(t, s.shop, placements(), "", "all", workload.ComputeDeleted)
	deleted(t, s.shop)
}

// TestRestartsDoNotProlongTheWait expects that a server that starts knows how long the physical clusters had to
// remove copies.
func TestRestartsDoNotProlongTheWait(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	s.holds(t, deployments(), "web")
	s.end(t)
	s.leaves(t, deployments(), "web")
	s.later(t, 50*time.Minute)
	s.ended(t)
	if text := s.events(t); !strings.Contains(text, "CopiesRemain") {
		t.Errorf("the events are:\n%s", text)
	}
}

// TestRefusedRemovals expects that a physical cluster that refuses to delete a copy, as with an admission webhook, does
// not keep the compute workspace. The Event names the cluster and no object: its readers may have no rights in the
// workspaces of consumers. Other copies are removed.
func TestRefusedRemovals(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	other := s.other(t, "other")
	s.runs(t, deployments(), "web")
	s.runs(t, deployments(), "other")
	s.physical.Apply(strings.Replace(refusing("apps", "deployments", "DELETE"), `"false"`, `"oldObject.metadata.name != 'web'"`, 1))
	s.end(t)
	s.empty(t, deployments(), "other")
	eventually(t, func() error {
		for _, of := range []string{"deployments", "services"} {
			if a := assigned(t, other, of, "other"); a != nil {
				return fmt.Errorf("an Assignment is left: %v", a)
			}
		}
		return nil
	})
	s.later(t, 50*time.Minute)
	other = moved(t, s.near, other)
	s.ended(t)
	if all := s.copies(t, deployments(), "web"); len(all) != 1 || all[0].GetDeletionTimestamp() != nil {
		t.Errorf("the copies of the Deployment are %v", all)
	}
	if text := s.events(t); strings.Count(text, "CopiesRemain") != 1 || !strings.Contains(text, `physical cluster "east" may still have copies of`) ||
		strings.Contains(text, "web") || strings.Contains(text, s.shop.Name) {
		t.Errorf("the events are:\n%s", text)
	}
	for name, shop := range map[string]*kcptest.Cluster{"web": s.shop, "other": other} {
		says(t, shop, deployments(), "default", name, workload.ComputeDeleted)
		eventually(t, func() error {
			o, err := shop.Dynamic.Resource(deployments()).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && len(o.GetFinalizers()) > 0 {
				err = fmt.Errorf("finalizers %v", o.GetFinalizers())
			}
			return err
		})
	}
}

// TestConsumersThatRefuse expects that a consumer cannot keep its compute workspace, nor the copies of other
// consumers: it refuses all changes of its workloads.
func TestConsumersThatRefuse(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	other := s.other(t, "other")
	s.runs(t, deployments(), "web")
	s.runs(t, deployments(), "other")
	s.shop.Apply(refusing("*", "*", "UPDATE, DELETE"))
	s.end(t)
	says(t, other, deployments(), "default", "other", workload.ComputeDeleted)
	s.empty(t, deployments(), "other")
	s.later(t, 20*time.Second)
	s.ended(t)
}

// TestRefusedDependency expects that a physical cluster that refuses to delete a ConfigMap does not keep the
// Deployment that used it.
func TestRefusedDependency(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	s.runs(t, deployments(), "web")
	s.runs(t, core("configmaps"), "settings")
	s.physical.Apply(refusing("", "configmaps", "DELETE"))
	deleted(t, s.shop)
	s.empty(t, deployments(), "web")
	if all := s.copies(t, core("configmaps"), "settings"); len(all) != 1 {
		t.Errorf("the copies of the ConfigMap are %v", all)
	}
}

// TestBindingsAndWorkspacesWaitForCopies expects that a workload whose APIBinding or workspace is deleted stays until its
// copy is gone. If its compute workspace is deleted with it, the copies are removed, too.
func TestBindingsAndWorkspacesWaitForCopies(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	other := s.other(t, "other")
	own := s.compute.Cluster // the compute workspace may be a consumer of itself
	s.consumes(t, own, "own")
	var releases []func()
	for _, name := range []string{"web", "other", "own"} {
		releases = append(releases, s.holds(t, deployments(), name))
	}
	if err := s.shop.Dynamic.Resource(bindings()).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	remaining := func(shop *kcptest.Cluster, name string) {
		t.Helper()
		s.leaves(t, deployments(), name)
		o, err := shop.Dynamic.Resource(deployments()).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || !slices.Contains(o.GetFinalizers(), workload.PlacedFinalizer) {
			t.Errorf("the Deployment %s is %v, %v", name, o, err)
		}
		if assigned(t, shop, "deployments", name) == nil {
			t.Errorf("the Assignment of %s is gone before its copy", name)
		}
	}
	remaining(s.shop, "web")
	releases[0]()
	eventually(t, func() error {
		_, err := s.shop.Dynamic.Resource(bindings()).Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the APIBinding exists: %v", err)
	})
	if err := s.parent.Dynamic.Resource(workspaces()).Delete(t.Context(), "other", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	remaining(other, "other")
	remaining(own, "own")
	releases[1]()
	releases[2]()
	s.ended(t)
	for _, name := range []string{"web", "other", "own"} {
		s.empty(t, deployments(), name)
	}
	if text := s.events(t); text != "" {
		t.Errorf("events: %s", text)
	}
}

// TestAgentsRemoveCopies expects that the agent of a physical cluster in pull mode removes the copies when the compute
// workspace is deleted: its certificate, its Lease and its view are of use until then.
func TestAgentsRemoveCopies(t *testing.T) {
	s := agentSite(t)
	s.shop.Apply(workloads)
	s.runs(t, deployments(), "web")
	s.runs(t, core("services"), "web")
	s.runs(t, core("configmaps"), "settings")
	s.end(t)
	s.ended(t)
	for name, of := range map[string]schema.GroupVersionResource{"web": deployments(), "settings": core("configmaps")} {
		if left := slices.DeleteFunc(s.copies(t, of, name), func(o unstructured.Unstructured) bool { return o.GetDeletionTimestamp() != nil }); len(left) > 0 {
			t.Errorf("%s %s is left: %v", of.Resource, name, left)
		}
	}
	if text := s.events(t); text != "" {
		t.Errorf("events: %s", text)
	}
	deleted(t, s.shop)
}

// agentSite returns a site whose physical cluster has an agent, and the SyncTarget "west".
func agentSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t, fleet.Options{})
	of, err := s.compute.targets.Create(t.Context(), &workload.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "west"}, Spec: workload.SyncTargetSpec{Mode: workload.PullMode}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := syncer.Identity{Compute: kcp.ClusterName(s.compute.Name), Target: "west", UID: string(of.UID)}
	config := configFor(t, s.physical)
	bootstrap := s.bootstrap(t, i)
	create(t, s.physical, core("namespaces"), "Namespace", metav1.NamespaceSystem, nil) // its UID is that of the cluster
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		if err := agent.Run(ctx, agent.Options{Bootstrap: bootstrap, Physical: config, Namespace: "default", Replica: "one", Renew: 300 * time.Millisecond}); err != nil {
			t.Error(err)
		}
	})
	s.compute.wait(t, "west", func(of *workload.SyncTarget) bool { return of.Status.LastSyncerHeartbeatTime != nil })
	s.compute.unregister(t, "east")
	return s
}

// configFor returns a configuration for a logical cluster, as administrator.
func configFor(t *testing.T, c *kcptest.Cluster) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(kubeconfigFor(t, c)))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// bootstrap returns a kubeconfig for the first request of an agent.
func (s *site) bootstrap(t *testing.T, i syncer.Identity) []byte {
	t.Helper()
	clients, err := kubernetes.NewForConfig(client.Cluster(s.compute.Config, s.compute.Name))
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "west", Namespace: workload.TargetsNamespace}}
	if _, err := clients.CoreV1().ServiceAccounts(account.Namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := clients.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "west"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := clients.CoreV1().ServiceAccounts(account.Namespace).CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", s.compute.Server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientcmd.Write(clientcmdapi.Config{CurrentContext: "a",
		Clusters:  map[string]*clientcmdapi.Cluster{"a": {Server: s.compute.Server.URL() + i.Path(), CertificateAuthorityData: admin.CAData, CertificateAuthority: admin.CAFile}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"a": {Token: token.Status.Token}},
		Contexts:  map[string]*clientcmdapi.Context{"a": {Cluster: "a", AuthInfo: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}
