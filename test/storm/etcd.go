package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/unforked/kcp/test/child"
	"github.com/unforked/kcp/test/stock"
)

const etcdCommand = "etcd"

// etcd is an etcd in a child process, behind a proxy that can delay answers.
type etcd struct {
	url string
	cmd *exec.Cmd
	in  io.WriteCloser
}

// startEtcd starts an etcd and returns when it is ready.
func startEtcd(dir string) (*etcd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	e := &etcd{cmd: exec.Command(self, etcdCommand, filepath.Join(dir, "etcd"))}
	e.cmd.Stderr = os.Stderr
	if e.in, err = e.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		e.stop()
		return nil, fmt.Errorf("etcd did not start: %w", err)
	}
	e.url = strings.TrimSpace(line)
	return e, nil
}

// slow delays all answers from now on.
func (e *etcd) slow() error {
	_, err := io.WriteString(e.in, "slow\n")
	return err
}

func (e *etcd) stop() {
	_ = e.in.Close() // ends the process
	_ = e.cmd.Wait() // the exit code does not matter
}

// runEtcd is the child process: it serves until its standard input ends.
func runEtcd(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	ports, err := stock.FreePorts(2)
	if err != nil || len(args) != 1 {
		return errors.Join(err, fmt.Errorf("usage: %s DIRECTORY", etcdCommand))
	}
	config := embed.NewConfig()
	config.Dir, config.LogLevel = args[0], "fatal"
	config.MaxRequestBytes = 3 << 20
	for i, to := range []*[]url.URL{&config.ListenClientUrls, &config.ListenPeerUrls} {
		*to = []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports[i])}}
	}
	config.AdvertiseClientUrls, config.AdvertisePeerUrls = config.ListenClientUrls, config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return err
	}
	p := &proxy{to: config.ListenClientUrls[0].Host}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	go p.serve(ctx, listener) // ends with the listener
	if _, err := fmt.Fprintf(out, "http://%s\n", listener.Addr()); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		p.delay.Store(int64(etcdDelay))
	}
	return lines.Err()
}

// proxy is a TCP proxy that delays answers.
type proxy struct {
	to    string
	delay atomic.Int64
}

func (p *proxy) serve(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go p.pass(ctx, c) // ends with the connection, and so with the process
	}
}

func (p *proxy) pass(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.to)
	if err != nil {
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	both.Go(func() {
		p.later(ctx, client, server)
		_ = client.Close()
	})
	both.Wait()
}

type chunk struct {
	bytes []byte
	due   time.Time
}

// later copies data, each part after the delay.
func (p *proxy) later(ctx context.Context, to io.Writer, from io.Reader) {
	chunks := make(chan chunk, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		var err error
		for c := range chunks { // to the end, so that reading never blocks for good
			if err == nil {
				if err = child.Pause(ctx, time.Until(c.due)); err == nil {
					_, err = to.Write(c.bytes)
				}
			}
		}
	})
	defer writer.Wait()
	defer close(chunks)
	for {
		b := make([]byte, 32<<10)
		n, err := from.Read(b)
		if n > 0 {
			chunks <- chunk{b[:n], time.Now().Add(time.Duration(p.delay.Load()))}
		}
		if err != nil {
			return
		}
	}
}
