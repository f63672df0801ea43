package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/cli/kubeconfig"
)

// TestKubeconfigKeepsOthers checks that entering a workspace changes only the necessary entries of
// the kubeconfig.
func TestKubeconfigKeepsOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:org:team")
	file := w.kubeconfig()
	before := load(t, file)
	steps := []struct{ to, current, previous string }{
		{"org", "root:org", "root"},
		{"team", "root:org:team", "root:org"},
		{":root:org:team", "root:org:team", "root:org"}, // nowhere new
		{"-", "root:org", "root:org:team"},
		{"-", "root:org:team", "root:org"},
	}
	for _, step := range steps {
		if got := call(t, file, "kubectl-ws", step.to); got.code != 0 {
			t.Fatalf("ws %s: %+v", step.to, got)
		}
		after := load(t, file)
		for name, want := range map[string]string{kubeconfig.CurrentContext: step.current, kubeconfig.PreviousContext: step.previous} {
			entry := after.Contexts[name]
			if entry == nil || entry.AuthInfo != "kcp-admin" || after.Clusters[entry.Cluster] == nil || after.Clusters[entry.Cluster].Server != w.URL+"/clusters/"+want {
				t.Fatalf("after ws %s: context %s is %+v, want %s", step.to, name, entry, want)
			}
		}
		if after.CurrentContext != kubeconfig.CurrentContext {
			t.Fatalf("after ws %s: the current context is %s", step.to, after.CurrentContext)
		}
		after.CurrentContext = before.CurrentContext
		for _, ours := range []string{kubeconfig.CurrentContext, kubeconfig.PreviousContext} {
			delete(after.Contexts, ours)
			delete(after.Clusters, ours)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("ws %s changed more than its own: %s", step.to, diff)
		}
	}
}

// TestFromAnyContext checks navigation from contexts of all kinds.
func TestFromAnyContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:other", "root:other:x")
	file := w.kubeconfig()
	config := load(t, file)
	config.Clusters["mine"] = &api.Cluster{Server: w.URL + "/clusters/root:other", TLSServerName: "mine"}
	config.Contexts["mine"] = &api.Context{Cluster: "mine", AuthInfo: "me", Namespace: "dev"}
	config.AuthInfos["me"] = &api.AuthInfo{Token: "mine"}
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	call(t, file, "kubectl-ws", "org")
	if got := call(t, file, "kubectl-ws", "x", "--context", "mine"); got.code != 0 || !strings.Contains(got.out, "'root:other:x'") {
		t.Fatalf("got %+v", got)
	}
	after := load(t, file)
	entry, cl := after.Contexts[kubeconfig.CurrentContext], after.Clusters[kubeconfig.CurrentContext]
	if entry.AuthInfo != "me" || entry.Namespace != "dev" || cl.TLSServerName != "mine" || cl.Server != w.URL+"/clusters/root:other:x" {
		t.Errorf("the current context is %+v of %+v, want one like mine", entry, cl)
	}
	if got := after.Contexts[kubeconfig.PreviousContext]; got.Cluster != "mine" || got.AuthInfo != "me" {
		t.Errorf("the previous context is %+v, want mine", got)
	}
	if got := call(t, file, "kubectl-ws", "-"); got.code != 0 || !strings.Contains(got.out, "'root:other'") {
		t.Errorf("got %+v", got)
	}
	if got := load(t, file).Contexts["mine"]; got.Cluster != "mine" || got.AuthInfo != "me" {
		t.Errorf("mine became %+v", got)
	}
}

func TestNotInAWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	for _, line := range []string{"ws .", "ws :root:org", "ws tree", "ws create x", "create-workspace x", "ws -"} {
		got := call(t, file, append(strings.Fields("kubectl-"+line), "--context", "base")...)
		want := "error: context \"base\" is not of a workspace: its server " + w.URL + " does not end in /clusters/PATH; run: kubectl config use-context root\n"
		if got != (result{err: want, code: 1}) {
			t.Errorf("%s: got %+v, want %q", line, got, want)
		}
	}
	if got := call(t, file, "kubectl-ws", ".", "--context", "none"); got.code != 1 || !strings.Contains(got.err, "kubectl config get-contexts") {
		t.Errorf("unknown context: %+v", got)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := call(t, empty, "kubectl-ws", "."); got.code != 1 || !strings.Contains(got.err, "set KUBECONFIG to a kubeconfig") {
		t.Errorf("empty kubeconfig: %+v", got)
	}
}

// TestSeveralFiles checks KUBECONFIG as a list: new entries go to the first file, existing ones stay
// in their file, and relative paths of certificates stay valid.
func TestSeveralFiles(t *testing.T) {
	w := newWorld(t, "root:org", "root:org:team")
	first, second := filepath.Join(t.TempDir(), "first"), w.kubeconfig()
	if err := os.WriteFile(first, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(read(t, second), "token: secret", "tokenFile: token")
	if err := os.WriteFile(filepath.Join(filepath.Dir(second), "token"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(second, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", first+string(filepath.ListSeparator)+second)
	for _, to := range []string{"org", "team", ".."} {
		if got := call(t, "", "kubectl-ws", to); got.code != 0 {
			t.Fatalf("ws %s: %+v", to, got)
		}
	}
	added := load(t, first)
	if got := added.Clusters[added.Contexts[kubeconfig.CurrentContext].Cluster].Server; got != w.URL+"/clusters/root:org" || added.Contexts[kubeconfig.PreviousContext] == nil {
		t.Errorf("the first file has %+v", added)
	}
	if len(added.AuthInfos) != 0 || added.Contexts["root"] != nil {
		t.Errorf("the first file got entries of the second: %+v", added)
	}
	changed := load(t, second)
	if changed.Contexts[kubeconfig.CurrentContext] != nil || changed.AuthInfos["kcp-admin"].TokenFile != "token" {
		t.Errorf("the second file was changed: %+v", changed)
	}
}

func TestCertificateOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "root:org")
	with := filepath.Join(dir, "a", "config")
	config := load(t, w.kubeconfig())
	config.Clusters["root"].CertificateAuthority = "ca.crt"
	if err := clientcmd.WriteToFile(*config, with); err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile("testdata/ca.crt") // no server uses it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "ca.crt"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(dir, "first")
	if err := os.WriteFile(first, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", first+string(filepath.ListSeparator)+with)
	if got := call(t, "", "kubectl-ws", "org"); got.code != 0 {
		t.Fatalf("got %+v", got)
	}
	if got := load(t, first).Clusters[kubeconfig.CurrentContext].CertificateAuthority; filepath.Join(dir, got) != filepath.Join(dir, "a", "ca.crt") {
		t.Errorf("the certificate is now at %q", got)
	}
	if got := load(t, with).Clusters["root"].CertificateAuthority; got != "ca.crt" {
		t.Errorf("the certificate was at ca.crt and is now at %q", got)
	}
}

func TestCreateContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	call(t, file, "kubectl-ws", "org")
	for _, c := range []struct{ line, out, err string }{
		{"create-context", "Created context \"root:org\" and switched to it.\n", ""},
		{"create-context", "", "error: context \"root:org\" already exists in the kubeconfig; add --overwrite to replace it\n"},
		{"create-context mine -w ..", "Created context \"mine\" and switched to it.\n", ""},
		{"create-context mine --context root:org --overwrite", "Updated context \"mine\" and switched to it.\n", ""},
	} {
		if got := call(t, file, append([]string{"kubectl-ws"}, strings.Fields(c.line)...)...); got.out != c.out || got.err != c.err {
			t.Fatalf("%s: got %+v", c.line, got)
		}
	}
	config := load(t, file)
	if config.CurrentContext != "mine" || config.Clusters["mine"].Server != w.URL+"/clusters/root:org" || config.Clusters["root:org"].Server != w.URL+"/clusters/root:org" {
		t.Errorf("got %+v", config)
	}
}
