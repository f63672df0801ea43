package conformance

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/test/stock"
)

// Helm installs, upgrades, rolls back and uninstalls a chart in ten workspaces at once, without
// interference. The short form uses three workspaces.
func TestHelm(t *testing.T) {
	helm, workspace := program(t, "helm"), startKCP(t)
	n := 3
	if wanted("long") {
		n = 10
	}
	var all []*release
	for i := range n {
		name := fmt.Sprintf("helm-%d", i)
		s := workspace(t, name)
		all = append(all, &release{side: s, name: name, helm: helm, kubeconfig: s.kubeconfig(t), home: t.TempDir()})
	}
	together(all, func(r *release) { r.firstHalf(t) })
	for _, r := range all[1:] {
		if r.password == "" || r.password == all[0].password {
			t.Errorf("%s: password %q is not its own", r.name, r.password)
		}
	}
	if t.Failed() {
		return
	}
	// The uninstallation of one release does not change the others.
	all[0].uninstall(t)
	together(all[1:], func(r *release) { r.rollback(t) })
	together(all[1:], func(r *release) { r.uninstall(t) })
}

func together(all []*release, do func(*release)) {
	var wait sync.WaitGroup
	for _, r := range all {
		wait.Go(func() { do(r) })
	}
	wait.Wait()
}

// release is a release of the chart in one workspace.
type release struct {
	*side
	name, helm, kubeconfig, home, password string
}

// run runs Helm.
func (r *release) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), r.helm, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.kubeconfig, "HOME="+r.home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: helm %s: %v\n%s", r.name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// get returns the object at a path in the workspace.
func (r *release) get(t *testing.T, path string) (body any, status int) {
	t.Helper()
	a, raw, err := r.once(t, request{method: http.MethodGet, path: path, as: "user"})
	if err != nil {
		t.Errorf("%s: GET %s: %v", r.name, path, err)
	}
	return raw, a.Status
}

const (
	greetings = "/apis/helm.example.com/v1/namespaces/default/greetings"
	namespace = "/api/v1/namespaces/default"
)

// has checks the objects of the chart after one run of Helm.
func (r *release) has(t *testing.T, want map[string]any) {
	t.Helper()
	greeting, _ := r.get(t, greetings+"/greeter")
	after, _ := r.get(t, greetings+"/after")
	before, _ := r.get(t, namespace+"/configmaps/before")
	secret, _ := r.get(t, namespace+"/secrets/greeter")
	role, _ := r.get(t, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/greeter")
	_, passing := r.get(t, namespace+"/configmaps/passing")
	got := map[string]any{
		"text": field(greeting, "spec", "text"), "language": field(greeting, "spec", "language"),
		"after": field(after, "spec", "text"), "revision": field(before, "data", "revision"),
		"before": field(secret, "data", "before"), "served": field(secret, "data", "served"),
		"role": field(role, "roleRef", "name"), "passing": passing,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s has\n%v, want\n%v", r.name, got, want)
	}
	password, _ := field(secret, "data", "password").(string)
	if r.password != "" && password != r.password {
		t.Errorf("%s: the password was %s and is %s: lookup did not find it", r.name, r.password, password)
	}
	r.password = password
}

// firstHalf installs the chart and upgrades it.
func (r *release) firstHalf(t *testing.T) {
	chart := filepath.Join("testdata", "chart")
	r.run(t, "install", "greeter", chart, "--set", "text="+r.name, "--wait")
	first := map[string]any{
		"text": r.name, "language": "en", "after": r.name + " again", "revision": "1",
		"before": "bm9uZQ==", "served": "dHJ1ZQ==", "role": "greeter", "passing": 404, // none, true
	}
	r.has(t, first)
	r.run(t, "upgrade", "greeter", chart, "--set", "text=other", "--wait")
	second := maps.Clone(first)
	second["text"], second["after"], second["revision"], second["before"] = "other", "other again", "2", base64.StdEncoding.EncodeToString([]byte(r.name))
	r.has(t, second)
}

func (r *release) rollback(t *testing.T) {
	r.run(t, "rollback", "greeter", "1", "--wait")
	r.has(t, map[string]any{
		"text": r.name, "language": "en", "after": "other again", "revision": "1",
		"before": "bm9uZQ==", "served": "dHJ1ZQ==", "role": "greeter", "passing": 404,
	})
	if out := r.run(t, "history", "greeter"); strings.Count(out, "superseded") != 2 || strings.Count(out, "deployed") != 1 {
		t.Errorf("%s: history is\n%s", r.name, out)
	}
}

// uninstall removes the release. Objects of hooks and the CRD stay.
func (r *release) uninstall(t *testing.T) {
	r.run(t, "uninstall", "greeter", "--wait")
	for path, want := range map[string]int{
		greetings + "/greeter": 404, namespace + "/secrets/greeter": 404, namespace + "/serviceaccounts/greeter": 404,
		greetings + "/after": 200, namespace + "/configmaps/before": 200, crds + "/greetings.helm.example.com": 200,
	} {
		if _, status := r.get(t, path); status != want {
			t.Errorf("%s: after helm uninstall, %s is %d, want %d", r.name, path, status, want)
		}
	}
}

// kubeconfig writes a kubeconfig for the user of a workspace.
func (s *side) kubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: s.base, CertificateAuthority: s.config("").CAFile, CertificateAuthorityData: s.config("").CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": {Token: stock.UserToken}},
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
