package stock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Grace is how long a server may take to stop before it is killed.
const Grace = 10 * time.Second

// Process is one server that this program started. Nothing else is ever
// signalled: it is a child that has not been waited for, so its pid is its own.
type Process struct {
	Name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed once the child is gone
	err  error         // how it ended; read it after done
}

// Launch starts a program with its output in <dir>/<name>.log.
func Launch(dir, name string, argv ...string) (*Process, error) {
	p := &Process{Name: name, log: dir + "/" + name + ".log", done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.SysProcAttr = tied()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { // ends with the child; Stop waits for it
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// Stop ends the process and returns when it is gone.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only when it is gone already
	t := time.NewTimer(Grace)
	defer t.Stop()
	select {
	case <-p.done:
		return
	case <-t.C:
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Ended says why a process that should be running is not: its last words.
func (p *Process) Ended() error {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	lines = lines[max(0, len(lines)-15):]
	return fmt.Errorf("%s has ended (%v); its log ends with:\n%s", p.Name, p.err, strings.Join(lines, "\n"))
}

// CPU is the processor time the process has used, in user and kernel mode.
func (p *Process) CPU() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", p.Name, err)
	}
	return parseStat(b)
}

// parseStat adds utime and stime. Linux counts them in 1/100 s on every
// architecture that Go supports.
func parseStat(b []byte) (time.Duration, error) {
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name before may hold anything
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/<pid>/stat has %d fields after the name, want at least 13", len(fields))
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err, err2)
}

// Memory is the anonymous resident memory of the process in bytes: files it
// has mapped, such as etcd's database, do not count.
func (p *Process) Memory() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	return parseStatus(b)
}

func parseStatus(b []byte) (float64, error) {
	for line := range strings.Lines(string(b)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kb); n == 1 {
			return kb * 1024, nil
		}
	}
	return 0, errors.New("/proc/<pid>/status has no RssAnon")
}

// Poll calls ok every interval until it returns true or an error. A process
// that ends meanwhile is an error too.
func Poll(ctx context.Context, interval time.Duration, p *Process, ok func() (bool, error)) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-p.done:
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", p.Name, context.Cause(ctx))
		}
	}
}

// FreePorts finds n loopback ports that nobody listens on. They are held until
// all are known, so they differ.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Done returns a channel that is closed once the process is gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }
