//go:build unix

package physical

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/test/stock"
)

func TestPhysicalClusters(t *testing.T) {
	w := newWorld(t, "east", "west")
	w.compute(t, "compute", "east", "west")
	s := w.shop(t, "shop", "compute")
	t.Run("deployments are divided and summed", func(t *testing.T) { s.dividesAndSums(t) })
	t.Run("an update while one cluster is stuck", func(t *testing.T) { s.updatesWhileStuck(t) })
	t.Run("a foreground deletion waits for the copies", func(t *testing.T) { s.cascades(t) })
	t.Run("a namespace ends after the copies", func(t *testing.T) { s.endingNamespace(t) })
	t.Run("helm waits until a release runs", func(t *testing.T) { s.helmWaits(t) })
	t.Run("drift is repaired", func(t *testing.T) { s.repairsDrift(t) })
	t.Run("objects of others are not touched", func(t *testing.T) { s.leavesForeign(t) })
	t.Run("equal names in two workspaces", func(t *testing.T) { s.equalNames(t) })
	t.Run("workspaces leave", func(t *testing.T) { s.leaves(t) })
	t.Run("a placement that selects nothing", func(t *testing.T) { s.selectsNothing(t) })
	t.Run("labels of namespaces select Placements", func(t *testing.T) { s.followsLabels(t) })
	t.Run("decisions are the server's", func(t *testing.T) { s.cannotDecide(t) })
	t.Run("a decision is lost", func(t *testing.T) { s.losesDecisions(t) })
	t.Run("bad kubeconfigs", func(t *testing.T) { w.badKubeconfigs(t) })
	t.Run("cordon, drain and uncordon", func(t *testing.T) { s.drains(t) })
	t.Run("a cluster is lost and returns", func(t *testing.T) { s.losesCluster(t) })
	t.Run("an operator fences a cluster", func(t *testing.T) { s.fences(t) })
	t.Run("an agent is lost, a cluster is not", func(t *testing.T) { s.losesAgentAlone(t) })
	t.Run("all clusters are lost at once", func(t *testing.T) { s.losesAll(t) })
	t.Run("a restart writes nothing", func(t *testing.T) { s.restarts(t) })
	t.Run("unsync", func(t *testing.T) { s.unsyncs(t) })
}

// dividesAndSums runs the life of a Deployment: created, scaled, updated, deleted.
func (s *tenant) dividesAndSums(t *testing.T) {
	s.create(t, "web", 10)
	s.rolledOut(t, "web")
	s.split(t, "web", "east 5/5, west 5/5")
	s.patch(t, "web", `{"spec":{"replicas":14}}`)
	s.rolledOut(t, "web")
	s.split(t, "web", "east 7/7, west 7/7")
	s.patch(t, "web", `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"nginx:2"}]}}}}`)
	s.rolledOut(t, "web")
	for _, c := range s.clusters {
		if got := c.only(t, "web").Spec.Template.Spec.Containers[0].Image; got != "nginx:2" {
			t.Errorf("the image is %s", got)
		}
	}
	s.patch(t, "web", `{"spec":{"replicas":0}}`)
	s.rolledOut(t, "web")
	s.patch(t, "web", `{"spec":{"replicas":4}}`)
	s.rolledOut(t, "web")
	s.remove(t, "web")
	for _, c := range s.clusters {
		c.lacks(t, "web")
	}
}

// remove deletes a Deployment and waits until it is gone.
func (s *tenant) remove(t *testing.T, name string) {
	t.Helper()
	if err := s.AppsV1().Deployments("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deletion of "+name, func() error {
		_, err := s.AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("%s exists", name)
		}
		return ignoreMissing(err)
	})
}

func (s *tenant) repairsDrift(t *testing.T) {
	s.create(t, "drift", 4)
	s.rolledOut(t, "drift")
	east := s.clusters["east"]
	changed := east.only(t, "drift")
	patch := []byte(`{"metadata":{"labels":{"app":"changed"}},"spec":{"replicas":1}}`)
	if _, err := east.AppsV1().Deployments(changed.Namespace).Patch(t.Context(), "drift", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "repair", func() error {
		d := east.only(t, "drift")
		if *d.Spec.Replicas != 2 || d.Labels["app"] != "drift" {
			return fmt.Errorf("%d replicas, labels %v", *d.Spec.Replicas, d.Labels)
		}
		return nil
	})
	if err := east.AppsV1().Deployments(changed.Namespace).Delete(t.Context(), "drift", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "creation anew", func() error {
		all, err := east.copies(t.Context(), "drift")
		if err == nil && (len(all) != 1 || all[0].UID == changed.UID) {
			err = fmt.Errorf("%d Deployments", len(all))
		}
		return err
	})
}

// leavesForeign expects that an object which the physical cluster has already is left alone.
func (s *tenant) leavesForeign(t *testing.T) {
	east := s.clusters["east"]
	namespace := east.only(t, "drift").Namespace
	foreign, err := east.AppsV1().Deployments(namespace).Create(t.Context(), deployment("db", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.create(t, "db", 4)
	eventually(t, "conflict", func() error {
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), "db", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(d.Status.Conditions), "was not created by this workspace") {
			err = fmt.Errorf("conditions %v", d.Status.Conditions)
		}
		return err
	})
	s.remove(t, "db")
	left := east.only(t, "db")
	if left.UID != foreign.UID || left.Generation != foreign.Generation || left.Labels["app"] != "db" || len(left.Labels) != 1 || len(left.Annotations) > 1 {
		t.Errorf("the object is now %+v", left.ObjectMeta)
	}
	if err := east.AppsV1().Deployments(namespace).Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) equalNames(t *testing.T) {
	other := s.shop(t, "other", "compute")
	s.create(t, "same", 2)
	other.create(t, "same", 4)
	s.rolledOut(t, "same")
	other.rolledOut(t, "same")
	all, err := s.clusters["west"].copies(t.Context(), "same")
	if err != nil || len(all) != 2 || all[0].Namespace == all[1].Namespace {
		t.Errorf("%d copies, %v", len(all), err)
	}
	s.remove(t, "same")
	other.rolledOut(t, "same")
	s.clusters["west"].only(t, "same")
	other.remove(t, "same")
}

// leaves expects that nothing remains in the physical clusters of a workspace that is deleted, or
// that does not bind the compute workspace any more.
func (s *tenant) leaves(t *testing.T) {
	deleted, unbound := s.shop(t, "deleted", "compute"), s.shop(t, "unbound", "compute")
	deleted.create(t, "left", 2)
	unbound.create(t, "left", 2)
	deleted.rolledOut(t, "left")
	unbound.rolledOut(t, "left")
	west := s.clusters["west"]
	all, err := west.copies(t.Context(), "left")
	if err != nil || len(all) != 2 {
		t.Fatalf("%d copies, %v", len(all), err)
	}
	s.endAndAwait(t, unbound, all)
}

// endAndAwait deletes the workspace "deleted", unbinds another one, and waits until the namespaces of
// their copies are gone.
func (s *tenant) endAndAwait(t *testing.T, unbound *tenant, all []appsv1.Deployment) {
	t.Helper()
	west := s.clusters["west"]
	workspaces := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	if err := dynamicFor(t, client.Cluster(s.config, "root")).Resource(workspaces).Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	bindings := schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	if err := unbound.dynamic.Resource(bindings).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		eventually(t, "end of the namespace", func() error {
			n, err := west.CoreV1().Namespaces().Get(t.Context(), d.Namespace, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("namespace %s exists: %v", n.Name, n.Status)
			}
			return ignoreMissing(err)
		})
	}
}

func placements() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "scheduling.kcp.io", Version: "v1alpha1", Resource: "placements"}
}

// place changes the Placement of the workspace.
func (s *tenant) place(t *testing.T, patch string) {
	t.Helper()
	if _, err := s.dynamic.Resource(placements()).Patch(t.Context(), "default", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// selectsNothing expects a clear answer, and that nothing that runs is lost.
func (s *tenant) selectsNothing(t *testing.T) {
	s.place(t, `{"spec":{"locationSelectors":[{"matchLabels":{"no":"such"}}]}}`)
	eventually(t, "status of the Placement", func() error {
		p, err := s.dynamic.Resource(placements()).Get(t.Context(), "default", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(p.Object["status"]), "LocationNotFound") {
			err = fmt.Errorf("%v", p.Object["status"])
		}
		return err
	})
	s.create(t, "nowhere", 1)
	eventually(t, "reason", func() error {
		out, err := kubectl(t, "workload", "get", "deployment/nowhere", "-w", ":root:"+s.name)
		if err == nil && !strings.Contains(out, "NoTarget: targets that take no more replicas: 2 NotSelected") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	for _, c := range s.clusters {
		if got := c.only(t, "drift"); *got.Spec.Replicas != 2 {
			t.Errorf("%d replicas", *got.Spec.Replicas)
		}
	}
	s.place(t, `{"spec":{"locationSelectors":null}}`)
	s.rolledOut(t, "nowhere")
	s.rolledOut(t, "drift")
	s.remove(t, "nowhere")
}

// cannotDecide expects that tenants cannot write or delete what engines obey.
func (s *tenant) cannotDecide(t *testing.T) {
	ann, err := s.server.As("root:"+s.name, tenantAdmin())
	if err != nil {
		t.Fatal(err)
	}
	s.grant(t, tenantAdmin().Name)
	d := dynamicFor(t, ann)
	for _, resource := range []string{"assignments", "targetstatuses"} {
		all := d.Resource(schema.GroupVersionResource{Group: "workload.kcp.io", Version: "v1alpha1", Resource: resource}).Namespace("default")
		list, err := all.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			t.Fatalf("%s: %v", resource, err)
		}
		if _, err := all.Patch(t.Context(), list.Items[0].GetName(), "application/merge-patch+json", []byte(`{"spec":{"message":"mine"}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("patch of %s: %v", resource, err)
		}
		made := &unstructured.Unstructured{Object: list.Items[0].DeepCopy().Object}
		made.SetName("mine")
		made.SetResourceVersion("")
		if _, err := all.Create(t.Context(), made, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("creation of %s: %v", resource, err)
		}
		if err := all.Delete(t.Context(), list.Items[0].GetName(), metav1.DeleteOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "delete the workload") {
			t.Errorf("deletion of %s: %v", resource, err)
		}
		if err := all.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("deletion of all %s: %v", resource, err)
		}
		if text := fmt.Sprint(list.Items); strings.Contains(text, "east") || strings.Contains(text, "127.0.0.1") {
			t.Errorf("%s name a physical cluster: %s", resource, text)
		}
	}
}

// losesDecisions deletes the Assignment of a Deployment as a member of system:masters, while one of its targets takes no new
// replicas. It stays where it is.
func (s *tenant) losesDecisions(t *testing.T) {
	operator, err := s.server.As("root:"+s.name, &user.DefaultInfo{Name: "operator", Groups: []string{user.SystemPrivilegedGroup}})
	if err != nil {
		t.Fatal(err)
	}
	must(t, "workload", "cordon", "east", "-w", ":root:compute")
	defer must(t, "workload", "uncordon", "east", "-w", ":root:compute")
	before := s.clusters["east"].only(t, "drift").UID
	all := dynamicFor(t, operator).Resource(schema.GroupVersionResource{Group: "workload.kcp.io", Version: "v1alpha1", Resource: "assignments"}).Namespace("default")
	list, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.Items {
		if err := all.Delete(t.Context(), a.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the Assignment is made anew", func() error {
			next, err := all.Get(t.Context(), a.GetName(), metav1.GetOptions{})
			if err == nil && next.GetUID() == a.GetUID() {
				err = errors.New("it is the old one")
			}
			return err
		})
	}
	s.split(t, "drift", "east 2/2, west 2/2")
	if after := s.clusters["east"].only(t, "drift").UID; after != before {
		t.Error("the copy was deleted and created anew")
	}
}

func (w *world) badKubeconfigs(t *testing.T) {
	must(t, "ws", "create", ":root:bad")
	east := w.clusters["east"]
	expired, weak, gone := rest.CopyConfig(east.Config("expired")), east.Config(stock.OrdinaryToken), east.Config(stock.UserToken)
	gone.Host = "https://127.0.0.1:1"
	for name, c := range map[string]struct {
		config *rest.Config
		want   string
	}{
		"expired": {expired, "does not accept the credentials"},
		"weak":    {weak, "lack permissions in the physical cluster"},
		"gone":    {gone, "does not answer"},
		"self":    {&rest.Config{Host: w.server.URL(), BearerToken: "x", TLSClientConfig: rest.TLSClientConfig{CAFile: east.Config("").CAFile}}, "an address of the server"},
	} {
		file := filepath.Join(w.dir, name+".kubeconfig")
		writeKubeconfig(t, file, c.config)
		out, err := kubectl(t, "workload", "sync", name, "--kubeconfig", file, "-w", ":root:bad", "--timeout", "5s")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, out)
		}
	}
	out, err := kubectl(t, "workload", "sync", "gone", "--kubeconfig", east.kubeconfig, "-w", ":root:bad")
	if err == nil || !strings.Contains(err.Error(), "is that of another physical cluster") {
		t.Errorf("another cluster of the same name: %v\n%s", err, out)
	}
	if _, err := kubectl(t, "workload", "sync", "x", "--kubeconfig", filepath.Join(w.dir, "missing")); !os.IsNotExist(unwrap(err)) {
		t.Errorf("a missing file: %v", err)
	}
}

func (s *tenant) drains(t *testing.T) {
	s.create(t, "move", 4)
	s.rolledOut(t, "move")
	targets := s.in(t, "compute").Resource(workload.GroupVersion.WithResource("synctargets"))
	before, err := targets.Get(t.Context(), "east", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"cordon east --dry-run", "drain east --dry-run=client", "cordon east --dry-run=server", "drain east --dry-run=server", "unsync east --orphan --dry-run=server", "unsync east --dry-run"} {
		if out := must(t, append(append([]string{"workload"}, strings.Fields(line)...), "-w", ":root:compute")...); !strings.Contains(out, "dry run).") {
			t.Errorf("%s: %s", line, out)
		}
	}
	if now, err := targets.Get(t.Context(), "east", metav1.GetOptions{}); err != nil || now.GetGeneration() != before.GetGeneration() || now.GetDeletionTimestamp() != nil || len(now.GetAnnotations()) != len(before.GetAnnotations()) {
		t.Errorf("a dry run changes the SyncTarget to %v, %v", now, err)
	}
	must(t, "workload", "cordon", "east", "-w", ":root:compute")
	s.patch(t, "move", `{"spec":{"replicas":8}}`)
	s.split(t, "move", "east 2/2, west 6/6")
	if out := must(t, "workload", "drain", "east", "-w", ":root:compute"); !strings.Contains(out, "runs no workloads") {
		t.Error(out)
	}
	s.split(t, "move", "west 8/8")
	s.rolledOut(t, "move")
	s.clusters["east"].lacks(t, "move")
	must(t, "workload", "uncordon", "east", "-w", ":root:compute")
	s.remove(t, "move")
}

func (s *tenant) restarts(t *testing.T) {
	before := map[string]string{}
	for name, c := range s.clusters {
		before[name] = c.only(t, "steady").ResourceVersion
	}
	s.stopServer(t)
	s.startServer(t)
	again := &tenant{world: s.world, name: s.name, Clientset: s.typed(t), dynamic: s.in(t, s.name)}
	again.create(t, "late", 2) // when it runs, the server has looked at everything
	again.rolledOut(t, "late")
	again.rolledOut(t, "steady")
	for name, c := range s.clusters {
		if got := c.only(t, "steady").ResourceVersion; got != before[name] {
			t.Errorf("the server wrote to %s: revision %s, was %s", name, got, before[name])
		}
	}
	*s = *again
}

func (s *tenant) unsyncs(t *testing.T) {
	must(t, "workload", "unsync", "east", "-w", ":root:compute")
	s.split(t, "steady", "west 6/6")
	s.rolledOut(t, "steady")
	s.clusters["east"].lacks(t, "steady")
	if out := must(t, "workload", "list", "-w", ":root:compute"); strings.Contains(out, "east") {
		t.Error(out)
	}
	// One that does not answer can be removed, too.
	must(t, "workload", "sync", "east", "--kubeconfig", s.clusters["east"].kubeconfig, "-w", ":root:compute")
	s.patch(t, "steady", `{"spec":{"replicas":8}}`)
	s.split(t, "steady", "east 2/2, west 6/6")
	s.clusters["east"].signal(t, syscall.SIGSTOP)
	defer s.clusters["east"].signal(t, syscall.SIGCONT)
	must(t, "workload", "unsync", "east", "-w", ":root:compute")
	s.split(t, "steady", "west 8/8")
	s.rolledOut(t, "steady")
}

// TestLoopbackIsNotForTenants expects that a physical cluster on the machine of the server is not
// reached, unless the operator allows that, and that no probe reaches it either.
func TestLoopbackIsNotForTenants(t *testing.T) {
	dir := t.TempDir()
	server := &kcp.Server{Dir: filepath.Join(dir, "kcp"), Listen: "127.0.0.1:0", NoSync: true, Extensions: []kcp.Extension{fleet.Extension(fleet.Options{Renew: 300 * time.Millisecond, Expire: time.Second})}}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("KUBECONFIG", server.Kubeconfig)
	must(t, "ws", "create", ":root:compute")
	file := filepath.Join(dir, "near.kubeconfig")
	writeKubeconfig(t, file, &rest.Config{Host: "https://127.0.0.1:2379", BearerToken: "x"})
	out, err := kubectl(t, "workload", "sync", "near", "--kubeconfig", file, "-w", ":root:compute", "--timeout", "5s")
	if err == nil || !strings.Contains(err.Error(), "--tenant-egress-allow-cidrs=127.0.0.1/32") {
		t.Errorf("%v\n%s", err, out)
	}
	var reached atomic.Int32
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(inside.Close)
	patch := fmt.Sprintf(`{"spec":{"probes":[{"url":"%s/secret"}]}}`, inside.URL)
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	targets := dynamicFor(t, client.Cluster(config, "root:compute")).Resource(synctargets())
	if _, err := targets.Patch(t.Context(), "near", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the probe is refused", func() error {
		out := must(t, "workload", "describe", "near", "-w", ":root:compute")
		if _, said, ok := strings.Cut(out, "outside probes do not tell (https://127.0.0.1"); !ok || !strings.Contains(said, "/secret: no answer: ") || !strings.Contains(said, "refusing to call 127.0.0.1") {
			return errors.New(out)
		}
		return nil
	})
	if n := reached.Load(); n > 0 {
		t.Errorf("the probe reached the machine of the server %d times", n)
	}
}
