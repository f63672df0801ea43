package doctor

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	fewFiles  = 16_384 // below it, less than 8,192 are left for connections
	badFiles  = 1_024
	lowMemory = 512 << 20
	badMemory = 192 << 20
	// clockSlack is how far in the future a file may be: file systems round times.
	clockSlack = time.Minute
)

// serving checks the port, or the server that listens there.
func (s Server) serving(ctx context.Context, r *report, running bool) {
	if !running {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
		if err != nil {
			r.problem("stop the program that uses it (ss -ltnp shows it), or choose another with --bind-address and --secure-port", "the server could not listen at %s: %v", s.Listen, err)
			return
		}
		_ = l.Close()
		r.ok("%s is free", s.Listen)
		return
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: filepath.Join(s.Dir, "admin.kubeconfig")}, &clientcmd.ConfigOverrides{CurrentContext: "base"}).ClientConfig()
	if err != nil {
		r.warn("restart the server: it writes the file", "cannot ask the server: %v", err)
		return
	}
	for _, path := range []string{"/livez", "/readyz"} {
		s.health(ctx, r, config, path)
	}
}

// health asks the server how it is.
func (s Server) health(ctx context.Context, r *report, config *rest.Config, path string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		r.problem("restart the server: it writes the file", "admin.kubeconfig: %v", err)
		return
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path+"?verbose", nil)
	if err != nil {
		r.problem("restart the server: it writes the file", "admin.kubeconfig: %v", err)
		return
	}
	begun := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		r.problem("see the log of the server; if it hangs, kill -QUIT prints its goroutines and ends it", "%s: %v", config.Host+path, err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // the status says enough
	if resp.StatusCode != http.StatusOK {
		r.problem("see the log of the server", "%s is %s: %s", path, resp.Status, failing(string(text)))
		return
	}
	r.ok("%s is ok after %s", config.Host+path, time.Since(begun).Round(time.Millisecond))
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		if off := time.Since(date).Abs(); off > clockSlack {
			r.problem("synchronize the clocks of both machines", "the clock of the server differs by %s", off.Round(time.Second))
		}
	}
}

// failing returns the lines of a health check that are not ok.
func failing(text string) string {
	var bad []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "[-]") {
			bad = append(bad, strings.TrimSpace(line[3:]))
		}
	}
	return strings.Join(bad, "; ")
}

// limits checks what the system allows this user.
func limits(r *report) {
	if files, err := openFiles(); err == nil {
		const do = "raise it: ulimit -n, LimitNOFILE= of systemd, or the limits of the container"
		switch {
		case files < badFiles:
			r.problem(do, "the system allows %d open files; each connection is one", files)
		case files < fewFiles:
			r.warn(do, "the system allows %d open files; the server leaves half of them to connections", files)
		default:
			r.ok("the system allows %d open files", files)
		}
	}
	memory, err := memlimit.FromCgroup()
	if err != nil || memory == 0 || memory >= 1<<60 {
		r.ok("no cgroup limits the memory")
		return
	}
	const do = "raise the memory limit of the container or service"
	switch {
	case memory < badMemory:
		r.problem(do, "the cgroup has %d MiB; an empty server needs 150", memory>>20)
	case memory < lowMemory:
		r.warn(do, "the cgroup has %d MiB", memory>>20)
	default:
		r.ok("the cgroup has %d MiB; the Go runtime uses at most 80%% of it, unless GOMEMLIMIT says otherwise", memory>>20)
	}
}

// clock checks the clock of this machine.
func (s Server) clock(r *report) {
	const do = "correct the clock, and synchronize it with NTP: certificates, tokens and leases depend on it"
	newest := ""
	for _, name := range []string{"lock", "admin.kubeconfig", "apiserver.crt", "etcd-server/member/snap/db"} {
		path := filepath.Join(s.Dir, name)
		if info, err := os.Stat(path); err == nil && time.Until(info.ModTime()) > clockSlack {
			newest = fmt.Sprintf("%s was changed at %s, and it is %s now", path, info.ModTime().Format(time.RFC3339), time.Now().Format(time.RFC3339))
		}
	}
	synchronized, known := clockSynchronized()
	switch {
	case newest != "":
		r.problem(do, "%s", newest)
	case known && !synchronized:
		r.warn(do, "the kernel does not know whether the clock is right: no program synchronizes it")
	default:
		r.ok("it is %s", time.Now().UTC().Format(time.RFC3339))
	}
}
