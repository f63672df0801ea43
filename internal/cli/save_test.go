package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
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

// TestEditsOfOthers checks that changes by other programs since the read are kept.
func TestEditsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig = &file
	s, err := openSession(flags)
	if err != nil {
		t.Fatal(err)
	}
	config := load(t, file)
	config.Contexts["theirs"] = &api.Context{Cluster: "root", AuthInfo: "kcp-admin"}
	config.AuthInfos["kcp-admin"].Token = "renewed"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	if err := s.enter(t.Context(), s.here.at("root:org")); err != nil {
		t.Fatal(err)
	}
	if config = load(t, file); config.Contexts["theirs"] == nil || config.AuthInfos["kcp-admin"].Token != "renewed" || config.CurrentContext != currentContext {
		t.Errorf("got %+v", config)
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
	if now, before := config.Contexts[currentContext], config.Contexts[previousContext]; now.AuthInfo != "kcp-admin" || before.AuthInfo != "alice" {
		t.Errorf("the current context is %+v, the previous one %+v", now, before)
	}
}

// TestLocked checks the behaviour while another program has the lock.
func TestLocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.kubeconfig()
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig = &file
	s, err := openSession(flags)
	if err != nil {
		t.Fatal(err)
	}
	held := file + ".lock"
	if err := os.WriteFile(held, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.lockWithin = time.Millisecond
	_, err = s.createContext(t.Context(), "c", s.here, use)
	if want := "the kubeconfig is locked: " + held + " has existed for 1ms; if no other program is changing the kubeconfig, remove that file"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.lockWithin = time.Hour
	if _, err := s.createContext(ctx, "c", s.here, use); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := os.Stat(held); err != nil {
		t.Errorf("the lock of another program is gone: %v", err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = os.Remove(held) })
	if _, err := s.createContext(t.Context(), "c", s.here, use); err != nil {
		t.Errorf("after the other program was done: %v", err)
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
	entry := after.Contexts[currentContext]
	if entry.AuthInfo != "plugin" || entry.Namespace != "" || after.Clusters[currentContext].ProxyURL != "" || !after.Clusters[currentContext].DisableCompression {
		t.Errorf("the current context is %+v of %+v", entry, after.Clusters[currentContext])
	}
	for _, name := range []string{currentContext, previousContext} {
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
