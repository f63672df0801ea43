package cli

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/cli/workspaces"
)

func TestCalledAs(t *testing.T) {
	for name, want := range map[string]string{
		"kubectl-ws":                 "Usage:\n  kubectl ws [WORKSPACE]",
		"/usr/bin/kubectl-workspace": "Usage:\n  kubectl workspace [WORKSPACE]",
		"./kubectl-workspaces.exe":   "Usage:\n  kubectl workspaces [WORKSPACE]",
		"kubectl-create-workspace":   "Usage:\n  kubectl create workspace NAME",
		"kubectl-create_workspace":   "Usage:\n  kubectl create workspace NAME",
		"kubectl-kcp":                "Usage:\n  kubectl kcp [flags]",
		"anything":                   "Usage:\n  kubectl kcp [flags]",
	} {
		if got := call(t, "", name, "--help"); got.code != 0 || !strings.Contains(got.out, want) {
			t.Errorf("%s --help: got %+v, want %q", name, got, want)
		}
	}
}

func TestMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"kubectl-ws crate b":                        "error: there is no command \"kubectl ws crate\"; did you mean \"kubectl ws create\"?\nSee 'kubectl ws --help' for usage\n",
		"kubectl-ws rm a":                           "error: there is no command \"kubectl ws rm\"; did you mean \"kubectl ws delete\"?\nSee 'kubectl ws --help' for usage\n",
		"kubectl-kcp bind root:provider:widgets":    "error: there is no command \"kubectl kcp bind root:provider:widgets\"; use \"kubectl kcp bind apiexport|compute\"\nSee 'kubectl kcp bind --help' for usage\n",
		"kubectl-kcp workload explain pod/web-1":    "error: pods are parts of workloads: write the workload of \"pod/web-1\", as in deployment/web\n",
		"kubectl-kcp help nope":                     "error: there is no command \"kubectl kcp nope\"\nSee 'kubectl kcp --help' for usage\n",
		"kubectl-kcp help bind nope":                "error: there is no command \"kubectl kcp bind nope\"\nSee 'kubectl kcp --help' for usage\n",
		"kubectl-ws help nope":                      "error: there is no command \"kubectl ws nope\"\nSee 'kubectl ws --help' for usage\n",
		"kubectl-kcp workload drain x --dry-run=y":  "error: unknown --dry-run \"y\"; it is one of [\"none\" \"client\" \"server\"]\n",
		"kubectl-ws --nope":                         "error: unknown flag: --nope\nSee 'kubectl ws --help' for usage\n",
		"kubectl-ws create":                         "error: usage: kubectl ws create NAME [flags]; got 0 arguments\nSee 'kubectl ws create --help' for usage\n",
		"kubectl-ws current a":                      "error: usage: kubectl ws current [flags]; got 1 argument\nSee 'kubectl ws current --help' for usage\n",
		"kubectl-ws explain a b":                    "error: usage: kubectl ws explain [WORKSPACE [VERB RESOURCE]] [flags]; got 2 arguments\nSee 'kubectl ws explain --help' for usage\n",
		"kubectl-ws tree --nope":                    "error: unknown flag: --nope\nSee 'kubectl ws tree --help' for usage\n",
		"kubectl-kcp nope":                          "error: there is no command \"kubectl kcp nope\"\nSee 'kubectl kcp --help' for usage\n",
		"kubectl-kcp bind apiexport":                "error: usage: kubectl kcp bind apiexport [PATH:]EXPORT [flags]; got 0 arguments\nSee 'kubectl kcp bind apiexport --help' for usage\n",
		"kubectl-kcp bind apiexports root:a":        "error: there is no command \"kubectl kcp bind apiexports\"; did you mean \"kubectl kcp bind apiexport\"?\nSee 'kubectl kcp bind --help' for usage\n",
		"kubectl-kcp crd snapshot --prefix v1":      "error: the file is missing; add -f FILE, or -f - for standard input\n",
		"kubectl-kcp crd snapshot -f -":             "error: the prefix is missing; add --prefix PREFIX, such as v1, for the names of the APIResourceSchemas\n",
		"kubectl-kcp crd snapshot -f - --prefix v1": "error: cannot read standard input: it has no CustomResourceDefinition\n",
	} {
		if got := call(t, "", strings.Fields(line)...); got != (result{err: want, code: 1}) {
			t.Errorf("%s: got %+v, want %q", line, got, want)
		}
	}
}

// TestEveryCommandIsExplained checks that every visible command has a description, and an example
// that begins with its name.
func TestEveryCommandIsExplained(t *testing.T) {
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		name := cmd.Name()
		if cmd.Hidden {
			return
		}
		if cmd.Short == "" || cmd.Long == "" || !strings.Contains(cmd.Example, name) {
			t.Errorf("%s: short %q, long %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Long, cmd.Example)
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	streams := genericiooptions.NewTestIOStreamsDiscard()
	check(KCP(streams))
	check(workspaces.CreateWorkspace(streams))
}

// TestDependencies checks that the plugin links no server code, which would make it large and slow
// to start.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../../cmd/kubectl-kcp").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.Lines(string(out)) {
		for _, server := range []string{"k8s.io/kubernetes/", "k8s.io/apiserver/", "k8s.io/kubectl/", "go.etcd.io/"} {
			if strings.HasPrefix(pkg, server) {
				t.Errorf("depends on %s", pkg)
			}
		}
	}
}
