package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// The test binary acts as kcp.
func TestMain(m *testing.M) {
	etcdtest.Main()
	testscript.Main(m, map[string]func(){"kcp": main})
}

// TestScripts runs the scripts in test/script with the real kubectl. Scripts that do not start
// a server share one. KUBECONFIG is the kubeconfig of its administrators.
func TestScripts(t *testing.T) {
	bin := clientPrograms(t)
	shared := sync.OnceValues(func() (string, error) { return startShared(t) })
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("..", "..", "test", "script"),
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			kubeconfig, err := shared()
			if err != nil {
				return err
			}
			data, err := os.ReadFile(kubeconfig)
			if err != nil {
				return err
			}
			own := filepath.Join(e.WorkDir, "kubeconfig")
			e.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise hundreds of programs would sleep for a second each
			e.Setenv("KUBECONFIG", own)
			e.Setenv("HOME", e.WorkDir)
			if strings.HasSuffix(e.WorkDir, "script-several") {
				e.Setenv("ETCD", etcdtest.Start(t, etcdtest.Options{}).Servers()[0])
			}
			// After the programs of this binary, before installed programs.
			played, installed, _ := strings.Cut(e.Getenv("PATH"), string(os.PathListSeparator))
			e.Setenv("PATH", strings.Join([]string{played, bin, installed}, string(os.PathListSeparator)))
			return os.WriteFile(own, data, 0o600)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"ready": ready, "keep": keep},
	})
}

// startShared starts the shared server, and returns its kubeconfig.
func startShared(t *testing.T) (string, error) {
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	users := "alice-token,alice,1\nbob-token,bob,2\n"
	if err := os.WriteFile(tokens, []byte(users), 0o600); err != nil {
		return "", err
	}
	srv := &kcp.Server{Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true, TokenFile: tokens}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := srv.Start(ctx); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(srv.Dir, "admin.kubeconfig"), nil
}

// clientPrograms returns the folders of the kubectl plugin and the pinned kubectl, as part of
// a PATH. The plugin is a program of its own, because the test binary has the server and
// takes ten times as long to start: scripts start the plugin hundreds of times.
func clientPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "../kubectl-kcp")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kubectl-kcp: %v\n%s", err, out)
	}
	for _, name := range []string{"-ws", "-workspace", "-create-workspace", "_complete-ws"} {
		if err := os.Symlink("kubectl-kcp", filepath.Join(dir, "kubectl"+name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir + string(os.PathListSeparator) + realKubectl(t)
}

// realKubectl returns the folder of the pinned kubectl. It builds kubectl if it is missing.
func realKubectl(t *testing.T) string {
	t.Helper()
	if bin, err := filepath.Abs("../../bin"); err == nil {
		if _, err := os.Stat(filepath.Join(bin, "kubectl")); err == nil {
			return bin
		}
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/kubectl")
	build.Dir = filepath.Join("..", "..", "test", "tools")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kubectl: %v\n%s", err, out)
	}
	return bin
}

// kubeProgram returns the program of stock control planes. It builds it if it is missing.
func kubeProgram(t *testing.T) string {
	t.Helper()
	if file, err := filepath.Abs("../../bin/kube"); err == nil {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file := filepath.Join(t.TempDir(), "kube")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-X k8s.io/component-base/version.gitVersion="+kcp.KubernetesVersion, "-o", file, "./cmd/kube")
	build.Dir = filepath.Join("..", "..", "test", "tools")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kube: %v\n%s", err, out)
	}
	return file
}

// ready waits until the server of a root directory, by default .kcp, is ready. It sets
// KUBECONFIG to its administrators' credentials, SERVER to its URL, and PORT.
func ready(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: ready [root directory]")
	}
	kubeconfig := ts.MkAbs(filepath.Join(append(args, rootDirectory)[0], "admin.kubeconfig"))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for {
		server, err := serves(kubeconfig)
		if err == nil {
			ts.Setenv("KUBECONFIG", kubeconfig)
			ts.Setenv("SERVER", server)
			ts.Setenv("PORT", server[strings.LastIndexByte(server, ':')+1:])
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			ts.Fatalf("the server does not get ready: %v", err)
		}
	}
}

// keep sets a variable to the output of the last command.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: keep NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// serves returns the URL of the server of a kubeconfig, if the server is ready.
func serves(kubeconfig string) (string, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: "base"}).ClientConfig()
	if err != nil {
		return "", err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return "", err
	}
	resp, err := client.Get(cfg.Host + "/readyz")
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return cfg.Host, errors.Join(err, resp.Body.Close())
}
