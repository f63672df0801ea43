// Package child starts a built kcp as a child process and is a client of its API, for programs
// that measure or attack a server from outside.
package child

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/test/stock"
)

// KCP is a running server, with an embedded etcd unless flags set another one.
type KCP struct {
	*stock.Process
	URL     string
	Root    string        // its directory
	Admin   *rest.Config  // its administrator, to whom RBAC grants everything
	Metrics *rest.Config  // the administrator of the whole process, who may read /metrics
	Took    time.Duration // from exec to ready
}

// Start starts a server with the directory root below dir, and returns when it is ready. The
// caller must stop it.
func Start(ctx context.Context, binary, dir string, flags ...string) (*KCP, error) {
	ports, err := stock.FreePorts(1)
	if err != nil {
		return nil, err
	}
	k := &KCP{URL: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), Root: filepath.Join(dir, "root")}
	began := time.Now()
	args := append([]string{binary, "start", "--root-directory=" + k.Root, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0])}, flags...)
	if k.Process, err = stock.Launch(dir, "kcp", args...); err != nil {
		return nil, err
	}
	err = stock.Ready(ctx, k.URL, k.Process)
	k.Took = time.Since(began)
	if err == nil {
		err = k.configure(ctx)
	}
	if err != nil {
		k.Stop()
		return nil, err
	}
	return k, nil
}

// configure reads the credentials that the server wrote.
func (k *KCP) configure(ctx context.Context) error {
	kubeconfig := filepath.Join(k.Root, "admin.kubeconfig")
	if err := awaitFile(ctx, kubeconfig, k.Process); err != nil {
		return err
	}
	for context, to := range map[string]**rest.Config{"base": &k.Admin, "shard-base": &k.Metrics} {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
			&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
		if err != nil {
			return fmt.Errorf("context %s of %s: %w", context, kubeconfig, err)
		}
		*to = config
	}
	return nil
}

// awaitFile waits for a file that the server writes when it is ready, perhaps a moment after
// /readyz succeeds.
func awaitFile(ctx context.Context, file string, p *stock.Process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stock.Grace, fmt.Errorf("%s is ready but has not written %s", p.Name, file))
	defer cancel()
	return stock.Poll(ctx, 5*time.Millisecond, p, func() (bool, error) {
		_, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	})
}
