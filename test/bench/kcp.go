package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/test/stock"
)

// kcp is the server of this project, in one process with its etcd.
type kcp struct {
	binary string
}

func (k *kcp) name() string { return "kcp" }

func (k *kcp) start(ctx context.Context, dir string, _ bool) (*server, error) {
	ports, err := stock.FreePorts(1)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "root")
	s := &server{subject: k.name(), dir: dir, began: time.Now(), newTenant: newWorkspace}
	p, err := stock.Launch(dir, "kcp", k.binary, "start", "--root-directory="+root,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]))
	if err != nil {
		return nil, err
	}
	s.measured = []*stock.Process{p}
	kubeconfig := filepath.Join(root, "admin.kubeconfig")
	err = s.ready(ctx, fmt.Sprintf("https://127.0.0.1:%d", ports[0]), p)
	if err == nil {
		err = awaitFile(ctx, kubeconfig, p)
	}
	if err == nil {
		err = k.configure(s, kubeconfig)
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// awaitFile waits for a file that the server writes when it is ready, which may
// be a moment after it says so. That moment is not part of any figure.
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

// configure takes the credentials that the server wrote: those of its admin,
// whom RBAC grants everything, and of the shard's, who may read metrics.
func (k *kcp) configure(s *server, kubeconfig string) error {
	var metrics *rest.Config
	for context, to := range map[string]**rest.Config{"base": &s.user, "shard-base": &metrics} {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
			&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
		if err != nil {
			return fmt.Errorf("context %s of %s: %w", context, kubeconfig, err)
		}
		*to = config
	}
	s.metrics = []*rest.Config{metrics}
	return nil
}

// workspace is the part of a Workspace that a client needs.
type workspace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		URL string `json:"URL,omitempty"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase,omitempty"`
	} `json:"status"`
}

const (
	workspacesPath = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
	workspaces     = "/clusters/root" + workspacesPath
)

// newWorkspace makes a workspace below root and returns when it is Ready.
func newWorkspace(ctx context.Context, c *client, name string) (tenant, error) {
	path, err := makeWorkspace(ctx, c, workspaces, name)
	return tenant{
		configMaps: path + "/api/v1/namespaces/default/configmaps",
		all:        path + "/api/v1/configmaps",
	}, err
}

// makeWorkspace makes a workspace in a collection, and returns the path of its URL when
// it is Ready.
func makeWorkspace(ctx context.Context, c *client, in, name string) (string, error) {
	w := workspace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tenancy.kcp.io/v1alpha1", Kind: "Workspace"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	if err := c.post(ctx, in, &w); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not Ready after a minute"))
	defer cancel()
	for w.Status.Phase != "Ready" {
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return "", fmt.Errorf("workspace %s in phase %q: %w", name, w.Status.Phase, err)
		}
		b, err := c.call(ctx, http.MethodGet, in+"/"+name, jsonType, nil)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal(b, &w); err != nil {
			return "", fmt.Errorf("workspace %s: %w", name, err)
		}
	}
	u, err := url.Parse(w.Spec.URL)
	if err != nil || u.Path == "" {
		return "", fmt.Errorf("workspace %s is Ready, but its URL is %q", name, w.Spec.URL)
	}
	return u.Path, nil
}
