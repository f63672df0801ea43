//go:build unix

package physical

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// TestHostile has a consumer with two physical clusters, whose owners wrote them themselves.
func TestHostile(t *testing.T) {
	w := newWorld(t)
	must(t, "ws", "create", ":root:compute")
	east, west := w.forge(t, "east", "compute"), w.forge(t, "west", "compute")
	s := w.shop(t, "shop", "compute")
	s.create(t, "web", 2)
	eventually(t, "the parts", func() error {
		out, err := kubectl(t, "workload", "get", "deployment/web", "-w", ":root:shop")
		if err == nil && !strings.Contains(out, "web: east 0/1, west 0/1") {
			err = fmt.Errorf("got\n%s", out)
		}
		return err
	})
	t.Run("wrong reports hide no others", func(t *testing.T) { s.sumsDespiteWrong(t, east, west) })
	t.Run("wrong addresses hide no others", func(t *testing.T) { s.joinsDespiteWrong(t, east, west) })
	t.Run("streams end with the rights", func(t *testing.T) { s.endsStreams(t, east) })
	t.Run("a token of a manifest", func(t *testing.T) { s.stealsManifest(t, east, west) })
}

// stealsManifest uses the token of a manifest for what it is not for, and after another manifest was made.
func (s *tenant) stealsManifest(t *testing.T, east, west *forged) {
	thief := &forged{world: s.world, name: "east", view: east.view, token: east.token}
	for what, c := range map[string]struct{ method, url string }{
		"a certificate of another cluster": {http.MethodPost, west.view + "/" + syncer.Certificate},
		"the heartbeat":                    {http.MethodPut, east.view + "/" + syncer.Heartbeat},
		"objects with a part":              {http.MethodGet, east.view + "/clusters/*/apis/workload.kcp.io/v1alpha1/workloads"},
		"the SyncTarget":                   {http.MethodGet, s.config.Host + "/clusters/root:compute/apis/workload.kcp.io/v1alpha1/synctargets/east"},
		"objects of a tenant":              {http.MethodGet, s.config.Host + "/clusters/root:shop/api/v1/namespaces/default/secrets"},
	} {
		if code, text, err := thief.sendToken(t, c.method, c.url, "{}"); err != nil || code != http.StatusForbidden {
			t.Errorf("%s: %d %s, %v", what, code, text, err)
		}
	}
	if code, text, err := thief.sendToken(t, http.MethodPost, east.view+"/"+syncer.Certificate, "{}"); err != nil || code != http.StatusBadRequest {
		t.Fatalf("a malformed request for a certificate: %d %s, %v", code, text, err)
	}
	east.manifest(t, "compute")
	if code, text, err := thief.sendToken(t, http.MethodPost, east.view+"/"+syncer.Certificate, "{}"); err != nil || code != http.StatusUnauthorized {
		t.Errorf("after another manifest: %d %s, %v", code, text, err)
	}
}

// report writes the report of a forged physical cluster about an object, and returns the answer.
func (f *forged) report(t *testing.T, s *tenant, of schema.GroupResource, o metav1.Object, kind, status string) (int, string) {
	t.Helper()
	key := f.keyOf(t, f.name)
	text, err := json.Marshal(map[string]any{"apiVersion": "workload.kcp.io/v1alpha1", "kind": "TargetStatus", "spec": map[string]any{
		"key": key, "generation": o.GetGeneration(), "replicas": 1, "observed": true, "reported": json.RawMessage(status),
		"workload": map[string]any{"group": of.Group, "resource": of.Resource, "kind": kind, "name": o.GetName(), "uid": o.GetUID()}}})
	if err != nil {
		t.Fatal(err)
	}
	code, answer, err := f.send(t.Context(), http.MethodPut, "/clusters/"+s.logical(t)+"/apis/workload.kcp.io/v1alpha1/namespaces/default/targetstatuses/"+engine.StatusName(of, o.GetName(), key), string(text))
	if err != nil {
		t.Fatal(err)
	}
	return code, answer
}

// sumsDespiteWrong lets one physical cluster report what cannot be, while another one goes on.
func (s *tenant) sumsDespiteWrong(t *testing.T, good, bad *forged) {
	web, err := s.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	report := func(f *forged, status string) {
		t.Helper()
		if code, text := f.report(t, s, deployments, web, "Deployment", status); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	for i, wrong := range []string{`{"replicas":"many"}`, `{"readyReplicas":-1000}`, `{"readyReplicas":1e300}`, `[]`, `{"conditions":[{"type":"Progressing","status":"False","reason":"x\n"}]}`} {
		report(bad, wrong)
		report(good, fmt.Sprintf(`{"replicas":%d,"readyReplicas":%d}`, i+1, i+1))
		eventually(t, "the sum beside "+wrong, func() error {
			now, err := s.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
			if err == nil && now.Status.ReadyReplicas != int32(i+1) {
				err = fmt.Errorf("%+v", now.Status)
			}
			return err
		})
	}
	for _, f := range []*forged{good, bad} {
		report(f, `{"replicas":2147483647,"readyReplicas":2147483647}`)
	}
	eventually(t, "the sum of large numbers", func() error {
		now, err := s.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && now.Status.ReadyReplicas != 2_000_000 {
			err = fmt.Errorf("%+v", now.Status)
		}
		return err
	})
	if code, text := bad.report(t, s, deployments, web, "Deployment", `{"x":"`+strings.Repeat("x", 20<<10)+`"}`); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large status: %d %s", code, text)
	}
}

// joinsDespiteWrong lets one physical cluster report an address that the workspace refuses.
func (s *tenant) joinsDespiteWrong(t *testing.T, good, bad *forged) {
	made, err := s.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for f, status := range map[*forged]string{bad: `{"loadBalancer":{"ingress":[{"ip":"nonsense"}]}}`, good: `{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}`} {
		eventually(t, "the report", func() error {
			if code, text := f.report(t, s, schema.GroupResource{Resource: "services"}, made, "Service", status); code != http.StatusOK {
				return fmt.Errorf("%d %s", code, text)
			}
			return nil
		})
	}
	eventually(t, "the address", func() error {
		now, err := s.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
		if all := now.Status.LoadBalancer.Ingress; err == nil && (len(all) != 1 || all[0].IP != "192.0.2.1") {
			err = fmt.Errorf("%+v", now.Status)
		}
		return err
	})
}

// endsStreams follows a log while the rights of the user are removed.
func (s *tenant) endsStreams(t *testing.T, east *forged) {
	east.serve(t, s, east.pod(func(w http.ResponseWriter, req *http.Request) {
		_, _ = fmt.Fprintln(w, "line")
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	}))
	name := metav1.ObjectMeta{Name: "reader"}
	if _, err := s.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: name}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/log"}}}}
	if _, err := s.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "reader"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := s.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := client.Cluster(s.config, "root:"+s.name)
	config.BearerToken, config.CertData, config.KeyData, config.CertFile, config.KeyFile, config.BearerTokenFile = token.Status.Token, nil, nil, "", "", ""
	reader, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	follow, err := reader.CoreV1().Pods("default").GetLogs("web-1", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	lines := bufio.NewScanner(follow)
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	if err := s.RbacV1().RoleBindings("default").Delete(t.Context(), "reader", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || !strings.Contains(lines.Text(), "the log ends: the user has lost the right") || !strings.Contains(lines.Text(), "ask an administrator of the workspace") {
		t.Errorf("the log does not say why it ends: %q, %v", lines.Text(), lines.Err())
	}
	if lines.Scan() { // else the test waits until its time is over
		t.Errorf("another line: %s", lines.Text())
	}
}
