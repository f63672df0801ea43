package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/cli/kubeconfig"
)

// TestConcurrentEdits checks that concurrent writes of a kubeconfig lose nothing.
func TestConcurrentEdits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	const writers = 16
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			if got := call(t, file, "kubectl-ws", "create-context", fmt.Sprint("c", i)); got.code != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
	all.Wait()
	config := load(t, file)
	for i := range writers {
		if name := fmt.Sprint("c", i); config.Contexts[name] == nil || config.Clusters[name] == nil {
			t.Errorf("context %s is lost", name)
		}
	}
	if left, _ := filepath.Glob(file + "?*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestGoingOnAsSomebodyElse checks that "ws -" returns to the previous context and user.
func TestGoingOnAsSomebodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:org:team")
	file := w.kubeconfig()
	config := load(t, file)
	config.AuthInfos["alice"] = &api.AuthInfo{Token: "hers"}
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"org", "team --user alice", "-"} {
		if got := call(t, file, append([]string{"kubectl-ws"}, strings.Fields(line)...)...); got.code != 0 {
			t.Fatalf("ws %s: %+v", line, got)
		}
	}
	config = load(t, file)
	if now, before := config.Contexts[kubeconfig.CurrentContext], config.Contexts[kubeconfig.PreviousContext]; now.AuthInfo != "kcp-admin" || before.AuthInfo != "alice" {
		t.Errorf("the current context is %+v, the previous one %+v", now, before)
	}
}

// TestKeepsWhatItDoesNotKnow checks that unusual entries, the mode and links of a kubeconfig are
// kept.
func TestKeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	target := filepath.Join(t.TempDir(), "target")
	text := strings.ReplaceAll(unusual, "SERVER", w.URL)
	if err := os.WriteFile(target, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(target, file); err != nil {
		t.Fatal(err)
	}
	before := load(t, file)
	if got := call(t, file, "kubectl-ws", "org"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	after := load(t, file)
	entry := after.Contexts[kubeconfig.CurrentContext]
	if entry.AuthInfo != "plugin" || entry.Namespace != "" || after.Clusters[kubeconfig.CurrentContext].ProxyURL != "" || !after.Clusters[kubeconfig.CurrentContext].DisableCompression {
		t.Errorf("the current context is %+v of %+v", entry, after.Clusters[kubeconfig.CurrentContext])
	}
	for _, name := range []string{kubeconfig.CurrentContext, kubeconfig.PreviousContext} {
		delete(after.Contexts, name)
		delete(after.Clusters, name)
	}
	after.CurrentContext = before.CurrentContext
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Lstat(file); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v", info, err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file became %v, %v", info.Mode(), err)
	}
}

const unusual = `apiVersion: v1
kind: Config
current-context: mine
preferences: {}
contexts:
- {name: mine, context: {cluster: c, user: plugin}}
- {name: other, context: {cluster: proxied, user: plugin, namespace: dev, extensions: [{name: x, extension: {a: b}}]}}
clusters:
- {name: c, cluster: {server: SERVER/clusters/root, disable-compression: true}}
- {name: proxied, cluster: {server: "https://example.com/clusters/root", proxy-url: "socks5://127.0.0.1:1", tls-server-name: kcp}}
users:
- name: plugin
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: sh
      args: ["-c", "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\"}}'"]
      env: [{name: A, value: b}]
      interactiveMode: Never
`
