package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/build"
	"github.com/unforked/kcp/internal/storage/backup"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/embedded"
)

// reportEvery is how often a command reports its progress.
const reportEvery = 2 * time.Second

// source says which data kcp backup and kcp defragment are about.
type source struct {
	server     kcp.Server // only its directory and etcd
	etcd       etcdFlags
	kubeconfig string
	context    string
}

func backupCommand() *cobra.Command {
	s := &source{}
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Save all objects of all workspaces to a file",
		Long: `Save all objects of all workspaces to a file, as they were at one moment. The server can
run meanwhile and goes on serving. If none runs on the root directory, kcp reads the data itself.

Objects that are encrypted in etcd are encrypted in the file. All others are readable, with the
secrets of all users: protect the file. Keep the files that are not in etcd as well: sa.key and
the file of --encryption-provider-config.`,
		Example: `  # Back up the server on .kcp, whether it runs or not
  kcp backup monday.kcp

  # Back up a server on another machine
  kcp backup monday.kcp --kubeconfig=admin.kubeconfig

  # Back up an external etcd without a server
  kcp backup monday.kcp --etcd-servers=https://etcd-1:2379 --etcd-cafile=ca.crt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			quietLog()
			return s.save(ctx, args[0], cmd.ErrOrStderr())
		},
	}
	s.flags(cmd.Flags())
	return cmd
}

func (s *source) flags(f *pflag.FlagSet) {
	f.StringVar(&s.server.Dir, "root-directory", rootDirectory, "Directory of the server.")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "Kubeconfig of an administrator, for a server that runs. (default <root-directory>/admin.kubeconfig)")
	f.StringVar(&s.context, "context", "shard-base", "Context of the kubeconfig; its user must be in the group system:masters.")
	s.etcd.add(f, &s.server)
}

func (s *source) save(ctx context.Context, file string, out io.Writer) error {
	report := every(reportEvery, func(keys, all int64) { _, _ = fmt.Fprintf(out, "%d of %d keys\n", keys, all) })
	header, err := backup.Save(func() (io.ReadCloser, error) { return s.open(ctx) }, file, report)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "Saved %d keys at revision %d in %s.\n", header.Keys, header.Revision, file)
	return err
}

// open returns the content of the backup: from a server, or from etcd.
func (s *source) open(ctx context.Context) (io.ReadCloser, error) {
	if err := s.etcd.apply(&s.server.Etcd); err != nil {
		return nil, err
	}
	unlock, err := s.find()
	if err != nil {
		return nil, err
	}
	if unlock == nil {
		return s.ask(ctx, http.MethodGet, "/backup")
	}
	return s.read(ctx, unlock)
}

// find decides between a server and etcd. It returns nil if a server runs. Otherwise etcd is to be
// opened, and then the returned function is to be called.
func (s *source) find() (unlock func(), err error) {
	if s.kubeconfig != "" {
		return nil, nil
	}
	if len(s.server.Etcd.Servers) > 0 {
		return func() {}, nil
	}
	data := s.server.Etcd.Dir
	if data == "" {
		data = filepath.Join(s.server.Dir, "etcd-server")
	}
	if _, err := os.Stat(embedded.DatabaseFile(data)); err != nil {
		return nil, fmt.Errorf("no data in %s: %w; name the directory of the server with --root-directory, or one that runs elsewhere with --kubeconfig", data, err)
	}
	unlock, err = etcd.LockDir(s.server.Dir)
	if errors.Is(err, etcd.ErrInUse) {
		s.kubeconfig = filepath.Join(s.server.Dir, "admin.kubeconfig")
		return nil, nil
	}
	return unlock, err
}

// ask sends a request to a server, and returns the body of the response.
func (s *source) ask(ctx context.Context, method, path string) (io.ReadCloser, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: s.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w; name another with --kubeconfig, or a context with --context", s.kubeconfig, err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(config.Host, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the server does not answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // for the error below only
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the server refuses: %s", reason(resp.Status, text))
	}
	return resp.Body, nil
}

// reason returns the message of a refusal.
func reason(status string, text []byte) string {
	var refusal metav1.Status
	if err := yaml.Unmarshal(text, &refusal); err == nil && refusal.Message != "" {
		return refusal.Message
	}
	return status
}

// read reads etcd in this process.
func (s *source) read(ctx context.Context, unlock func()) (io.ReadCloser, error) {
	backend, err := etcd.Open(ctx, s.server.Etcd, s.server.Dir, true)
	if err != nil {
		unlock()
		return nil, err
	}
	in, out := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		prefix := path.Join("/", s.server.EtcdPrefix)
		_ = out.CloseWithError(backup.Write(ctx, backup.Source{Backend: backend, Prefix: prefix, Version: build.Read().Version}, out))
	}()
	return reading{in, func() { <-done; backend.Close(); unlock() }}, nil
}

// reading is the read end of a pipe. Close waits for the writer.
type reading struct {
	*io.PipeReader
	wait func()
}

// Close implements [io.Closer].
func (r reading) Close() error {
	_ = r.PipeReader.Close() // always nil
	r.wait()
	return nil
}

// every returns a function that calls f at most once per interval.
func every(interval time.Duration, f func(done, all int64)) func(done, all int64) {
	last := time.Now()
	return func(done, all int64) {
		if now := time.Now(); now.Sub(last) >= interval {
			last = now
			f(done, all)
		}
	}
}

// quietLog drops the log: the commands print what matters.
func quietLog() { klog.SetLogger(logr.Discard()) }
