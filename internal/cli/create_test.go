package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cli/workspaces"
)

func TestCreate(t *testing.T) {
	t.Parallel()
	const made = "Workspace \"team\" (type root:organization) created. Waiting for it to be ready...\nWorkspace \"team\" (type root:organization) is ready to use.\n"
	for name, c := range map[string]struct {
		line  string
		birth []string
		want  result
	}{
		"ready at once":  {"kubectl-ws create team", []string{"Ready"}, result{out: made}},
		"as subcommand":  {"kubectl-kcp workspace create team", []string{"Ready"}, result{out: made}},
		"as its own":     {"kubectl-create_workspace team", []string{"Ready"}, result{out: made}},
		"ready later":    {"kubectl-create-workspace team", []string{"Scheduling", "Initializing", "Ready"}, result{out: made}},
		"and enter":      {"kubectl-create-ws team --enter", []string{"Scheduling", "Ready"}, result{out: made + "Current workspace is 'root:team' (type root:organization).\n"}},
		"and a context":  {"kubectl-ws create team --create-context c", []string{"Ready"}, result{out: made + "Created context \"c\".\n"}},
		"deleted":        {"kubectl-ws create team", []string{"Scheduling", "gone"}, result{code: 1, err: "error: workspace \"team\" was created, but is not ready: it was deleted\n", out: strings.SplitAfter(made, "\n")[0]}},
		"being deleted":  {"kubectl-ws create team", []string{"Scheduling", "Terminating"}, result{code: 1, err: "error: workspace \"team\" was created, but is not ready: it is being deleted\n", out: strings.SplitAfter(made, "\n")[0]}},
		"exists":         {"kubectl-ws create old", nil, result{code: 1, err: "error: cannot create workspace \"old\" in \"root\": workspaces.tenancy.kcp.io \"old\" already exists\n"}},
		"may exist":      {"kubectl-ws create old --ignore-existing --enter", []string{"Ready"}, result{out: "Workspace \"old\" (type root:organization) is ready to use.\nCurrent workspace is 'root:old' (type root:organization).\n", err: "Workspace \"old\" (type root:organization) already exists.\n"}},
		"same type":      {"kubectl-ws create old --ignore-existing --type root:organization", nil, result{out: "Workspace \"old\" (type root:organization) is ready to use.\n", err: "Workspace \"old\" (type root:organization) already exists.\n"}},
		"other type":     {"kubectl-ws create old --ignore-existing --type root:universal", nil, result{code: 1, err: "error: cannot create workspace \"old\" in \"root\": it already exists with type root:organization, not root:universal; delete it first or omit --type\n"}},
		"relative type":  {"kubectl-ws create old --ignore-existing --type universal", nil, result{code: 1, err: "error: --ignore-existing needs a --type with a path, as in root:universal, or no --type: a name alone depends on the current workspace\n"}},
		"used context":   {"kubectl-ws create team --create-context base", nil, result{code: 1, err: "error: the kubeconfig has a context \"base\" for something else; choose another name for --create-context\n"}},
		"name of a path": {"kubectl-ws create a:b", nil, result{code: 1, err: "error: " + paths.InvalidName("a:b").Error() + "\n"}},
		"name of dots":   {"kubectl-ws create ..", nil, result{code: 1, err: "error: " + paths.InvalidName("..").Error() + "\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "root:old")
			if c.birth != nil {
				w.birth = c.birth
			}
			file := w.kubeconfig()
			before := load(t, file)
			got := call(t, file, strings.Fields(c.line)...)
			if got != c.want {
				t.Errorf("%s: got %+v, want %+v", c.line, got, c.want)
			}
			after := load(t, file)
			if entered := after.CurrentContext == kubeconfig.CurrentContext; entered != strings.Contains(c.line, "--enter") {
				t.Errorf("%s: the current context is %s", c.line, after.CurrentContext)
			}
			if strings.HasSuffix(c.line, "--create-context c") {
				if after.Clusters["c"] == nil || after.Clusters["c"].Server != w.URL+"/clusters/root:team" {
					t.Errorf("context c leads to %+v", after.Clusters["c"])
				}
			} else if !strings.Contains(c.line, "--enter") && cmp.Diff(before, after) != "" {
				t.Errorf("%s changed the kubeconfig: %s", c.line, cmp.Diff(before, after))
			}
		})
	}
}

// TestCreateSends checks the object in the create request.
func TestCreateSends(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]map[string]any{
		"x":                                     {},
		"x --type universal":                    {"type": map[string]any{"name": "universal"}},
		"x --type root:universal":               {"type": map[string]any{"name": "universal", "path": "root"}},
		"x --type :root:org:own -w org":         {"type": map[string]any{"name": "own", "path": "root:org"}},
		"x --type .:own -w org":                 {"type": map[string]any{"name": "own", "path": "root:org"}},
		"x --type ..:own -w org":                {"type": map[string]any{"name": "own", "path": "root"}},
		"x --location-selector region in (a)":   {"location": map[string]any{"selector": map[string]any{"matchExpressions": []any{map[string]any{"key": "region", "operator": "In", "values": []any{"a"}}}}}},
		"x --location-selector region=a --type": nil,
		"x --type root:":                        nil,
		"x --type :x":                           nil,
		"x --type ..:own":                       nil, // the root has no parent
		"x --location-selector =":               nil,
	} {
		w := newWorld(t, "root:org")
		words := strings.Fields(line)
		if i := strings.Index(line, "region in"); i >= 0 {
			words = append(strings.Fields(line[:i]), line[i:])
		}
		got := call(t, w.kubeconfig(), append([]string{"kubectl-ws", "create"}, words...)...)
		if want == nil {
			if got.code == 0 || len(w.created) > 0 {
				t.Errorf("%s: got %+v, sent %v", line, got, w.created)
			}
			continue
		}
		object := []map[string]any{{"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": "x"}, "spec": want}}
		for _, o := range w.created {
			if metadata, ok := o["metadata"].(map[string]any); ok && metadata["creationTimestamp"] == nil {
				delete(metadata, "creationTimestamp")
			}
		}
		if diff := cmp.Diff(object, w.created); diff != "" || got.code != 0 {
			t.Errorf("%s: got %+v: %s", line, got, diff)
		}
	}
}

func TestCreateWithoutWatching(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.birth, w.blind = []string{"Scheduling"}, true
	got := call(t, w.kubeconfig(), "kubectl-ws", "create", "team")
	if got.code != 1 || got.err != "error: workspace \"team\" was created, but is not ready: workspaces may not be watched\n" {
		t.Errorf("got %+v", got)
	}
}

// TestCreateWatchesAgain checks that create gets the workspace and watches again after a watch has
// ended early.
func TestCreateWatchesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:old")
	w.fickle, w.birth = true, []string{"Scheduling", "Initializing"}
	w.phases["root:old"] = "Initializing"
	file := w.kubeconfig()
	s, err := kubeconfig.Open(&genericclioptions.ConfigFlags{KubeConfig: &file})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := remote.New(s)
	if err != nil {
		t.Fatal(err)
	}
	old, err := srv.Get(t.Context(), "root", "old")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	err = srv.Follow(t.Context(), "root", old, func(*tenancy.Workspace) (bool, error) { seen++; return seen == 4, nil })
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || len(w.seen) != 4 { // get, watch, get, watch
		t.Errorf("saw %d states, then %v; requests %q", seen, err, w.seen)
	}
}

func TestCreateGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.birth = []string{"Initializing", "Initializing"}
	var out, errOut strings.Builder
	a := command.New(genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
	file := w.kubeconfig()
	a.Ready = 50 * time.Millisecond
	cmd := workspaces.Command(a)
	cmd.SetArgs([]string{"create", "slow", "--enter", "--kubeconfig", file})
	err := a.Program(cmd).ExecuteContext(t.Context())
	want := "timed out after 50ms (Initializing, WorkspaceInitialized: InitializerExists: root:slow is not done); to watch it, run: kubectl get workspace slow --watch"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if got := load(t, file).CurrentContext; got != "root" {
		t.Errorf("entered a workspace that is not ready: %s", got)
	}
}
