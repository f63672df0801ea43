package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/test/child"
)

const (
	ownerToken = "owner-token"
	quietToken = "quiet-token"
	tokens     = ownerToken + ",owner,1\n" + quietToken + ",quiet,2\n"

	etcdDelay = 50 * time.Millisecond
)

// A world is a server with a user of many workspaces and a quiet tenant.
type world struct {
	*options
	kcp        *child.KCP
	slowEtcd   bool
	etcd       *etcd    // nil without slowEtcd
	workspaces []string // paths of URLs
	quiet      string
	ca         []byte
	hole       string // URL at which nothing answers
	listener   net.Listener
}

func newWorld(ctx context.Context, o *options, dir string, slowEtcd bool) (w *world, err error) {
	w = &world{options: o, slowEtcd: slowEtcd}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return w, err
	}
	file := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
		return w, err
	}
	flags := []string{"--token-auth-file=" + file, "--tenant-egress-allow-cidrs=127.0.0.1/32"}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil { // the system accepts connections, nobody reads
		return w, err
	}
	w.hole = "https://" + w.listener.Addr().String()
	if slowEtcd {
		if w.etcd, err = startEtcd(dir); err != nil {
			return w, err
		}
		flags = append(flags, "--etcd-servers="+w.etcd.url)
	}
	if w.kcp, err = child.Start(ctx, o.kcp, dir, flags...); err != nil {
		return w, err
	}
	return w, w.settle(ctx)
}

func (w *world) stop() {
	if w == nil {
		return
	}
	if w.kcp != nil {
		w.kcp.Stop()
	}
	if w.etcd != nil {
		w.etcd.stop()
	}
	if w.listener != nil {
		_ = w.listener.Close() // it has no content
	}
}

// as returns a client configuration for a user.
func (w *world) as(token string) *rest.Config {
	return &rest.Config{Host: w.kcp.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: w.ca, CAFile: w.kcp.Admin.CAFile}}
}

// settle creates the workspaces.
func (w *world) settle(ctx context.Context) (err error) {
	w.ca = w.kcp.Admin.CAData
	quiet, err := child.NewClient(w.as(quietToken))
	if err != nil {
		return err
	}
	defer quiet.Close()
	if w.quiet, err = child.Home(ctx, quiet); err != nil {
		return fmt.Errorf("home of the quiet tenant: %w", err)
	}
	owner, err := child.NewClient(w.as(ownerToken))
	if err != nil {
		return err
	}
	defer owner.Close()
	home, err := child.Home(ctx, owner)
	if err != nil {
		return fmt.Errorf("home of the owner: %w", err)
	}
	for i := range w.options.workspaces {
		path, err := child.MakeWorkspace(ctx, owner, home+child.WorkspacesPath, fmt.Sprint("w", i))
		if err != nil {
			return err
		}
		w.workspaces = append(w.workspaces, path)
	}
	return nil
}

// each prepares the first n workspaces, four at a time.
func (w *world) each(ctx context.Context, n int, do func(context.Context, *child.Client, string) error) error {
	n = min(n, len(w.workspaces))
	paths := make(chan string, n)
	for _, path := range w.workspaces[:n] {
		paths <- path
	}
	close(paths)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			c, err := child.NewClient(w.as(ownerToken))
			if errs[i] = err; err != nil {
				return
			}
			defer c.Close()
			for path := range paths {
				if errs[i] = do(ctx, c, path); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// endure runs a storm.
func (w *world) endure(ctx context.Context, s storm) (r result, err error) {
	r = result{storm: s, count: newTally()}
	for i, prepare := range s.prepare {
		if err := prepare(ctx, w); err != nil {
			return r, fmt.Errorf("prepare %d: %w", i, err)
		}
	}
	if w.etcd != nil {
		if err := w.etcd.slow(); err != nil {
			return r, err
		}
	}
	calm, lasts := w.lasts/2, max(w.lasts, s.least)
	if r.alone, err = w.measure(ctx, calm); err != nil {
		return r, err
	}
	if r.before, err = w.look(ctx); err != nil {
		return r, err
	}
	stormy, end := context.WithTimeout(ctx, lasts)
	defer end()
	watched := w.watch(stormy, end, r.before)
	names := s.of
	if names == nil {
		names = []string{s.name}
	}
	children, err := w.attack(stormy, names)
	if err != nil {
		return r, err
	}
	if r.during, err = w.measure(stormy, lasts); err != nil {
		return r, err
	}
	end()
	r.most, r.early = watched()
	for _, c := range children {
		t, err := c.end()
		if err != nil {
			return r, err
		}
		r.count.add(t)
	}
	r.took, r.after, err = w.comeBack(ctx, r.before, &r.most)
	return r, err
}

// attacker is the child process of an attack.
type attacker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out bytes.Buffer
}

// attack starts a child process for each attack, at the lowest priority.
func (w *world) attack(ctx context.Context, names []string) (all []*attacker, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if len(w.ca) == 0 {
		if w.ca, err = os.ReadFile(w.kcp.Admin.CAFile); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		line, err := json.Marshal(target{Attack: name, URL: w.kcp.URL, CA: w.ca, Token: ownerToken, Workspaces: w.workspaces})
		if err != nil {
			return all, err
		}
		a := &attacker{cmd: exec.CommandContext(context.WithoutCancel(ctx), "nice", "-n", strconv.Itoa(w.nice), self, attackCommand)}
		a.cmd.Stdout, a.cmd.Stderr = &a.out, os.Stderr
		if a.in, err = a.cmd.StdinPipe(); err != nil {
			return all, err
		}
		if err := a.cmd.Start(); err != nil {
			return all, err
		}
		all = append(all, a)
		if _, err := a.in.Write(append(line, '\n')); err != nil {
			return all, err
		}
	}
	return all, nil
}

// end ends an attack and returns what it counted.
func (a *attacker) end() (*tally, error) {
	if err := a.in.Close(); err != nil {
		return nil, err
	}
	if err := a.cmd.Wait(); err != nil {
		return nil, fmt.Errorf("attack: %w", err)
	}
	t := newTally()
	return t, json.NewDecoder(bufio.NewReader(&a.out)).Decode(t)
}
