package main

import (
	"context"
	"fmt"
	"net"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// gitServer is the server of the repositories of pages.
const gitServer = "https://git.example.com"

// clusterKubeconfig is the kubeconfig of the reader's own cluster in pages.
const clusterKubeconfig = "cluster.kubeconfig"

// inTerminal returns a command that runs a program in a terminal, in the background.
func (r *reader) inTerminal(program string) string {
	r.screen = filepath.Join(r.dir, ".tmux")
	return fmt.Sprintf("tmux -u -f /dev/null -S %s new-session -d -x 160 -y 40 '%s'", r.screen, program)
}

// captured returns what the terminal shows, and what the program prints at its end.
func (r *reader) captured(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "tmux", "-S", r.screen, "capture-pane", "-p").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v\n%s", err, out)
	}
	return string(out)
}

func (r *reader) closeTerminal() {
	if r.screen == "" {
		return
	}
	if out, err := exec.Command("tmux", "-S", r.screen, "kill-server").CombinedOutput(); err != nil {
		r.t.Errorf("the program ended: %v\n%s", err, out)
	}
	r.screen = ""
}

// playCluster plays the reader's cluster, where Flux runs, and their Git server. The cluster
// is a workspace with the definitions of Flux; its controllers run here.
func (r *reader) playCluster(ctx context.Context) {
	if _, err := os.Stat(filepath.Join(r.dir, clusterKubeconfig)); err == nil {
		return
	}
	flux := filepath.Join(clients(), "flux")
	for _, args := range [][]string{
		{"ws", "create", "cluster", "-w", "root"},
		{"ws", "kubeconfig", "root:cluster", "--as", "serviceaccount", "flux", "--role", "cluster-admin", "-f", clusterKubeconfig},
		{"apply", "--server-side", "-f", flux, "--kubeconfig", clusterKubeconfig},
		{"create", "namespace", "flux-system", "--kubeconfig", clusterKubeconfig},
	} {
		cmd := exec.CommandContext(ctx, "kcp", append([]string{"kubectl"}, args...)...)
		cmd.Dir, cmd.Env = r.dir, append(os.Environ(), "HOME="+r.dir, "KUBECONFIG="+filepath.Join(rootDirectory, "admin.kubeconfig"))
		if out, err := cmd.CombinedOutput(); err != nil {
			r.t.Fatalf("kcp kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	r.serveGit()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	artifacts := l.Addr().String()
	_ = l.Close() // the controller listens there
	r.runController(ctx, "source-controller", "--storage-path="+r.t.TempDir(), "--storage-addr="+artifacts, "--storage-adv-addr="+artifacts)
	r.runController(ctx, "kustomize-controller")
}

// runController runs a controller of Flux until the page ends.
func (r *reader) runController(ctx context.Context, name string, args ...string) {
	cmd := exec.CommandContext(ctx, filepath.Join(clients(), name), append(args, "--metrics-addr=0", "--health-addr=127.0.0.1:0")...)
	log, err := os.Create(filepath.Join(r.dir, "."+name+".log"))
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), "HOME="+r.dir, "KUBECONFIG="+clusterKubeconfig, "RUNTIME_NAMESPACE=flux-system")
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	_ = log.Close() // the controller has its own descriptor
	r.t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err == nil {
			_ = cmd.Wait() // it was interrupted
		}
		if text, err := os.ReadFile(log.Name()); r.t.Failed() && err == nil {
			r.t.Logf("%s:\n%s", name, text)
		}
	})
}

// serveGit serves the repositories in the folder of the page.
func (r *reader) serveGit() {
	program, err := exec.LookPath("git")
	if err != nil {
		r.t.Fatal(err)
	}
	server := httptest.NewServer(&cgi.Handler{
		Path: program, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + r.dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + r.dir},
	})
	r.t.Cleanup(server.Close)
	r.git = server.URL
}
