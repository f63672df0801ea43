//go:build unix

package physical

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/internal/workload/agent"
	"github.com/unforked/kcp/test/stock"
)

// An installed agent is what "workload sync --mode Pull" has put into a physical cluster.
type installed struct {
	cluster   *cluster
	namespace string
	bootstrap []byte
	stop      func()
}

// sync registers a cluster in pull mode, and runs the agent in this process: the control planes run no
// containers.
func (w *world) sync(t *testing.T, name, compute string) *installed {
	t.Helper()
	c := w.clusters[name]
	done := make(chan error, 1)
	var out string
	go func() {
		var err error
		out, err = kubectl(t, "workload", "sync", name, "--mode", "Pull", "--image", "kcp:test", "--kubeconfig", c.kubeconfig, "--labels", "region="+name, "-w", ":root:"+compute)
		done <- err
	}()
	i := c.installed(t)
	t.Cleanup(func() { i.stop() }) // also an agent that a subtest started
	i.start(t)
	if err := <-done; err != nil || !strings.Contains(out, "is ready") {
		t.Fatalf("sync: %v\n%s", err, out)
	}
	return i
}

// installed waits for an agent in a physical cluster.
func (c *cluster) installed(t *testing.T) *installed {
	t.Helper()
	i := &installed{cluster: c}
	eventually(t, "the agent is installed", func() error {
		all, err := c.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kcp-agent"})
		if err == nil && len(all.Items) != 1 {
			err = fmt.Errorf("%d agents", len(all.Items))
		}
		if err != nil {
			return err
		}
		i.namespace = all.Items[0].Namespace
		s, err := c.CoreV1().Secrets(i.namespace).Get(t.Context(), "kcp-agent-bootstrap", metav1.GetOptions{})
		if err == nil {
			i.bootstrap = s.Data["kubeconfig"]
		}
		return err
	})
	return i
}

// start runs the agent with the rights of its service account until stop is called.
func (i *installed) start(t *testing.T) {
	t.Helper()
	config := i.cluster.Config(stock.AdminToken)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + i.namespace + ":kcp-agent",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + i.namespace, "system:authenticated"}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		err := agent.Run(ctx, agent.Options{Bootstrap: i.bootstrap, Physical: config, Namespace: i.namespace, Replica: "one", Renew: 300 * time.Millisecond})
		if err != nil {
			panic(err) // the options are wrong
		}
	})
	var once sync.Once
	i.stop = func() { once.Do(func() { cancel(); running.Wait() }) }
}

// certificate returns the credentials of the agent.
func (i *installed) certificate(t *testing.T) tls.Certificate {
	t.Helper()
	s, err := i.cluster.CoreV1().Secrets(i.namespace).Get(t.Context(), "kcp-agent-credentials", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// view returns the URL of the view of the agent.
func (i *installed) view(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(i.bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	return config.Host
}

// as sends requests with a certificate.
func (w *world) as(t *testing.T, pair *tls.Certificate) func(method, url, body string) (int, string) {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if pair == nil {
			return &tls.Certificate{}, nil
		}
		return pair, nil
	}}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: patience}
	return func(method, url, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
}

func TestAgents(t *testing.T) {
	w := newWorld(t, "east", "west")
	must(t, "ws", "create", ":root:compute")
	east, west := w.sync(t, "east", "compute"), w.sync(t, "west", "compute")
	s := w.shop(t, "shop", "compute")
	t.Run("deployments are divided and summed", func(t *testing.T) { s.dividesAndSums(t) })
	t.Run("drift is repaired", func(t *testing.T) { s.repairsDrift(t) })
	t.Run("objects of others are not touched", func(t *testing.T) { s.leavesForeign(t) })
	t.Run("an agent reaches only what is its own", func(t *testing.T) { s.isolatesAgents(t, east, west) })
	t.Run("workspaces leave", func(t *testing.T) { s.leaves(t) })
	t.Run("restarts write nothing", func(t *testing.T) { s.restartsWithAgents(t, east) })
	t.Run("tunnels", func(t *testing.T) { s.tunnels(t, east) })
	if !isLong() {
		return
	}
	t.Run("the server is away", func(t *testing.T) { s.survivesServer(t) })
	t.Run("replicas", func(t *testing.T) { s.replicates(t, east) })
	t.Run("certificates are renewed", func(t *testing.T) { s.renews(t, east) })
	t.Run("the mode changes", func(t *testing.T) { s.changesMode(t) })
	t.Run("an agent is lost and returns", func(t *testing.T) { s.losesAgent(t, east) })
	t.Run("revoked", func(t *testing.T) { s.revokes(t, west) })
}

// Agents do what the server does for clusters in push mode: all kinds, and what these refer to.
func TestAgentsKinds(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "west")
	must(t, "ws", "create", ":root:compute")
	east, west := w.sync(t, "east", "compute"), w.sync(t, "west", "compute")
	s := w.shop(t, "shop", "compute")
	t.Run("dependencies follow their users", func(t *testing.T) { s.follows(t) })
	t.Run("a missing dependency is said", func(t *testing.T) { s.saysMissing(t) })
	t.Run("foreign dependencies are not touched", func(t *testing.T) { s.leavesForeignDependencies(t) })
	t.Run("an agent reads only what its parts refer to", func(t *testing.T) { s.isolatesDependencies(t, east) })
	t.Run("stateful sets", func(t *testing.T) { s.statefulSets(t) })
	t.Run("daemon sets", func(t *testing.T) { s.daemonSets(t) })
	t.Run("jobs", func(t *testing.T) { s.jobs(t) })
	t.Run("replica sets", func(t *testing.T) { s.replicaSets(t) })
	t.Run("services and others follow", func(t *testing.T) { s.followers(t) })
	t.Run("volume claims", func(t *testing.T) { s.volumeClaims(t) })
	t.Run("autoscalers", func(t *testing.T) { s.autoscalers(t) })
	t.Run("custom resources", func(t *testing.T) { s.customResourcesOfAgents(t, east, west) })
	t.Run("claims", func(t *testing.T) { w.refusesClaims(t) })
	t.Run("workspaces leave nothing", func(t *testing.T) { s.leavesNothing(t) })
	t.Run("a restart writes no dependency", func(t *testing.T) { s.restartsWithDependencies(t) })
}

// customResourcesOfAgents gives the agents the rights for a custom resource, which they do not have by
// themselves.
func (s *tenant) customResourcesOfAgents(t *testing.T, all ...*installed) {
	for _, i := range all {
		name := metav1.ObjectMeta{Name: "engines"}
		role := &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"example.com"}, Resources: []string{"*"}}}}
		if _, err := i.cluster.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: i.namespace, Name: "kcp-agent"}}}
		if _, err := i.cluster.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.offerEngines(t)
	s.customResources(t)
}

// isolatesDependencies is an attack with the credentials of an agent: it asks for what no workload of its
// target refers to.
func (s *tenant) isolatesDependencies(t *testing.T, east *installed) {
	s.configMap(t, "mine", "readable")
	s.secret(t, "mine", corev1.SecretTypeOpaque)
	s.secret(t, "other", corev1.SecretTypeOpaque)
	s.using(t, "attacked", 2, "mine", "mine", "")
	s.rolledOut(t, "attacked")
	pair := east.certificate(t)
	as := s.as(t, &pair)
	below := east.view(t) + "/clusters/" + s.logical(t) + "/apis/workload.kcp.io/v1alpha1/namespaces/default/dependencies/"
	for _, of := range []string{"mine/configmaps", "mine/secrets"} {
		if code, text := as("GET", below+of, ""); code != http.StatusOK || !strings.Contains(text, `"key":`) {
			t.Errorf("%s: %d %s", of, code, text)
		}
	}
	for _, of := range []string{"other/secrets", "mine/serviceaccounts", "kube-root-ca.crt/configmaps", "attacked/deployments.apps", "mine/pods"} {
		if code, text := as("GET", below+of, ""); code != http.StatusForbidden {
			t.Errorf("%s: %d %s", of, code, text)
		}
	}
	if code, text := as("GET", strings.Replace(below, "/dependencies/", "/unused/", 1)+"other/secrets", ""); code != http.StatusOK || !strings.Contains(text, `"unused":true`) {
		t.Errorf("unused: %d %s", code, text)
	}
	if code, text := as("PUT", below+"mine/configmaps", "{}"); code != http.StatusForbidden {
		t.Errorf("a write: %d %s", code, text)
	}
	s.remove(t, "attacked")
	// Its parts are gone: it reads nothing any more.
	eventually(t, "the end of the right to read", func() error {
		if code, text := as("GET", below+"mine/secrets", ""); code != http.StatusForbidden {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
}

func synctargets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "workload.kcp.io", Version: "v1alpha1", Resource: "synctargets"}
}

// isolatesAgents is an attack with the credentials of an agent.
func (s *tenant) isolatesAgents(t *testing.T, east, west *installed) {
	s.create(t, "shared", 2)
	s.rolledOut(t, "shared")
	pair := east.certificate(t)
	as := s.as(t, &pair)
	own, other := east.view(t), west.view(t)
	deployments := "/clusters/*/apis/workload.kcp.io/v1alpha1/workloads"
	code, text := as("GET", own+deployments, "")
	if code != http.StatusOK || !strings.Contains(text, `"shared"`) || strings.Contains(text, `"status":`) {
		t.Errorf("its own view: %d %s", code, text)
	}
	if code, text = as("GET", own+"/clusters/*/apis/workload.kcp.io/v1alpha1/assignments", ""); code != http.StatusOK || strings.Count(text, `"key":`) != strings.Count(text, `"phase":`) || strings.Contains(text, s.keyOf(t, "west")) {
		t.Errorf("its Assignments: %d %s", code, text)
	}
	if code, text = as("GET", own+"/clusters/*/apis/workload.kcp.io/v1alpha1/targetstatuses", ""); code != http.StatusOK || strings.Contains(text, s.keyOf(t, "west")) {
		t.Errorf("its reports: %d %s", code, text)
	}
	base, _, _ := strings.Cut(own, "/services/")
	uid := own[strings.LastIndex(own, "/")+1:]
	tenantCluster := s.logical(t)
	for what, of := range map[string][3]string{
		"another target":             {"GET", other + deployments},
		"another uid":                {"GET", strings.Replace(own, uid, "00000000-0000-0000-0000-000000000000", 1) + deployments},
		"another name":               {"GET", strings.Replace(own, "/east/", "/west/", 1) + deployments},
		"another cluster":            {"GET", base + "/services/syncer/" + tenantCluster + "/east/" + uid + deployments},
		"the root":                   {"GET", base + "/services/syncer/root/east/" + uid + deployments},
		"secrets in its view":        {"GET", own + "/clusters/*/api/v1/secrets"},
		"writes in its view":         {"POST", own + "/clusters/" + tenantCluster + "/apis/apps/v1/namespaces/default/deployments", "{}"},
		"an Assignment":              {"PUT", own + "/clusters/" + tenantCluster + "/apis/workload.kcp.io/v1alpha1/namespaces/default/assignments/x", "{}"},
		"the core API of compute":    {"GET", base + "/clusters/root:compute/api/v1/namespaces/kcp-synctargets/secrets"},
		"its SyncTarget":             {"GET", base + "/clusters/root:compute/apis/workload.kcp.io/v1alpha1/synctargets/east"},
		"the objects of the tenant":  {"GET", base + "/clusters/root:shop/apis/apps/v1/deployments"},
		"the view of the export":     {"GET", base + "/services/apiexport/" + s.logicalOf(t, "compute") + "/kubernetes/clusters/*/apis/apps/v1/deployments"},
		"another one's certificate":  {"POST", other + "/certificate", `{"request":"","physicalCluster":"x"}`},
		"another one's heartbeat":    {"PUT", other + "/heartbeat", `{"physicalCluster":"x"}`},
		"another one's tunnel":       {"GET", other + "/tunnel"},
		"all clusters":               {"GET", base + "/clusters/*/apis/apps/v1/deployments"},
		"no discovery of the server": {"GET", own + "/clusters/*/api"},
	} {
		if code, text := as(of[0], of[1], of[2]); code < 400 || code == http.StatusInternalServerError {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
	if code, text := s.as(t, nil)("GET", own+deployments, ""); code != http.StatusForbidden && code != http.StatusUnauthorized {
		t.Errorf("without a certificate: %d %s", code, text)
	}
	if code, text := as("PUT", own+"/heartbeat", `{"physicalCluster":"another"}`); code != http.StatusConflict {
		t.Errorf("a second cluster of the name: %d %s", code, text)
	}
	status := `{"spec":{"key":"` + s.keyOf(t, "west") + `","workload":{"group":"apps","resource":"deployments","kind":"Deployment","name":"shared","uid":"x"}}}`
	if code, text := as("PUT", own+"/clusters/"+tenantCluster+"/apis/workload.kcp.io/v1alpha1/namespaces/default/targetstatuses/x", status); code != http.StatusBadRequest {
		t.Errorf("a report of another target: %d %s", code, text)
	}
	s.remove(t, "shared")
}

func (w *world) keyOf(t *testing.T, target string) string {
	t.Helper()
	o, err := w.in(t, "compute").Resource(synctargets()).Get(t.Context(), target, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status, _ := o.Object["status"].(map[string]any)
	key, _ := status["key"].(string)
	if key == "" {
		t.Fatal("the SyncTarget has no key")
	}
	return key
}

func (s *tenant) logical(t *testing.T) string { return s.logicalOf(t, s.name) }

func (w *world) logicalOf(t *testing.T, name string) string {
	t.Helper()
	o, err := w.in(t, name).Resource(schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}).Get(t.Context(), "cluster", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o.GetAnnotations()["kcp.io/cluster"]
}

// generations returns what a write would change.
func (c *cluster) state(t *testing.T, names ...string) string {
	t.Helper()
	var all []string
	for _, name := range names {
		d := c.only(t, name)
		all = append(all, fmt.Sprintf("%s %s %d %v", name, d.UID, d.Generation, d.ManagedFields[0].Time))
	}
	return strings.Join(all, "\n")
}

func (s *tenant) restartsWithAgents(t *testing.T, east *installed) {
	s.create(t, "still", 4)
	s.rolledOut(t, "still")
	before := s.clusters["east"].state(t, "still", "drift")
	s.restart(t)
	east.stop()
	east.start(t)
	s.patch(t, "still", `{"spec":{"replicas":6}}`) // it is alive
	s.rolledOut(t, "still")
	s.patch(t, "still", `{"spec":{"replicas":4}}`)
	s.rolledOut(t, "still")
	if after := s.clusters["east"].state(t, "drift"); !strings.Contains(before, after) {
		t.Errorf("written: before\n%s\nafter\n%s", before, after)
	}
}

// survivesServer repairs drift while there is no server.
func (s *tenant) survivesServer(t *testing.T) {
	east := s.clusters["east"]
	have := east.only(t, "still")
	s.stopServer(t)
	if _, err := east.AppsV1().Deployments(have.Namespace).Patch(t.Context(), "still", "application/merge-patch+json", []byte(`{"spec":{"replicas":9}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "repair without a server", func() error {
		if d := east.only(t, "still"); *d.Spec.Replicas != 2 {
			return fmt.Errorf("%d replicas", *d.Spec.Replicas)
		}
		return nil
	})
	s.startServer(t)
	s.Clientset, s.dynamic = s.typed(t), s.in(t, s.name)
	if now := east.only(t, "still"); now.UID != have.UID {
		t.Error("it was created anew")
	}
	s.patch(t, "still", `{"spec":{"replicas":8}}`)
	s.rolledOut(t, "still")
	s.split(t, "still", "east 4/4, west 4/4")
}

// changesMode takes a cluster from pull to push and back.
func (s *tenant) changesMode(t *testing.T) {
	east := s.clusters["east"]
	before := east.state(t, "still", "drift")
	for _, mode := range [][]string{{"--mode", "Push"}, {"--mode", "Pull", "--image", "kcp:test"}} {
		must(t, append([]string{"workload", "sync", "east", "--kubeconfig", east.kubeconfig, "-w", ":root:compute"}, mode...)...)
		s.create(t, "during", 2)
		s.rolledOut(t, "during")
		s.split(t, "during", "east 1/1, west 1/1")
		s.remove(t, "during")
	}
	if after := east.state(t, "still", "drift"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

func (s *tenant) losesAgent(t *testing.T, east *installed) {
	s.place(t, `{"spec":{"tolerations":[{"key":"workload.kcp.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":1}]}}`)
	east.stop()
	s.split(t, "still", "east 4/-, west 8/8")
	s.rolledOut(t, "still")
	east.start(t)
	s.split(t, "still", "west 8/8")
	s.rolledOut(t, "still")
}

// revokes uses the credentials of an agent whose certificate was revoked, and of one whose SyncTarget
// was deleted.
func (s *tenant) revokes(t *testing.T, west *installed) {
	pair := west.certificate(t)
	as := s.as(t, &pair)
	list := west.view(t) + "/clusters/*/apis/workload.kcp.io/v1alpha1/workloads"
	if code, text := as("GET", list, ""); code != http.StatusOK {
		t.Fatalf("before: %d %s", code, text)
	}
	west.stop()
	patch := fmt.Sprintf(`{"spec":{"credentialsAfter":%q}}`, time.Now().Add(time.Minute).UTC().Format(time.RFC3339))
	if _, err := s.in(t, "compute").Resource(synctargets()).Patch(t.Context(), "west", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, text := as("GET", list, ""); code != http.StatusForbidden || !strings.Contains(text, "revoked") {
		t.Errorf("revoked: %d %s", code, text)
	}
	if err := s.in(t, "compute").Resource(synctargets()).Delete(t.Context(), "west", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
