package conformance

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unforked/kcp/test/stock"
)

// The unmodified External Secrets Operator creates Secrets from ExternalSecrets in the workspace
// of its kubeconfig. It links the libraries of all clouds, so its build takes minutes. The test
// runs only in the long form.
func TestOperator(t *testing.T) {
	if !wanted("long") {
		t.Skip("the operator is built and run by make conformance")
	}
	program, definitions := operator(t)
	workspace := startKCP(t)
	s, other := workspace(t, "operator"), workspace(t, "without")
	for _, d := range documents(t, definitions) {
		s.must(t, crds, text(d.object))
		other.must(t, crds, text(d.object))
	}
	start(t, program, s.kubeconfig(t))
	const api = "/apis/external-secrets.io/v1/namespaces/default/"
	for _, w := range []*side{s, other} {
		w.must(t, api+"secretstores", store("one"))
		w.must(t, api+"externalsecrets", `{"apiVersion":"external-secrets.io/v1","kind":"ExternalSecret","metadata":{"name":"made"},"spec":{
			"refreshInterval":"1s","secretStoreRef":{"name":"fake","kind":"SecretStore"},
			"data":[{"secretKey":"password","remoteRef":{"key":"/password"}}]}}`)
	}
	secret := func(w *side) any {
		_, raw, err := w.once(t, request{method: http.MethodGet, path: "/api/v1/namespaces/default/secrets/made", as: "user"})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	has := func(password string) {
		t.Helper()
		want := base64.StdEncoding.EncodeToString([]byte(password))
		if !eventually(t, func() bool { return field(secret(s), "data", "password") == want }) {
			_, raw, _ := s.once(t, request{method: http.MethodGet, path: api + "externalsecrets/made", as: "user"})
			t.Fatalf("no secret with the password %q; there is %v, of\n%v", password, text(secret(s)), text(raw))
		}
	}
	has("one")
	s.send(t, request{name: "change the store", method: http.MethodPatch, path: api + "secretstores/fake", as: "user",
		header: http.Header{"Content-Type": {mergePatch}}, body: store("two")})
	has("two")
	if status := field(secret(other), "code"); status != 404.0 {
		t.Errorf("the operator of another workspace made %v", text(secret(other)))
	}
	s.send(t, request{name: "delete", method: http.MethodDelete, path: api + "externalsecrets/made", as: "user"})
	if !eventually(t, func() bool { return field(secret(s), "code") == 404.0 }) {
		t.Errorf("the secret outlives its owner: %v", text(secret(s)))
	}
}

// store is a SecretStore of the fake provider, which contains its values.
func store(password string) string {
	return `{"apiVersion":"external-secrets.io/v1","kind":"SecretStore","metadata":{"name":"fake"},"spec":{"provider":{"fake":{"data":[
		{"key":"/password","value":"` + password + `"}]}}}}`
}

// operator builds the operator, and returns its path and the file with its CRDs.
func operator(t *testing.T) (program, definitions string) {
	t.Helper()
	const module = "github.com/external-secrets/external-secrets"
	program = filepath.Join(t.TempDir(), "operator")
	build := exec.CommandContext(t.Context(), "go", "-C", "../tools/operator", "build", "-o", program, module)
	build.Env = append(build.Environ(), "GOFLAGS=-buildvcs=false") // the rest is built with the race detector
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, out)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "-C", "../tools/operator", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	return program, filepath.Join(string(dir[:len(dir)-1]), "deploy", "crds", "bundle.yaml")
}

// start runs the operator until the test ends.
func start(t *testing.T, program, kubeconfig string) {
	t.Helper()
	ports, err := stock.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	p, err := stock.Launch(t.TempDir(), "operator", "env", "KUBECONFIG="+kubeconfig, program,
		fmt.Sprintf("--metrics-addr=127.0.0.1:%d", ports[0]), fmt.Sprintf("--live-addr=127.0.0.1:%d", ports[1]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Log(p.Ended())
		}
	})
}
