package kcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp"
)

// smallDisk is the environment variable with the directory in which the process of TestSmallDisk
// mounts a disk.
const smallDisk = "KCP_TEST_SMALL_DISK"

// diskBytes is the size of the disk. With log files of 4 MiB, writes of tenants are refused below
// 72 MiB of free space, and all writes below 36.
const diskBytes = 200 << 20

// A server with a full disk refuses writes and serves reads. It can also start then, and needs no
// restart when there is space again.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a process on a disk of its own")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSmallDisk$", "-test.v")
	cmd.Env = append(os.Environ(), smallDisk+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{ // a user namespace, to mount without privilege
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		t.Skip("this system allows no user namespaces: ", err)
	}
	if err != nil {
		t.Errorf("%v:\n%s", err, out[max(0, len(out)-6000):])
	} else if !bytes.Contains(out, []byte("--- PASS: TestSmallDisk")) {
		t.Skipf("this system allows no mounts in user namespaces:\n%s", out)
	}
}

// TestSmallDisk is the child process of TestFullDisk, and not a test of its own.
func TestSmallDisk(t *testing.T) {
	disk := os.Getenv(smallDisk)
	if disk == "" {
		t.Skip("run by TestFullDisk")
	}
	if err := syscall.Mount("kcp-test", disk, "tmpfs", 0, "size=200m"); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skip("cannot mount: ", err)
	} else if err != nil {
		t.Fatal("mount: ", err)
	}
	b := &ballast{t: t, file: filepath.Join(disk, "ballast")}
	kubeconfig := filepath.Join(disk, "admin.kubeconfig")
	server := func() *kcp.Server {
		return &kcp.Server{Listen: "127.0.0.1:0", Dir: filepath.Join(disk, "data"), Kubeconfig: kubeconfig, Etcd: kcp.Etcd{WALSizeBytes: 4 << 20}}
	}
	srv := server()
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	maps := configMaps{t, cluster(t, srv, "team")}
	const many = 1000 // more than are deleted until the full disk is noticed
	for i := range many {
		if err := maps.create(fmt.Sprint("x", i)); err != nil {
			t.Fatal(err)
		}
	}
	b.leave(54 << 20)
	for err := maps.next(); !insufficient(err); err = maps.next() {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := maps.delete("x0"); err != nil {
		t.Errorf("a deletion on a disk that is nearly full: %v", err)
	}
	b.leave(0)
	var err error
	for i := 1; err == nil && i < many-1; i++ {
		err = maps.delete(fmt.Sprint("x", i))
	}
	if !insufficient(err) {
		t.Fatalf("a deletion on a full disk: %v", err)
	}
	maps.readable()
	if err := srv.Close(); err != nil {
		t.Errorf("stop on a full disk: %v", err)
	}
	before, err := os.Stat(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	b.leave(0)
	srv = server()
	if err := srv.Start(t.Context()); err != nil {
		t.Fatalf("start on a full disk: %v", err)
	}
	cfg, err := srv.As("team", &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	if err != nil {
		t.Fatal(err)
	}
	maps.c = clients(t, cfg)
	maps.readable()
	if err := maps.next(); !insufficient(err) {
		t.Errorf("a write after a start on a full disk: %v", err)
	}
	b.leave(diskBytes)
	for err := maps.next(); err != nil; err = maps.next() {
		if !insufficient(err) {
			t.Fatal(err)
		}
	}
	for now := before; os.SameFile(before, now); now, err = os.Stat(kubeconfig) { // until it is written anew
		if maps.readable(); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
}

func insufficient(err error) bool {
	return apierrors.ReasonForError(err) == "InsufficientStorage" && err.(apierrors.APIStatus).Status().Code == 507 //nolint:errorlint // as clients get it
}

// configMaps creates config maps in one logical cluster.
type configMaps struct {
	t *testing.T
	c *kubernetes.Clientset
}

func (m *configMaps) create(name string) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := m.c.CoreV1().ConfigMaps("default").Create(context.WithoutCancel(m.t.Context()), cm, metav1.CreateOptions{})
	return err
}

// next creates a config map with a new name.
func (m *configMaps) next() error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "more-"}}
	_, err := m.c.CoreV1().ConfigMaps("default").Create(m.t.Context(), cm, metav1.CreateOptions{})
	return err
}

func (m *configMaps) delete(name string) error {
	return m.c.CoreV1().ConfigMaps("default").Delete(m.t.Context(), name, metav1.DeleteOptions{})
}

func (m *configMaps) readable() {
	m.t.Helper()
	if list, err := m.c.CoreV1().ConfigMaps("default").List(m.t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) == 0 {
		m.t.Errorf("%v, %v", list, err)
	}
}

// A ballast is a file that fills a disk.
type ballast struct {
	t    *testing.T
	file string
}

// leave grows or removes the file so that about that much space remains free.
func (b *ballast) leave(free int64) {
	b.t.Helper()
	if free >= diskBytes {
		if err := os.Remove(b.file); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	f, err := os.OpenFile(b.file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it holds nothing that matters
	block := make([]byte, 1<<20)
	for {
		var s syscall.Statfs_t
		if err := syscall.Statfs(b.file, &s); err != nil {
			b.t.Fatal(err)
		}
		n := min(int64(s.Bavail)*s.Bsize-free, int64(len(block)))
		if n <= 0 {
			return
		}
		if _, err := f.Write(block[:n]); err != nil && !errors.Is(err, syscall.ENOSPC) {
			b.t.Fatal(err)
		}
	}
}
