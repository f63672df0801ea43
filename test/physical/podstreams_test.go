package physical

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/test/stock"
)

// run runs a command in a pod, over WebSocket or SPDY.
func (s *tenant) run(ctx context.Context, cfg *rest.Config, pod string, spdy bool, in io.Reader, argv ...string) (out, errs string, err error) {
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", "", err
	}
	to := typed.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: argv, Stdin: in != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	var e remotecommand.Executor
	if spdy {
		e, err = remotecommand.NewSPDYExecutor(cfg, http.MethodPost, to)
	} else {
		e, err = remotecommand.NewWebSocketExecutor(cfg, http.MethodGet, to.String())
	}
	if err != nil {
		return "", "", err
	}
	var o, er bytes.Buffer
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &o, Stderr: &er})
	return o.String(), er.String(), err
}

// streams reads logs and runs commands in every pod.
func (s *tenant) streams(t *testing.T, config *rest.Config) {
	cfg := client.Cluster(config, "root:"+s.name)
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	all, _ := s.pods(t, metav1.ListOptions{})
	for _, p := range all {
		log, err := typed.CoreV1().Pods("default").GetLogs(p.Name, &corev1.PodLogOptions{Previous: true}).DoRaw(t.Context())
		if err != nil || string(log) != p.Name+"/web before line 1\n" {
			t.Errorf("previous log of %s: %q, %v", p.Name, log, err)
		}
		for _, spdy := range []bool{true, false} {
			out, errs, err := s.run(t.Context(), cfg, p.Name, spdy, strings.NewReader("input"), "sh", "-c", "echo $HOSTNAME; cat; echo oops >&2; exit 7")
			var exit utilexec.CodeExitError
			if out != p.Name+"\ninput" || errs != "oops\n" || !errors.As(err, &exit) || exit.Code != 7 {
				t.Errorf("exec in %s, SPDY %v: %q, %q, %v", p.Name, spdy, out, errs, err)
			}
		}
	}
	_, err = typed.CoreV1().Pods("default").GetLogs(all[0].Name, &corev1.PodLogOptions{Container: "nope"}).Stream(t.Context())
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "container nope is not valid for pod "+all[0].Name) {
		t.Errorf("log of a container that does not exist: %v", err)
	}
	if _, err := typed.CoreV1().Pods("default").GetLogs("nope", &corev1.PodLogOptions{}).DoRaw(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("log of a pod that does not exist: %v", err)
	}
	follow, err := typed.CoreV1().Pods("default").GetLogs(all[0].Name, &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(follow)
	for i := 1; i <= 3; i++ {
		if !lines.Scan() || !strings.HasSuffix(lines.Text(), fmt.Sprint("now line ", i)) {
			t.Errorf("line %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
	if err := follow.Close(); err != nil {
		t.Error(err)
	}
}

// program returns kubectl, which "make programs" builds.
func program(t *testing.T) string {
	t.Helper()
	if file, err := filepath.Abs("../../bin/kubectl"); err == nil {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file := filepath.Join(t.TempDir(), "kubectl")
	if out, err := exec.CommandContext(t.Context(), "go", "-C", "../tools", "build", "-o", file, "k8s.io/kubernetes/cmd/kubectl").CombinedOutput(); err != nil {
		t.Fatalf("build kubectl: %v\n%s", err, out)
	}
	return file
}

// kubectlOnPods runs the commands of a user.
func (s *tenant) kubectlOnPods(t *testing.T) {
	file := program(t)
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), file, append([]string{"--server=" + client.Cluster(s.config, "root:"+s.name).Host}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("kubectl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	all, _ := s.pods(t, metav1.ListOptions{})
	pod := all[0].Name
	if out := run("get", "pods", "-o", "wide"); strings.Count(out, "Running") != 4 || !strings.Contains(out, "NODE") || strings.Contains(out, stock.Node) {
		t.Errorf("get pods: %s", out)
	}
	if out := run("describe", "pod", pod); !strings.Contains(out, "Node:             default/") {
		t.Errorf("describe: %s", out)
	}
	if out := run("logs", "deploy/web"); !strings.Contains(out, "/web now line 1") {
		t.Errorf("logs: %s", out)
	}
	file1 := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file1, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("cp", file1, pod+":copied")
	if out := run("exec", pod, "--", "cat", "copied"); !strings.HasSuffix(out, "content") {
		t.Errorf("copied: %s", out)
	}
	run("cp", pod+":copied", file1+"2")
	if got, err := os.ReadFile(file1 + "2"); err != nil || string(got) != "content" {
		t.Errorf("copied back: %q, %v", got, err)
	}
	attach := exec.CommandContext(t.Context(), file, "--server="+client.Cluster(s.config, "root:"+s.name).Host, "attach", "-i", pod)
	attach.Stdin = strings.NewReader("said\n")
	if out, err := attach.Output(); err != nil || !strings.Contains(string(out), "attached to "+pod+"\nsaid\n") {
		t.Errorf("attach: %q, %v", out, err)
	}
	for _, how := range []string{"true", "false"} {
		s.forwards(t, file, pod, how)
	}
}

// forwards uses "kubectl port-forward", with or without WebSockets.
func (s *tenant) forwards(t *testing.T, file, pod, websockets string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, file, "--server="+client.Cluster(s.config, "root:"+s.name).Host, "port-forward", "pod/"+pod, ":8080")
	cmd.Env = append(os.Environ(), "KUBECTL_PORT_FORWARD_WEBSOCKETS="+websockets)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	at, _, ok := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " -> ")
	if err != nil || !ok {
		t.Fatalf("port-forward: %q, %v", line, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	from := bufio.NewReader(conn)
	first, err := from.ReadString('\n')
	second, err2 := from.ReadString('\n')
	if first != pod+":8080\n" || second != "hello\n" || err != nil || err2 != nil {
		t.Errorf("port-forward, WebSockets %s: %q, %q, %v, %v", websockets, first, second, err, err2)
	}
}

// endsCleanly stops the server while a log is followed and a command runs.
func (s *tenant) endsCleanly(t *testing.T) {
	all, _ := s.pods(t, metav1.ListOptions{})
	cfg := client.Cluster(s.config, "root:"+s.name)
	follow, err := s.CoreV1().Pods("default").GetLogs(all[0].Name, &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(follow)
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	var running sync.WaitGroup
	for _, spdy := range []bool{true, false} {
		in, out := io.Pipe()
		running.Go(func() {
			_, _, err := s.run(t.Context(), cfg, all[1].Name, spdy, in, "cat")
			if err == nil && spdy {
				t.Log("SPDY ends without an error")
			}
			_ = in.CloseWithError(errors.Join(errors.New("the command has ended"), err)) // a write does not wait for it
		})
		if _, err := out.Write([]byte("x")); err != nil { // the command runs
			t.Fatal(err)
		}
		defer out.Close()
	}
	began := time.Now()
	s.stopServer(t)
	took := time.Since(began)
	for lines.Scan() {
	}
	running.Wait()
	t.Logf("the server stopped within %s", took.Round(time.Millisecond))
	s.startShared(t)
	again := &tenant{world: s.world, name: s.name, Clientset: s.typed(t), dynamic: s.in(t, s.name)}
	eventually(t, "pods after the restart", func() error {
		if now, _ := again.pods(t, metav1.ListOptions{}); len(now) != 4 {
			return fmt.Errorf("%d pods", len(now))
		}
		return nil
	})
	*s = *again
}
