// Package etcdtest runs real etcd members for tests. Each member is a process, so a test can
// stop, kill or suspend it.
//
// A test binary that uses it calls [Main] first: the members run the same binary.
package etcdtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// variable is the environment variable with the settings of a member.
const variable = "ETCDTEST_MEMBER"

// settings are the settings that differ between members.
type settings struct {
	Name, Dir, Client, Peer, Cluster string
	Quota                            int64
	Steady                           bool
	// CA, Cert and Key secure the client port. With CA, clients need a certificate.
	CA, Cert, Key string
}

// Main runs a member and exits if this process was started as one. Otherwise it returns.
func Main() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	if err := run(text); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "etcd for tests:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(text string) error {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster = s.Name, s.Dir, s.Cluster
	cfg.LogLevel, cfg.Logger = "fatal", "zap"
	cfg.UnsafeNoFsync = true // tests do not crash the machine
	cfg.TickMs, cfg.ElectionMs = 50, 500
	if s.Steady {
		cfg.TickMs, cfg.ElectionMs = 250, 5000
	}
	cfg.QuotaBackendBytes = s.Quota
	cfg.MaxRequestBytes = 3 << 20
	client, err := url.Parse(s.Client)
	if err != nil {
		return err
	}
	peer, err := url.Parse(s.Peer)
	if err != nil {
		return err
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	if s.Cert != "" {
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: s.Cert, KeyFile: s.Key, TrustedCAFile: s.CA, ClientCertAuth: s.CA != ""}
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	orphaned := make(chan struct{})
	go func() { // the standard input ends with the test process, or when the test closes it
		defer close(orphaned)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}()
	select {
	case <-e.Server.ReadyNotify():
		fmt.Println("ready")
	case <-end:
		return nil
	case <-orphaned:
		return nil
	}
	select {
	case <-end:
		return nil
	case <-orphaned:
		return nil
	case err := <-e.Err():
		return err
	}
}

// Options configure an etcd. The zero value is one member without TLS.
type Options struct {
	// Members is the number of members. The default is 1.
	Members int
	// Quota is the maximum size of the database in bytes. The default is that of etcd.
	Quota int64
	// Steady sets a long election timeout. It is for tests without failures of members, so
	// that a slow machine causes no elections.
	Steady bool
	// CA, Cert and Key are PEM files that secure the client ports.
	CA, Cert, Key string
}

// A Cluster is an etcd of one or more members.
type Cluster struct {
	Members []*Member
}

// A Member is a member of an etcd, in its own process.
type Member struct {
	t        testing.TB
	settings settings
	cmd      *exec.Cmd
	hold     *os.File // the write end of the member's standard input; closing it ends the member
	ready    chan struct{}
}

// Start starts an etcd that ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	n := max(1, o.Members)
	ports := freePorts(t, 2*n)
	scheme := "http://"
	if o.Cert != "" {
		scheme = "https://"
	}
	c := &Cluster{}
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d=http://%s", i, ports[2*i+1]))
	}
	for i := range n {
		c.Members = append(c.Members, &Member{t: t, settings: settings{
			Name: fmt.Sprint("m", i), Dir: filepath.Join(t.TempDir(), "etcd"), Cluster: strings.Join(all, ","),
			Client: scheme + ports[2*i], Peer: "http://" + ports[2*i+1], Quota: o.Quota, Steady: o.Steady, CA: o.CA, Cert: o.Cert, Key: o.Key,
		}})
	}
	c.Start()
	t.Cleanup(c.Kill)
	return c
}

// freePorts returns free loopback addresses.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	ports := make([]string, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }() // all stay open until the end, so that the ports differ
		ports[i] = l.Addr().String()
	}
	return ports
}

// Servers returns the URLs of the members.
func (c *Cluster) Servers() []string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.settings.Client)
	}
	return all
}

// Start starts the members that are not running, and returns when all are ready.
func (c *Cluster) Start() {
	for _, m := range c.Members {
		m.begin()
	}
	for _, m := range c.Members {
		m.Ready()
	}
}

// Kill kills all members.
func (c *Cluster) Kill() {
	var all sync.WaitGroup
	for _, m := range c.Members {
		all.Go(m.Kill)
	}
	all.Wait()
}

// Start starts a member that is not running, and returns before it is ready.
func (m *Member) Start() { m.begin() }

// URL returns the client URL of the member.
func (m *Member) URL() string { return m.settings.Client }

// Backup returns the directory of a copy of the member's data. The member must not run.
func (m *Member) Backup() string {
	m.t.Helper()
	to := filepath.Join(m.t.TempDir(), "backup")
	if err := os.CopyFS(to, os.DirFS(m.settings.Dir)); err != nil {
		m.t.Fatal(err)
	}
	return to
}

// Restore replaces the member's data by a backup. The member must not run.
func (m *Member) Restore(backup string) {
	m.t.Helper()
	if err := os.RemoveAll(m.settings.Dir); err != nil {
		m.t.Fatal(err)
	}
	if err := os.CopyFS(m.settings.Dir, os.DirFS(backup)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *Member) begin() {
	m.t.Helper()
	if m.cmd != nil {
		return
	}
	text, err := json.Marshal(m.settings)
	if err != nil {
		m.t.Fatal(err)
	}
	// The context of the test would end before its cleanup.
	cmd := exec.Command(os.Args[0], "-test.run=^$") //nolint:noctx // see above
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	cmd.Stderr = os.Stderr
	in, hold, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd.Stdin = in
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	_ = in.Close() // the process has its own copy
	m.cmd, m.hold, m.ready = cmd, hold, make(chan struct{})
	go func(ready chan struct{}) { // returns when the process ends
		defer close(ready)
		_, _ = bufio.NewReader(out).ReadString('\n')
	}(m.ready)
}

// Ready returns when the member serves or has ended.
func (m *Member) Ready() { <-m.ready }

// Kill kills the process of the member. Start can start it again.
func (m *Member) Kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill() // fails only if it has ended
	_ = m.cmd.Wait()         // returns the signal as an error
	_ = m.hold.Close()
	<-m.ready
	m.cmd = nil
}

// Hang suspends the process: its connections stay open, but do not answer.
func (m *Member) Hang() { m.signal(syscall.SIGSTOP) }

// Resume continues the process after Hang.
func (m *Member) Resume() { m.signal(syscall.SIGCONT) }

func (m *Member) signal(s os.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}
