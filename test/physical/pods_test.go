//go:build unix

package physical

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/test/stock"
)

// TestPods uses the pods of a workspace that runs in two physical clusters. The data of the server is
// in the etcd of one of them, so that a second server can be started.
func TestPods(t *testing.T) {
	w := newWorld(t, "east", "west")
	w.stopServer(t)
	w.startShared(t)
	w.compute(t, "compute", "east", "west")
	s := w.shop(t, "shop", "compute")
	s.create(t, "web", 4)
	s.rolledOut(t, "web")
	t.Run("lists", func(t *testing.T) { s.listsPods(t) })
	t.Run("watches", func(t *testing.T) { s.watchesPods(t) })
	t.Run("logs and exec", func(t *testing.T) { s.streams(t, s.config) })
	t.Run("kubectl", func(t *testing.T) { s.kubectlOnPods(t) })
	t.Run("usage", func(t *testing.T) { s.topsPods(t) })
	t.Run("autoscalers", func(t *testing.T) { s.autoscalers(t) })
	t.Run("rights", func(t *testing.T) { s.needsRights(t) })
	t.Run("tenants", func(t *testing.T) { s.isolatesPods(t) })
	t.Run("events", func(t *testing.T) { s.seesEvents(t) })
	t.Run("eviction", func(t *testing.T) { s.evicts(t) })
	t.Run("debug", func(t *testing.T) { s.debugs(t) })
	t.Run("no tokens", func(t *testing.T) { s.hasNoTokens(t) })
	t.Run("a kubelet that cannot be reached", func(t *testing.T) { s.hidesAddresses(t) })
	t.Run("a cluster that does not answer", func(t *testing.T) { s.warnsOfMissing(t) })
	t.Run("another server", func(t *testing.T) { s.throughAnother(t) })
	t.Run("the server stops", func(t *testing.T) { s.endsCleanly(t) })
}

// shared returns a server on the etcd of a physical cluster. A nil view is a new one.
func (w *world) shared(dir, etcd string, view *syncer.View) *kcp.Server {
	at := w.clusters[etcd].EtcdConfig()
	return &kcp.Server{
		Dir: filepath.Join(w.dir, dir), Listen: "127.0.0.1:0", EgressAllow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Etcd:       kcp.Etcd{Servers: []string{at.Host}, CAFile: at.CAFile, CertFile: at.CertFile, KeyFile: at.KeyFile},
		EtcdPrefix: "/kcp", Extensions: []kcp.Extension{fleet.Extension(fleet.Options{Renew: 300 * time.Millisecond, Expire: 3 * time.Second, Autoscale: time.Second, View: view})},
	}
}

func (w *world) startShared(t *testing.T) {
	t.Helper()
	w.server = w.shared("kcp", "west", nil)
	if err := w.server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.config, err = clientcmd.BuildConfigFromFlags("", w.server.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	w.config.QPS = -1
	t.Setenv("KUBECONFIG", w.server.Kubeconfig)
}

// pods lists the pods of the workspace, and returns the warnings.
func (s *tenant) pods(t *testing.T, o metav1.ListOptions) ([]corev1.Pod, []string) {
	t.Helper()
	var said warnings
	cfg := client.Cluster(s.config, "root:"+s.name)
	cfg.ContentType, cfg.WarningHandler = "application/vnd.kubernetes.protobuf", &said
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	list, err := typed.CoreV1().Pods("default").List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return list.Items, said
}

type warnings []string

// HandleWarningHeader implements [rest.WarningHandler].
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { *w = append(*w, text) }

// secrets are what no tenant learns about a physical cluster.
func (s *tenant) secrets() []string {
	return []string{stock.Node, stock.NodeAddress, "127.0.0.1", "kcp-", "agent-of-node", "east", "west"}
}

// tellsNothing fails the test if a text has something about a physical cluster.
func (s *tenant) tellsNothing(t *testing.T, of any) {
	t.Helper()
	text, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range s.secrets() {
		if strings.Contains(string(text), secret) {
			t.Errorf("%q is in %s", secret, text)
		}
	}
}

func (s *tenant) listsPods(t *testing.T) {
	there := map[string]bool{}
	for _, c := range s.clusters {
		all, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(all.Items) != 2 {
			t.Fatalf("%d pods, %v", len(all.Items), err)
		}
		for _, p := range all.Items {
			there[p.Name] = true
			// As agents of a node would.
			patch := `{"metadata":{"labels":{"agent-of-node":"x"},"annotations":{"agent-of-node":"x"}}}`
			_, err := c.CoreV1().Pods(p.Namespace).Patch(t.Context(), p.Name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
			if err == nil {
				patch = `{"status":{"message":"on ` + stock.Node + `, get https://127.0.0.1:10250/x: dial ` + stock.NodeAddress + `:1"}}`
				_, err = c.CoreV1().Pods(p.Namespace).Patch(t.Context(), p.Name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}, "status")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	all, said := s.pods(t, metav1.ListOptions{})
	if len(all) != 4 || len(said) > 0 {
		t.Errorf("%d pods, %q", len(all), said)
	}
	for _, p := range all {
		if !there[p.Name] || p.Namespace != "default" || p.Spec.NodeName != "default" || p.Labels["workload.kcp.io/location"] != "default" || p.Labels["app"] != "web" || p.Status.Message == "" {
			t.Errorf("pod %s/%s: node %q, labels %v", p.Namespace, p.Name, p.Spec.NodeName, p.Labels)
		}
		s.tellsNothing(t, p)
		one, err := s.CoreV1().Pods("default").Get(t.Context(), p.Name, metav1.GetOptions{})
		if err != nil || one.UID != p.UID || one.ResourceVersion != p.ResourceVersion {
			t.Errorf("get %s: %v", p.Name, err)
		}
		s.tellsNothing(t, one)
	}
	name := all[0].Name
	for what, c := range map[string]struct {
		o    metav1.ListOptions
		want int
	}{
		"label":            {metav1.ListOptions{LabelSelector: "app=web"}, 4},
		"no such label":    {metav1.ListOptions{LabelSelector: "app!=web"}, 0},
		"hidden label":     {metav1.ListOptions{LabelSelector: "agent-of-node"}, 0},
		"location":         {metav1.ListOptions{LabelSelector: "workload.kcp.io/location in (default),app"}, 4},
		"no such location": {metav1.ListOptions{LabelSelector: "workload.kcp.io/location=east"}, 0},
		"name":             {metav1.ListOptions{FieldSelector: "metadata.name=" + name}, 1},
		"phase":            {metav1.ListOptions{FieldSelector: "status.phase=Running,spec.nodeName=default"}, 4},
		"no such phase":    {metav1.ListOptions{FieldSelector: "status.phase!=Running"}, 0},
		"node":             {metav1.ListOptions{FieldSelector: "spec.nodeName=" + stock.Node}, 0},
		"namespace":        {metav1.ListOptions{FieldSelector: "metadata.namespace=default"}, 4},
		"limit":            {metav1.ListOptions{Limit: 1}, 4},
	} {
		if got, _ := s.pods(t, c.o); len(got) != c.want {
			t.Errorf("%s: %d pods, want %d", what, len(got), c.want)
		}
	}
	if everywhere, err := s.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil || len(everywhere.Items) != 4 {
		t.Errorf("in all namespaces: %v", err)
	}
	if _, err := s.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nonsense=1"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a field that cannot be selected: %v", err)
	}
	if _, err := s.CoreV1().Pods("default").Get(t.Context(), "nope", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that does not exist: %v", err)
	}
	if _, err := s.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) || !strings.Contains(err.Error(), "create a Deployment or a Job instead") {
		t.Errorf("creation of a pod: %v", err)
	}
	for how, of := range map[types.PatchType]string{types.MergePatchType: `{"metadata":{"labels":{"a":"b"}}}`, types.StrategicMergePatchType: `{"metadata":{"labels":{"a":"b"}}}`,
		types.ApplyPatchType: `{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b"}}}`} {
		if _, err := s.CoreV1().Pods("default").Patch(t.Context(), name, how, []byte(of), metav1.PatchOptions{FieldManager: "test"}); !apierrors.IsMethodNotSupported(err) || !strings.Contains(err.Error(), "change the pod template") {
			t.Errorf("%s of a pod: %v", how, err)
		}
	}
	for at, want := range map[string]bool{"root": false, "root:compute": false} {
		plain, err := kubernetes.NewForConfig(client.Cluster(s.config, at))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plain.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); apierrors.IsNotFound(err) == want {
			t.Errorf("pods in %s, which binds none: %v", at, err)
		}
	}
}

// watchesPods runs an informer while pods come and go.
func (s *tenant) watchesPods(t *testing.T) {
	shared := informers.NewSharedInformerFactory(s.Clientset, 0)
	lister := shared.Core().V1().Pods().Lister()
	shared.Start(t.Context().Done())
	shared.WaitForCacheSync(t.Context().Done())
	same := func() error {
		have, err := lister.Pods("default").List(labels.Everything())
		if err != nil {
			return err
		}
		want, _ := s.pods(t, metav1.ListOptions{})
		names := func(n int, of func(int) string) (all []string) {
			for i := range n {
				all = append(all, of(i))
			}
			slices.Sort(all)
			return all
		}
		a, b := names(len(have), func(i int) string { return have[i].Name }), names(len(want), func(i int) string { return want[i].Name })
		if !slices.Equal(a, b) || len(a) == 0 {
			return fmt.Errorf("the informer has %v, a list %v", a, b)
		}
		return nil
	}
	eventually(t, "first list", same)
	all, _ := s.pods(t, metav1.ListOptions{})
	gone := all[0]
	if err := s.CoreV1().Pods("default").Delete(t.Context(), gone.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(all[1].UID)}}); !apierrors.IsConflict(err) {
		t.Errorf("deletion of another pod: %v", err)
	}
	if err := s.CoreV1().Pods("default").Delete(t.Context(), gone.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deletion and its replacement", func() error {
		now, _ := s.pods(t, metav1.ListOptions{})
		if len(now) != 4 || slices.ContainsFunc(now, func(p corev1.Pod) bool { return p.UID == gone.UID }) {
			return fmt.Errorf("%d pods", len(now))
		}
		return same()
	})
	s.create(t, "second", 2) // a new Assignment
	s.rolledOut(t, "second")
	eventually(t, "pods of another Deployment", func() error {
		now, _ := s.pods(t, metav1.ListOptions{})
		if len(now) != 6 {
			return fmt.Errorf("%d pods", len(now))
		}
		return same()
	})
	s.remove(t, "second")
	eventually(t, "that they go", func() error {
		now, _ := s.pods(t, metav1.ListOptions{})
		if len(now) != 4 {
			return fmt.Errorf("%d pods", len(now))
		}
		return same()
	})
	for _, bad := range []string{"nonsense", "1x", "a-b"} {
		if _, err := s.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: bad}); !apierrors.IsBadRequest(err) {
			t.Errorf("resource version %q: %v", bad, err)
		}
	}
}

// topsPods runs "kubectl top pods" while no cluster, and then one, has the Metrics API.
func (s *tenant) topsPods(t *testing.T) {
	file := program(t)
	top := func() string {
		out, _ := exec.CommandContext(t.Context(), file, "--server="+client.Cluster(s.config, "root:"+s.name).Host, "top", "pods").CombinedOutput()
		return string(out)
	}
	if out := top(); !strings.Contains(out, "has no Metrics API") {
		t.Errorf("without the Metrics API: %s", out)
	}
	east := s.clusters["east"]
	m := measures(t, east)
	defer m.remove()
	all, err := east.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Items {
		m.set(p, "web", "123m", "45Mi")
	}
	out := top()
	for _, p := range all.Items {
		if !strings.Contains(out, p.Name) {
			t.Errorf("no usage of %s in %s", p.Name, out)
		}
	}
	if strings.Count(out, "123m") != len(all.Items) || !strings.Contains(out, "has no Metrics API") {
		t.Errorf("top: %s", out)
	}
	in := s.dynamic.Resource(schema.GroupVersionResource{Group: "metrics.k8s.io", Version: "v1beta1", Resource: "pods"})
	list, err := in.Namespace("default").List(t.Context(), metav1.ListOptions{LabelSelector: "workload.kcp.io/location=default"})
	if err != nil || len(list.Items) != len(all.Items) {
		t.Fatalf("%v, %v", list, err)
	}
	s.tellsNothing(t, list.Items)
	if one, err := in.Namespace("default").Get(t.Context(), all.Items[0].Name, metav1.GetOptions{}); err != nil || one.GetNamespace() != "default" {
		t.Errorf("one: %v, %v", one, err)
	}
}

// needsRights expects that RBAC of the workspace decides.
func (s *tenant) needsRights(t *testing.T) {
	as := func(name string, rules ...rbacv1.PolicyRule) *rest.Config {
		meta := metav1.ObjectMeta{Name: name}
		rules = append(rules, rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}})
		_, err := s.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		if err == nil {
			_, err = s.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}}, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		cfg := rest.CopyConfig(client.Cluster(s.config, "root:"+s.name))
		cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
		return cfg
	}
	read := rbacv1.PolicyRule{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/exec", "pods/attach", "pods/portforward"}}
	reader, runner := as("reader", read), as("runner", read, rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"pods/exec"}})
	all, _ := s.pods(t, metav1.ListOptions{})
	pod := all[0].Name
	typed, err := kubernetes.NewForConfig(reader)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := typed.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 4 {
		t.Errorf("a reader lists: %v", err)
	}
	if _, err := typed.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("a reader without pods/log reads a log: %v", err)
	}
	if err := typed.CoreV1().Pods("default").Delete(t.Context(), pod, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a reader deletes: %v", err)
	}
	for _, spdy := range []bool{true, false} {
		if out, _, err := s.run(t.Context(), reader, pod, spdy, nil, "echo", "ran"); err == nil || !strings.Contains(err.Error(), "forbidden") || out != "" {
			t.Errorf("a reader runs a command, SPDY %v: %q, %v", spdy, out, err)
		}
		if out, _, err := s.run(t.Context(), runner, pod, spdy, nil, "echo", "ran"); err != nil || out != "ran\n" {
			t.Errorf("a runner, SPDY %v: %q, %v", spdy, out, err)
		}
	}
}

// isolatesPods expects that another workspace on the same physical clusters sees its own pods only.
func (s *tenant) isolatesPods(t *testing.T) {
	other := s.shop(t, "neighbour", "compute")
	other.create(t, "own", 2)
	other.rolledOut(t, "own")
	mine, _ := other.pods(t, metav1.ListOptions{})
	if len(mine) != 2 || !strings.HasPrefix(mine[0].Name, "own-") || !strings.HasPrefix(mine[1].Name, "own-") {
		t.Errorf("%d pods", len(mine))
	}
	theirs, _ := s.pods(t, metav1.ListOptions{})
	east := s.clusters["east"]
	physical := east.only(t, "web").Namespace
	if _, err := other.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: physical}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{"default", physical, "kube-system"} {
		for _, p := range theirs {
			for _, name := range []string{p.Name, "../" + physical + "/" + p.Name, p.Name + "/log"} {
				if _, err := other.CoreV1().Pods(in).Get(t.Context(), name, metav1.GetOptions{}); err == nil {
					t.Errorf("a neighbour reads %s/%s", in, name)
				}
			}
			if _, err := other.CoreV1().Pods(in).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(t.Context()); !apierrors.IsNotFound(err) {
				t.Errorf("a neighbour reads the log of %s/%s: %v", in, p.Name, err)
			}
			if err := other.CoreV1().Pods(in).Delete(t.Context(), p.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("a neighbour deletes %s/%s: %v", in, p.Name, err)
			}
		}
		if list, err := other.CoreV1().Pods(in).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 && in != "default" {
			t.Errorf("a neighbour lists %d pods in %s, %v", len(list.Items), in, err)
		}
	}
	// A namespace that is not marked as that of the workspace is not read.
	ns, err := east.CoreV1().Namespaces().Get(t.Context(), physical, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mark := func(locator string) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"kcp.io/namespace-locator": locator}}})
		if err == nil {
			_, err = east.CoreV1().Namespaces().Patch(t.Context(), physical, "application/merge-patch+json", patch, metav1.PatchOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	mark(`{"cluster":"another","namespace":"default","target":"x"}`)
	if got, _ := s.pods(t, metav1.ListOptions{}); len(got) != 2 {
		t.Errorf("%d pods, while the namespace of one physical cluster is another's", len(got))
	}
	mark(ns.Annotations["kcp.io/namespace-locator"])
	if got, _ := s.pods(t, metav1.ListOptions{}); len(got) != 4 {
		t.Errorf("%d pods", len(got))
	}
	other.remove(t, "own")
}
