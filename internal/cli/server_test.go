package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// A world is a server with some workspaces. It has the part of the API that navigation needs.
type world struct {
	t *testing.T
	*httptest.Server

	// phases has the phase of each workspace by path.
	phases map[string]string
	// denied has the clusters in which reads are forbidden.
	denied map[string]bool
	// homeless makes requests for the home workspace forbidden instead of not found.
	homeless bool
	// blind forbids watches.
	blind bool
	// fickle ends each watch after its events.
	fickle bool
	// birth has the phases of a new workspace: the first in the response to its creation,
	// the others in watch events.
	birth []string

	mu      sync.Mutex
	created []map[string]any // bodies of create requests
	seen    []string         // method and URL of each request
}

const rootType = "organization"

func newWorld(t *testing.T, workspaces ...string) *world {
	w := &world{t: t, phases: map[string]string{}, denied: map[string]bool{}, birth: []string{"Ready"}}
	for _, path := range workspaces {
		w.phases[path] = "Ready"
	}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.seen = append(w.seen, r.Method+" "+r.URL.String())
	w.mu.Unlock()
	after, ok := strings.CutPrefix(r.URL.Path, "/clusters/")
	path, rest, _ := strings.Cut(after, "/")
	switch {
	case r.URL.Path == remote.ReachableService:
		w.serveReachable(rw, r)
	case !ok:
		answer(rw, 403, failure("Forbidden", "no cluster", "", ""))
	case w.denied[path]:
		answer(rw, 403, failure("Forbidden", "access denied", "", ""))
	case path != "root" && w.phases[path] == "":
		if strings.Contains(path, ":") {
			answer(rw, 404, failure("NotFound", fmt.Sprintf("workspaces.tenancy.kcp.io %q not found", path), "workspaces", path))
		} else {
			answer(rw, 403, failure("Forbidden", "access denied", "", ""))
		}
	case rest == "api":
		answer(rw, 200, map[string]any{"kind": "APIVersions", "versions": []string{"v1"}})
	case rest == "apis/core.kcp.io/v1alpha1/logicalclusters/cluster":
		answer(rw, 200, map[string]any{"apiVersion": "core.kcp.io/v1alpha1", "kind": "LogicalCluster", "metadata": map[string]any{
			"name": "cluster", "annotations": map[string]any{"internal.tenancy.kcp.io/type": "root:" + path},
		}})
	case strings.HasPrefix(rest, "apis/tenancy.kcp.io/v1alpha1/workspaces"):
		w.serveWorkspaces(rw, r, path, strings.TrimPrefix(strings.TrimPrefix(rest, "apis/tenancy.kcp.io/v1alpha1/workspaces"), "/"))
	default:
		answer(rw, 404, failure("NotFound", "the server could not find the requested resource", "", ""))
	}
}

// serveReachable lists the workspaces that are not denied, in pages of one.
func (w *world) serveReachable(rw http.ResponseWriter, r *http.Request) {
	var found []string
	for path := range w.phases {
		if !w.denied[path] && path > r.URL.Query().Get("continue") {
			found = append(found, path)
		}
	}
	slices.Sort(found)
	items, next := []any{}, ""
	if len(found) > 0 {
		up, name, _ := paths.Parent(cluster.Path(found[0]))
		o := w.workspace(string(up), name, w.phases[found[0]])
		o["metadata"].(map[string]any)["annotations"] = map[string]any{"kcp.io/path": found[0]}
		items = append(items, o)
	}
	if len(found) > 1 {
		next = found[0]
	}
	answer(rw, 200, map[string]any{"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "WorkspaceList", "metadata": map[string]any{"continue": next}, "items": items})
}

func (w *world) serveWorkspaces(rw http.ResponseWriter, r *http.Request, path, name string) {
	switch {
	case r.Method == http.MethodPost:
		w.serveCreate(rw, r, path)
	case name == "~" && w.homeless:
		answer(rw, 403, failure("Forbidden", `workspaces.tenancy.kcp.io "~" is forbidden: workspace access not permitted`, "workspaces", "~"))
	case name == "~" && w.phases["alices-home"] != "":
		answer(rw, 200, map[string]any{"metadata": map[string]any{"name": "cluster"}, "spec": map[string]any{"cluster": "alices-home"}, "apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace"})
	case name != "":
		if w.phases[path+":"+name] == "" {
			answer(rw, 404, failure("NotFound", fmt.Sprintf("workspaces.tenancy.kcp.io %q not found", name), "workspaces", name))
			return
		}
		answer(rw, 200, w.workspace(path, name, w.phases[path+":"+name]))
	case r.URL.Query().Get("watch") != "":
		if w.blind {
			answer(rw, 403, failure("Forbidden", "workspaces may not be watched", "workspaces", ""))
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		for _, phase := range w.birth[1:] {
			event := map[string]any{"type": "MODIFIED", "object": w.workspace(path, name, phase)}
			if phase == "gone" {
				event["type"] = "DELETED"
			}
			_ = json.NewEncoder(rw).Encode(event)
		}
		if w.fickle {
			return
		}
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		w.serveList(rw, r, path)
	}
}

// serveList serves pages of one workspace each and ignores the limit.
func (w *world) serveList(rw http.ResponseWriter, r *http.Request, path string) {
	items, next := []any{}, ""
	for _, name := range sortedChildren(w.phases, path) {
		if name <= r.URL.Query().Get("continue") {
			continue
		}
		if len(items) == 1 {
			next = items[0].(map[string]any)["metadata"].(map[string]any)["name"].(string)
			break
		}
		items = append(items, w.workspace(path, name, w.phases[path+":"+name]))
	}
	answer(rw, 200, map[string]any{"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "WorkspaceList", "metadata": map[string]any{"continue": next}, "items": items})
}

func (w *world) serveCreate(rw http.ResponseWriter, r *http.Request, path string) {
	var o map[string]any
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		w.t.Errorf("create: %v", err)
	}
	w.mu.Lock()
	w.created = append(w.created, o)
	w.mu.Unlock()
	name := o["metadata"].(map[string]any)["name"].(string)
	if w.phases[path+":"+name] != "" {
		answer(rw, 409, failure("AlreadyExists", fmt.Sprintf("workspaces.tenancy.kcp.io %q already exists", name), "workspaces", name))
		return
	}
	answer(rw, 201, w.workspace(path, name, w.birth[0]))
}

func (w *world) workspace(path, name, phase string) map[string]any {
	status := map[string]any{"phase": phase}
	if phase == "Initializing" || phase == "Unavailable" {
		status["conditions"] = []any{map[string]any{"type": "WorkspaceInitialized", "status": "False", "reason": "InitializerExists", "message": "root:slow is not done", "lastTransitionTime": "2024-01-01T00:00:00Z"}}
	}
	return map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace",
		"metadata": map[string]any{"name": name, "resourceVersion": "7", "creationTimestamp": "2024-01-01T00:00:00Z"},
		"spec": map[string]any{
			"type": map[string]any{"name": rootType, "path": "root"}, "cluster": "c-" + name,
			"URL": "https://elsewhere.example/clusters/" + path + ":" + name,
		},
		"status": status,
	}
}

func sortedChildren(phases map[string]string, path string) []string {
	var names []string
	for p := range phases {
		if name, ok := strings.CutPrefix(p, path+":"); ok && !strings.Contains(name, ":") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func answer(rw http.ResponseWriter, code int, body map[string]any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(code)
	_ = json.NewEncoder(rw).Encode(body)
}

func failure(reason, message, kind, name string) map[string]any {
	codes := map[string]int{"Forbidden": 403, "NotFound": 404, "AlreadyExists": 409}
	return map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": codes[reason],
		"details": map[string]any{"group": "tenancy.kcp.io", "kind": kind, "name": name},
	}
}

// kubeconfig writes the kubeconfig of a server's administrator, with the contexts root and base,
// and returns its name.
func (w *world) kubeconfig() string {
	config := api.NewConfig()
	for name, server := range map[string]string{"root": w.URL + "/clusters/root", "base": w.URL} {
		config.Clusters[name] = &api.Cluster{Server: server, InsecureSkipTLSVerify: false}
		config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: "kcp-admin"}
	}
	config.AuthInfos["kcp-admin"] = &api.AuthInfo{Token: "secret"}
	config.CurrentContext = "root"
	file := filepath.Join(w.t.TempDir(), "admin.kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		w.t.Fatal(err)
	}
	return file
}

// A result is the output and the error of a command.
type result struct {
	out, err string
	code     int
}

// call runs a command line such as "kubectl-ws tree".
func call(t *testing.T, file string, line ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	if file != "" {
		line = append(line, "--kubeconfig", file)
	}
	code := run(t.Context(), line, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	return result{out.String(), errOut.String(), code}
}

func load(t *testing.T, file string) *api.Config {
	t.Helper()
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
