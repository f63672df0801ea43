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

// Process is a child process of this program. Signals cannot reach another process: its
// pid is not reused before the child has been waited for.
type Process struct {
	Name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has exited
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
	go func() { // ends with the process; Stop waits for it
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// Stop ends the process and returns when it has exited. It kills the process after [Grace].
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if the process has exited
	t := time.NewTimer(Grace)
	defer t.Stop()
	select {
	case <-p.done:
		return
	case <-t.C:
	}
	p.Kill()
}

// Kill ends the process with SIGKILL and returns when it has exited.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if the process has exited
	<-p.done
}

// Ended returns an error for a process that exited early, with the last lines of its log.
func (p *Process) Ended() error {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	lines = lines[max(0, len(lines)-15):]
	return fmt.Errorf("%s has ended (%v); its log ends with:\n%s", p.Name, p.err, strings.Join(lines, "\n"))
}

// CPU returns the processor time of the process, in user and kernel mode.
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
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the process name before it may contain any character
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/<pid>/stat has %d fields after the name, want at least 13", len(fields))
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err, err2)
}

// Memory returns the anonymous resident memory of the process in bytes, without mapped
// files such as etcd's database.
func (p *Process) Memory() (float64, error) {
	return p.status("RssAnon")
}

// MostMemory returns the highest resident memory of the process so far in bytes, with
// mapped files such as etcd's database.
func (p *Process) MostMemory() (float64, error) {
	return p.status("VmHWM")
}

func (p *Process) status(field string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	return parseStatus(b, field)
}

// parseStatus returns a field of /proc/<pid>/status in bytes.
func parseStatus(b []byte, field string) (float64, error) {
	for line := range strings.Lines(string(b)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, field+": %f kB", &kb); n == 1 {
			return kb * 1024, nil
		}
	}
	return 0, fmt.Errorf("/proc/<pid>/status has no %s", field)
}

// Poll calls ok every interval until it returns true or an error. It returns an error if
// the process exits or ctx ends.
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

// FreePorts returns n different free loopback ports. It closes its listeners on them before
// it returns.
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

// Done returns a channel that is closed when the process has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }
