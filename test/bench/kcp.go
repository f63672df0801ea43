package main

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/test/child"
	"github.com/unforked/kcp/test/stock"
)

// kcp is the server of this project, in one process with its etcd.
type kcp struct {
	binary string
}

func (k *kcp) name() string { return "kcp" }

func (k *kcp) start(ctx context.Context, dir string, _ bool) (*server, error) {
	p, err := child.Start(ctx, k.binary, dir)
	if err != nil {
		return nil, err
	}
	return &server{
		subject: k.name(), dir: dir, took: p.Took, newTenant: newWorkspace,
		measured: []*stock.Process{p.Process}, user: p.Admin, metrics: []*rest.Config{p.Metrics},
	}, nil
}

// newWorkspace creates a workspace below root and returns when it is Ready.
func newWorkspace(ctx context.Context, c *client, name string) (tenant, error) {
	path, err := child.MakeWorkspace(ctx, c, child.RootWorkspaces, name)
	return tenant{
		configMaps: path + "/api/v1/namespaces/default/configmaps",
		all:        path + "/api/v1/configmaps",
	}, err
}
