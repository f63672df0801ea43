package kcp_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp"
)

// fewFiles is the environment variable that makes the test binary the process of TestFewFiles.
const fewFiles = "KCP_TEST_FEW_FILES"

// Connections of clients leave enough open files for etcd.
func TestConnectionsLeaveFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a process with few open files")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFewFiles$")
	cmd.Env = append(os.Environ(), fewFiles+"=200")
	var log strings.Builder
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v:\n%s", err, log.String()[max(0, log.Len()-4000):])
		}
	}()
	defer func() { _ = in.Close() }() // the process ends with it
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	for range 250 {
		c, err := net.Dial("tcp", strings.TrimPrefix(strings.TrimSpace(url), "https://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if _, err := fmt.Fprintln(in, "write"); err != nil {
		t.Error(err)
	}
	_, _ = bufio.NewReader(out).ReadString('\n') // when it has written, or ended
}

// TestFewFiles is the child process of TestConnectionsLeaveFiles, and not a test of its own.
func TestFewFiles(t *testing.T) {
	var files uint64
	if _, err := fmt.Sscan(os.Getenv(fewFiles), &files); err != nil {
		t.Skip("run by TestConnectionsLeaveFiles")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}); err != nil {
		t.Fatal(err)
	}
	srv := start(t, &kcp.Server{Listen: "127.0.0.1:0", Etcd: kcp.Etcd{WALSizeBytes: 1 << 20}})
	c := cluster(t, srv, "team")
	fmt.Println(srv.URL())
	wait := bufio.NewReader(os.Stdin)
	_, _ = wait.ReadString('\n')
	for { // until the connections are accepted
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil || uint64(len(open)) > files/2 {
			break
		}
	}
	for range 10 { // each needs a new file of etcd's log
		large := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "large-"}, Data: map[string]string{"x": strings.Repeat("x", 900_000)}}
		if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	}
	fmt.Println("written")
	_, _ = wait.ReadString('\n')
}
