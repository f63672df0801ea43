package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unforked/kcp"
)

// existing builds the programs of a module below test/tools/existing, unmodified, and starts a server
// for them. Both are in the directory that it returns. Such a build takes minutes, so tests that
// need one run only in the long form.
func existing(t *testing.T, module, packages string) (dir string) {
	t.Helper()
	if !wanted("long") {
		t.Skip("programs of the existing kcp are built and run by make conformance")
	}
	dir = t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "-C", module, "build", "-o", dir+"/", packages)
	build.Env = append(build.Environ(), "GOFLAGS=-buildvcs=false") // the rest may be built with the race detector
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", module, err, out)
	}
	srv := &kcp.Server{Dir: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", NoSync: true}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// The typed clients of the existing kcp, its cluster-aware informers and its providers for
// multicluster-runtime work with this server.
func TestExistingClients(t *testing.T) {
	dir := existing(t, "../tools/existing", ".")
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "existing"), filepath.Join(dir, "data", "admin.kubeconfig")).CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Fatal(err)
	}
}

// exported is an export, with a claim, of the schema that the test makes.
const exported = `apiVersion: apis.kcp.io/v1alpha1
kind: APIExport
metadata: {name: widgets}
spec:
  latestResourceSchemas: [v1.widgets.example.com]
  permissionClaims: [{group: "", resource: configmaps, all: true}]
`

const defined = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`

// The plugins of the existing kcp make, enter and show workspaces, and share an API between them.
func TestExistingPlugins(t *testing.T) {
	dir := existing(t, "../tools/existing/plugins", "tool")
	for name, text := range map[string]string{"export.yaml": exported, "definition.yaml": defined} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ command, says string }{
		{"kubectl-ws .", "Current workspace is 'root'."},
		{"kubectl-create-workspace team --enter", "Current workspace is 'root:team' (type root:organization)."},
		{"kubectl-create-workspace team --ignore-existing", `Workspace "team" (type root:universal) is ready to use.`},
		{"kubectl-ws ..", "Current workspace is 'root'"},
		{"kubectl-create-workspace team", "already exists"},
		{"kubectl-create-workspace team --type root:organization --ignore-existing", `Workspace "team" (type root:organization) already exists.`},
		{"kubectl-ws tree -f", "root:team:team"},
		{"kubectl-ws :root:team", "Current workspace is 'root:team' (type root:organization)."},
		{"kubectl-ws -", "Current workspace is 'root'."},
		{"kubectl-ws use none", "could not find"},
		{"kubectl-ws :root:team", "'root:team'"},
		{"kubectl-kcp crd snapshot --prefix v1 -f definition.yaml > schema.yaml && kubectl create -f schema.yaml -f export.yaml", "apiexport.apis.kcp.io/widgets created"},
		{"kubectl-create-workspace consumer --enter", "'root:team:consumer'"},
		{"kubectl-kcp bind apiexport root:team:none", "no permission to bind to export root:team:none"},
		{"kubectl-kcp bind apiexport root:team:widgets --accept-permission-claim configmaps.core", "widgets created and bound."},
		{"kubectl-kcp claims get apibinding widgets", "Accepted"},
		{"kubectl get widgets", "No resources found"},
		{"kubectl-create-workspace reluctant --enter", "'root:team:consumer:reluctant'"},
		{"kubectl-kcp bind apiexport root:team:widgets --name w --reject-permission-claim configmaps.core", "w created and bound."},
		{"kubectl-kcp claims get apibinding", "Rejected"},
		{"kubectl-ws", "Current workspace is"}, // the home
	} {
		c := exec.CommandContext(t.Context(), "bash", "-c", step.command)
		c.Dir = dir
		c.Env = append(c.Environ(), "KUBECONFIG="+filepath.Join(dir, "data", "admin.kubeconfig"), "PATH="+dir+":"+bin+":"+os.Getenv("PATH"))
		if out, _ := c.CombinedOutput(); !strings.Contains(string(out), step.says) { // some steps fail as they should
			t.Fatalf("%s printed %q, without %q", step.command, out, step.says)
		}
	}
}
