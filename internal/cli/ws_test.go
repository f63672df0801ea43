package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNavigate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:org:team", "root:other")
	file := w.kubeconfig()
	for _, step := range []struct{ to, want string }{
		{".", "Current workspace is 'root'.\n"},
		{"org", "Current workspace is 'root:org' (type root:organization).\n"},
		{".", "Current workspace is 'root:org'.\n"},
		{"team", "Current workspace is 'root:org:team' (type root:organization).\n"},
		{"-", "Current workspace is 'root:org' (type root:organization).\n"},
		{"-", "Current workspace is 'root:org:team' (type root:organization).\n"},
		{"..", "Current workspace is 'root:org' (type root:organization).\n"},
		{"..:other", "Current workspace is 'root:other' (type root:organization).\n"},
		{":root:org:team", "Current workspace is 'root:org:team' (type root:organization).\n"},
		{":", "Current workspace is 'root' (type root:root).\n"},
		{"-", "Current workspace is 'root:org:team' (type root:organization).\n"},
	} {
		if got := call(t, file, "kubectl-ws", step.to); got != (result{out: step.want}) {
			t.Fatalf("ws %s: got %+v, want %q", step.to, got, step.want)
		}
	}
	for _, line := range []string{"kubectl-ws use ..", "kubectl-ws cd .", "kubectl-workspace current", "kubectl-kcp ws .", "kubectl-kcp workspaces current"} {
		if got := call(t, file, strings.Fields(line)...); got.code != 0 || !strings.Contains(got.out, "Current workspace is 'root:org'") {
			t.Errorf("%s: %+v", line, got)
		}
	}
	if got := call(t, file, "kubectl-ws", "current", "--short"); got != (result{out: "root:org\n"}) {
		t.Errorf("current --short: %+v", got)
	}
	if got := call(t, file, "kubectl-ws", "team", "--short"); got != (result{out: "root:org:team\n"}) {
		t.Errorf("team --short: %+v", got)
	}
}

func TestOldAbsoluteForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:org:team")
	got := call(t, w.kubeconfig(), "kubectl-ws", "root:org:team")
	want := "Current workspace is 'root:org:team' (type root:organization).\n"
	if got.code != 0 || got.out != want || !strings.HasPrefix(got.err, "note: ") || !strings.Contains(got.err, `":root:org:team"`) {
		t.Errorf("got %+v", got)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:org:secret", "root:closed", "root:closed:in")
	w.denied["root:org:secret"], w.denied["root:closed"], w.denied["root:closed:none"] = true, true, true
	for path, phase := range map[string]string{"root:new": "Scheduling", "root:young": "Initializing", "root:off": "Unavailable"} {
		w.phases[path] = phase
	}
	file := w.kubeconfig()
	before := read(t, file)
	for to, want := range map[string]string{
		"nope":              `workspace "root:nope" not found`,
		":root:nope:nope":   `workspace "root:nope:nope" not found`,
		":root:org:secret":  `access to workspace "root:org:secret" denied: access denied`,
		":root:closed:none": `access to workspace "root:closed:none" denied, or it does not exist`,
		":unknown":          `access to workspace "unknown" denied, or it does not exist`,
		"new":               `workspace "root:new" is not ready (Scheduling); in the parent workspace, run: kubectl wait workspace/new`,
		"young":             `workspace "root:young" is not ready (Initializing, WorkspaceInitialized: InitializerExists: root:slow is not done)`,
		"off":               `workspace "root:off" is not available (Unavailable`,
		"..":                `workspace "root" has no parent`,
		"Capital":           `"Capital" is not a workspace name`,
		"../..":             `"../.." is not a workspace name: names in a path are separated by colons, as in "..:.."`,
		"/root/org/":        `"/root/org/" is not a workspace name: names in a path are separated by colons, as in ":root:org"`,
		"-":                 "there is no previous workspace yet",
		"~":                 "you have no home workspace on this server",
		"~:below":           "you have no home workspace on this server",
	} {
		got := call(t, file, "kubectl-ws", to)
		lines := 1
		if strings.HasPrefix(want, "access") {
			lines++ // with what to do about it
		}
		if got.code != 1 || got.out != "" || !strings.HasPrefix(got.err, "error: "+want) || strings.Count(got.err, "\n") != lines {
			t.Errorf("ws %s: got %+v, want %q", to, got, want)
		}
	}
	if diff := cmp.Diff(before, read(t, file)); diff != "" {
		t.Errorf("the kubeconfig changed: %s", diff)
	}
}

func TestEnterWithoutReadingTheParent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:closed", "root:closed:in")
	w.denied["root:closed"] = true
	got := call(t, w.kubeconfig(), "kubectl-ws", ":root:closed:in")
	if want := (result{out: "Current workspace is 'root:closed:in' (type root:root:closed:in).\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestEnterRemarks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.phases["root:going"], w.phases["root:sleeping"] = "Terminating", "Inactive"
	w.denied["root:sleeping"] = true
	file := w.kubeconfig()
	for name, want := range map[string]string{
		"going":    "note: workspace \"root:going\" is being deleted\n",
		"sleeping": "note: workspace \"root:sleeping\" is inactive: it answers no requests\n",
	} {
		if got := call(t, file, "kubectl-ws", ":root:"+name); got.code != 0 || got.err != want {
			t.Errorf("ws %s: got %+v, want %q", name, got, want)
		}
	}
}

func TestHome(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*world){
		"unknown": func(*world) {},
		"denied":  func(w *world) { w.homeless = true },
	} {
		w := newWorld(t)
		prepare(w)
		want := "error: you have no home workspace on this server; enter a workspace by its path, for example: kubectl ws :root\n"
		for _, line := range [][]string{{"kubectl-ws"}, {"kubectl-ws", "~"}, {"kubectl-ws", "use"}} {
			if got := call(t, w.kubeconfig(), line...); got != (result{err: want, code: 1}) {
				t.Errorf("%s: %v: got %+v", name, line, got)
			}
		}
	}
	w := newWorld(t, "alices-home", "alices-home:project")
	file := w.kubeconfig()
	dir, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ arg, want string }{
		{"~", "alices-home' (type root:alices-home)"}, {dir, "alices-home' (type root:alices-home)"}, {"~:project", "alices-home:project' (type root:organization)"}, {"..", "alices-home'"},
	} {
		if got := call(t, file, "kubectl-ws", c.arg); got.code != 0 || !strings.Contains(got.out, c.want) {
			t.Errorf("ws %s: got %+v, want %q", c.arg, got, c.want)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	w.Close()
	if got := call(t, file, "kubectl-ws", "org"); got.code != 1 || !strings.HasPrefix(got.err, `error: cannot enter workspace "root:org": `) || !strings.Contains(got.err, "refused") {
		t.Errorf("got %+v", got)
	}
	if got := call(t, file, "kubectl-ws", "."); got != (result{out: "Current workspace is 'root'.\n"}) {
		t.Errorf("the current workspace is known without a server: got %+v", got)
	}
}

func TestWorkspaceFlag(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:org:team")
	file := w.kubeconfig()
	for _, c := range []struct{ line, want string }{
		{"kubectl-ws . -w org", "Current workspace is 'root:org'.\n"},
		{"kubectl-kcp --workspace :root:org ws .", "Current workspace is 'root:org'.\n"},
		{"kubectl-ws team -w org", "Current workspace is 'root:org:team' (type root:organization).\n"},
		{"kubectl-ws -", "Current workspace is 'root' (type root:root).\n"},
	} {
		if got := call(t, file, strings.Fields(c.line)...); got != (result{out: c.want}) {
			t.Errorf("%s: got %+v, want %q", c.line, got, c.want)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:a", "root:b", "root:c", "root:a:deeper")
	w.phases["root:b"] = "Initializing"
	file := w.kubeconfig()
	got := call(t, file, "kubectl-ws", "list")
	var cells [][]string
	for line := range strings.Lines(got.out) {
		fields := strings.Fields(line)
		cells = append(cells, fields[:len(fields)-1])
	}
	want := [][]string{
		{"NAME", "TYPE", "PHASE", "CLUSTER"},
		{"a", "root:organization", "Ready", "c-a"},
		{"b", "root:organization", "Initializing", "c-b"},
		{"c", "root:organization", "Ready", "c-c"},
	}
	if diff := cmp.Diff(want, cells); diff != "" || got.code != 0 || got.err != "" {
		t.Errorf("%+v: %s", got, diff)
	}
	if got := call(t, file, "kubectl-ws", "list", ":root:c"); got != (result{err: "No workspaces in 'root:c'.\n"}) {
		t.Errorf("empty list: %+v", got)
	}
	wide := call(t, file, "kubectl-ws", "list", "-o", "wide")
	if header, rest, _ := strings.Cut(wide.out, "\n"); wide.code != 0 || !strings.HasSuffix(header, "OWNER   URL") || strings.Count(rest, "\n") != 3 {
		t.Errorf("-o wide: %+v", wide)
	}
}

// TestGone checks the message about a deleted current workspace, with a workspace to enter.
func TestGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file, server := w.kubeconfig(), w.URL+"/clusters/root:org:team:below"
	want := result{out: "Current workspace is 'root:org:team:below'.\n", err: "note: workspace \"root:org:team:below\" does not exist any more; to leave it, run: kubectl ws :root:org\n"}
	for _, line := range [][]string{{"kubectl-ws", "."}, {"kubectl-ws", "current"}} {
		if got := call(t, file, append(line, "--server", server)...); got != want {
			t.Errorf("%v: got %+v", line, got)
		}
	}
	if got := call(t, file, "kubectl-ws", "current", "--short", "--server", server); got != (result{out: "root:org:team:below\n"}) {
		t.Errorf("--short: got %+v", got)
	}
}

func TestListMine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:a", "root:a:deep", "root:b", "root:closed", "root:closed:mine")
	w.denied["root:closed"] = true
	file := w.kubeconfig()
	if got := call(t, file, "kubectl-ws", "list", "--mine", "-o", "name"); got != (result{out: ":root:a\n:root:a:deep\n:root:b\n:root:closed:mine\n"}) {
		t.Errorf("got %+v", got)
	}
	got := call(t, file, "kubectl-ws", "list", "--mine")
	if fields := strings.Fields(got.out); got.code != 0 || len(fields) != 5*5 || !strings.HasPrefix(got.out, "PATH ") || fields[5] != "root:a" {
		t.Errorf("got %+v", got)
	}
	if got := call(t, file, "kubectl-ws", "list", "--mine", "a"); got.code != 1 || !strings.Contains(got.err, "omit the workspace") {
		t.Errorf("with a workspace: %+v", got)
	}
	if got := call(t, newWorld(t).kubeconfig(), "kubectl-ws", "list", "--mine"); got != (result{err: "You may not enter any workspace.\n"}) {
		t.Errorf("none: %+v", got)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:a", "root:a:b", "root:c")
	file := w.kubeconfig()
	for line, want := range map[string]string{
		"ws list -o name":           "workspace.tenancy.kcp.io/a\nworkspace.tenancy.kcp.io/c\n",
		"ws list -o name :root:c":   "",
		"ws tree -o name":           "root\nroot:a\nroot:a:b\nroot:c\n",
		"ws tree a -o yaml":         "children:\n- cluster: c-b\n  path: root:a:b\n  phase: Ready\n  type: root:organization\npath: root:a\n",
		"ws current -o name":        "root\n",
		"ws current -o yaml":        "context: root\npath: root\nserver: " + w.URL + "/clusters/root\n",
		"ws list :root:c -o yaml":   "apiVersion: v1\nitems: []\nkind: List\nmetadata: {}\n",
		"create-workspace n -oname": "workspace.tenancy.kcp.io/n\n",
	} {
		if got := call(t, file, strings.Fields("kubectl-"+line)...); got.code != 0 || got.out != want {
			t.Errorf("%s: got %+v, want %q", line, got, want)
		}
	}
	if got := call(t, file, "kubectl-ws", "tree", "-o", "xml"); got.code != 1 || !strings.Contains(got.err, "must be one of json, yaml, name") {
		t.Errorf("another format: %+v", got)
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:a", "root:a:b", "root:a:b:c", "root:a:z", "root:m", "root:m:hidden", "root:n")
	w.phases["root:o"] = "Initializing"
	w.denied["root:m"] = true
	file := w.kubeconfig()
	want := strings.TrimLeft(`
.
└── root
    ├── a
    │   ├── b
    │   │   └── c
    │   └── z
    ├── m (access denied)
    ├── n
    └── o (Initializing)
`, "\n")
	if got := call(t, file, "kubectl-ws", "tree"); got.out != want || got.err != "" || got.code != 0 {
		t.Errorf("got %+v, want\n%s", got, want)
	}
	want = ".\n└── root:a\n    ├── root:a:b\n    │   └── root:a:b:c\n    └── root:a:z\n"
	if got := call(t, file, "kubectl-ws", "tree", "a", "-f"); got != (result{out: want}) {
		t.Errorf("got %+v, want\n%s", got, want)
	}
	want = strings.TrimLeft(`
NAME      TYPE                PHASE   CLUSTER AGE OWNER
a         -                   -       -       -   -
├── b     root:organization   Ready   c-b     1d  -
│   └── c root:organization   Ready   c-c     1d  -
└── z     root:organization   Ready   c-z     1d  -
`, "\n")
	ages := regexp.MustCompile(`\b(\d+[ydhms]+)+\b`)
	for _, wide := range []string{"--wide", "--output=wide"} {
		got := call(t, file, "kubectl-ws", "tree", ":root:a", wide)
		if strings.Join(strings.Fields(ages.ReplaceAllString(got.out, "1d")), " ") != strings.Join(strings.Fields(want), " ") || got.code != 0 {
			t.Errorf("%s: got %+v, want\n%s", wide, got, want)
		}
	}
	want = ".\n└── root\n    ├── a\n    ├── m\n    ├── n\n    └── o (Initializing)\n"
	if got := call(t, file, "kubectl-ws", "tree", "--depth", "1"); got != (result{out: want}) {
		t.Errorf("--depth 1: got %+v, want\n%s", got, want)
	}
	if got := call(t, file, "kubectl-ws", "tree", "--depth=2", "-o", "name"); got.out != "root\nroot:a\nroot:a:b\nroot:a:z\nroot:m\nroot:n\nroot:o\n" || got.code != 0 {
		t.Errorf("--depth 2: got %+v", got)
	}
	if got := call(t, file, "kubectl-ws", "tree", "--depth", "-1"); got.code != 1 || !strings.Contains(got.err, "invalid --depth -1") {
		t.Errorf("--depth -1: got %+v", got)
	}
	if got := call(t, file, "kubectl-ws", "tree", "m"); got.code != 1 || got.out != "" || !strings.HasPrefix(got.err, `error: cannot list the workspaces in "root:m": access denied`) {
		t.Errorf("a tree of nothing readable: %+v", got)
	}
}

func TestComplete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:other", "root:org:team", "root:org:tea")
	file := w.kubeconfig()
	for text, want := range map[string][]string{
		"o":          {"org", "other"},
		"org:":       {"org:tea", "org:team"},
		":root:org:": {":root:org:tea", ":root:org:team"},
		"or":         {"org"},
		":":          {":root"},
		"..:":        nil,
		"no:":        nil,
	} {
		var out strings.Builder
		got := call(t, "", "kubectl_complete-ws", "--kubeconfig", file, "use", text)
		for line := range strings.Lines(got.out) {
			if !strings.HasPrefix(line, ":6") { // the directive: no space, no files
				out.WriteString(line)
			}
		}
		if diff := cmp.Diff(want, strings.Fields(out.String())); diff != "" && (len(want) > 0 || out.Len() > 0) || got.code != 0 {
			t.Errorf("%q: %+v: %s", text, got, diff)
		}
	}
}
