package kubectl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// asKubectl makes the test binary play kubectl.
const asKubectl = "TEST_AS_KUBECTL"

func TestMain(m *testing.M) {
	if os.Getenv(asKubectl) != "" {
		os.Exit(Main(os.Args[1:], "v1.2.3+test"))
	}
	os.Exit(m.Run())
}

const config = `apiVersion: v1
kind: Config
current-context: root
contexts: [{name: root, context: {cluster: root}}, {name: org, context: {cluster: org}}]
clusters:
- {name: root, cluster: {server: "http://127.0.0.1:1/clusters/root"}}
- {name: org, cluster: {server: "http://127.0.0.1:1/clusters/root:org"}}
`

// folder returns a folder in which a server was started, and which is the home
// folder too.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, adminKubeconfig), config, 0o600)
	return dir
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs kubectl in dir and returns what it printed, and whether it succeeded.
func kubectl(t *testing.T, dir string, args ...string) (string, bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Dir = dir
	cmd.Env = []string{asKubectl + "=1", "HOME=" + dir, "PATH=" + filepath.Join(dir, "bin"), "GORACE=atexit_sleep_ms=0"}
	out, err := cmd.CombinedOutput()
	var lines []string
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "withrace.go") { // a library tells that it was built with the race detector
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, ""), err == nil
}

func TestBuiltIn(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	for _, name := range []string{"kubectl-ws", "kubectl-ws-tree", "kubectl-kcp", "kubectl-create-workspace"} {
		write(t, filepath.Join(dir, "bin", name), "#!/bin/sh\necho another "+name+"\n", 0o700)
	}
	write(t, filepath.Join(dir, "bin", "kubectl-hello"), "#!/bin/sh\necho hello $1\n", 0o700)
	write(t, filepath.Join(dir, "bin", "kubectl-create-thing"), "#!/bin/sh\necho made $1\n", 0o700)
	for line, want := range map[string]string{
		"ws .":                      "Current workspace is 'root'.\n",
		"workspace current --short": "root\n",
		"workspaces .":              "Current workspace is 'root'.\n",
		"kcp ws .":                  "Current workspace is 'root'.\n",
		"ws . --context org":        "Current workspace is 'root:org'.\n",
		"--context org ws .":        "Current workspace is 'root:org'.\n",
		"--context=org kcp ws .":    "Current workspace is 'root:org'.\n",
		"config current-context":    "root\n",
		"version --client":          "Client Version: v1.2.3+test\n",
		"hello world":               "hello world\n",
		"create thing x":            "made x\n",
	} {
		if got, ok := kubectl(t, dir, strings.Fields(line)...); !ok || got != want {
			t.Errorf("kubectl %s: got %q, %v; want %q", line, got, ok, want)
		}
	}
	for line, want := range map[string]string{
		"ws tree --help":          "kubectl ws tree [WORKSPACE]",
		"create workspace --help": "kubectl create workspace NAME",
		"create ws --help":        "kubectl create workspace NAME",
		"create --help":           "Create a workspace in the current one",
		"--help":                  "Move between workspaces and manage them",
	} {
		if got, ok := kubectl(t, dir, strings.Fields(line)...); !ok || !strings.Contains(got, want) {
			t.Errorf("kubectl %s: got %q, %v; want %q", line, got, ok, want)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	for line, want := range map[string]string{
		"ws ..":              `error: workspace "root" has no parent; use an absolute path: kubectl ws :root`,
		"create workspace x": `error: cannot create workspace "x" in "root": `,
		"create nope":        `error: `,
		"version":            "Client Version: v1.2.3+test\nThe connection to the server 127.0.0.1:1 was refused",
		"version -o xml":     "error: --output must be 'yaml' or 'json'",
		"nope":               `error: unknown command "nope"`,
		"ws --nope":          "error: unknown flag: --nope\nSee 'kubectl ws --help' for usage",
	} {
		if got, ok := kubectl(t, dir, strings.Fields(line)...); ok || !strings.Contains(got, want) {
			t.Errorf("kubectl %s: got %q, %v; want %q", line, got, ok, want)
		}
	}
}

// TestWritesTheKubeconfigInUse checks that going somewhere is seen by the next command.
func TestWritesTheKubeconfigInUse(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if got, ok := kubectl(t, dir, "ws", "create-context", "mine", "--context", "org"); !ok {
		t.Fatalf("got %q", got)
	}
	if got, ok := kubectl(t, dir, "config", "current-context"); !ok || got != "mine\n" {
		t.Errorf("got %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, ".kube", "config")); err == nil {
		t.Error("there is a second kubeconfig now")
	}
}

func TestAdvice(t *testing.T) {
	const refused = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
	t.Setenv("KUBECONFIG", "")
	home := exists(clientcmd.RecommendedHomeFile)
	if got := advice(refused); (got == "") != home {
		t.Errorf("without a kubeconfig: got %q", got)
	}
	if got := advice("The connection to the server 127.0.0.1:6443 was refused"); got != "" {
		t.Errorf("of a server that was chosen: got %q", got)
	}
	t.Setenv("KUBECONFIG", "mine")
	if got := advice(refused); got != "" {
		t.Errorf("with a kubeconfig: got %q", got)
	}
}

func TestKubeconfig(t *testing.T) {
	dir := folder(t)
	t.Chdir(dir)
	present := filepath.Join(dir, "present")
	write(t, present, config, 0o600)
	const none = "none"
	for _, c := range []struct {
		args      string
		env, home string
		want      bool
	}{
		{"get ns", "", none, true},
		{"exec x -- --kubeconfig", "", none, true},
		{"get ns --kubeconfig x", "", none, false},
		{"--kubeconfig=x get ns", "", none, false},
		{"get ns", "x", none, false},
		{"get ns", "", present, false},
	} {
		got := kubeconfig(strings.Fields(c.args), c.env, c.home)
		if c.want && (!filepath.IsAbs(got) || !strings.HasSuffix(got, adminKubeconfig)) || !c.want && got != "" {
			t.Errorf("%+v: got %q", c, got)
		}
	}
	t.Chdir(t.TempDir())
	if got := kubeconfig(nil, "", none); got != "" {
		t.Errorf("where no server was started: got %q", got)
	}
}
