package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// diskSocket is the environment variable with the socket of a disk, for a program whose fsyncs it
// decides about.
const diskSocket = "KCP_TEST_DISK"

// A disk delays the fsyncs of a process, or lets them fail. The kernel asks it about each one, by
// a seccomp filter, which needs no privilege.
type disk struct {
	program string // runs kcp with this disk
	socket  *net.UnixListener
	delay   atomic.Int64 // nanoseconds
	broken  atomic.Bool
	syncs   atomic.Int64
	ends    chan struct{}
	all     sync.WaitGroup
}

// newDisk returns a disk for a program, which ends with the test.
func newDisk(t *testing.T, program string) *disk {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "disk-") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{program: filepath.Join(dir, "kcp"), ends: make(chan struct{})}
	at := filepath.Join(dir, "socket")
	script := fmt.Sprintf("#!/bin/sh\n%s='%s' exec '%s' '%s' \"$@\"\n", diskSocket, at, self, program)
	if err := os.WriteFile(d.program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if d.socket, err = net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	d.all.Go(d.accept)
	t.Cleanup(func() {
		close(d.ends)
		_ = d.socket.Close() // ends accept
		d.all.Wait()
		_ = os.RemoveAll(dir)
	})
	return d
}

// accept receives the listeners of processes.
func (d *disk) accept() {
	for {
		conn, err := d.socket.AcceptUnix()
		if err != nil {
			return
		}
		rights := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), rights)
		_ = conn.Close() // its only message was read
		if err != nil {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil || len(messages) != 1 {
			continue
		}
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			d.all.Go(func() { d.serve(fds[0]) })
		}
	}
}

// Sizes of struct seccomp_notif and struct seccomp_notif_resp.
const (
	noticeBytes = 80
	answerBytes = 24
)

// serve answers the kernel until the process has ended.
func (d *disk) serve(fd int) {
	defer unix.Close(fd)
	var answering sync.WaitGroup
	defer answering.Wait()
	for {
		select {
		case <-d.ends:
			return
		default:
		}
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 100); n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return
		}
		notice := make([]byte, noticeBytes)
		if control(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, notice) != nil {
			continue // the thread has ended
		}
		d.syncs.Add(1)
		answering.Go(func() {
			select {
			case <-time.After(time.Duration(d.delay.Load())):
			case <-d.ends:
			}
			answer := make([]byte, answerBytes)
			copy(answer, notice[:8]) // the identifier
			if d.broken.Load() {
				failure := -int32(unix.EIO)
				binary.NativeEndian.PutUint32(answer[16:], uint32(failure))
			} else {
				binary.NativeEndian.PutUint32(answer[20:], unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
			}
			_ = control(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, answer) // the thread may have ended
		})
	}
}

func control(fd int, request uintptr, of []byte) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&of[0]))); errno != 0 {
		return errno
	}
	return nil
}

// onDisk replaces this process by the program in its arguments, with the disk that the environment
// names. Without such a disk it returns.
func onDisk() {
	at := os.Getenv(diskSocket)
	if at == "" {
		return
	}
	err := func() error {
		runtime.LockOSThread() // the filter is of this thread, and of the program after exec
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: at, Net: "unix"})
		if err != nil {
			return err
		}
		fd, err := filterSyncs()
		if err != nil {
			return err
		}
		if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
			return err
		}
		if err := os.Unsetenv(diskSocket); err != nil {
			return err
		}
		return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}()
	fmt.Fprintln(os.Stderr, "run a program with a disk of its own:", err)
	os.Exit(3)
}

// filterSyncs makes the kernel ask before each fsync of this thread. It returns the descriptor at
// which it asks.
func filterSyncs() (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	const is = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: is, Jt: 2, K: unix.SYS_FSYNC},
		{Code: is, Jt: 1, K: unix.SYS_FDATASYNC},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}
