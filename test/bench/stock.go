package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/test/stock"
)

// kube is an unmodified Kubernetes control plane.
type kube struct {
	binary string
}

func (k *kube) name() string { return "stock" }

func (k *kube) start(ctx context.Context, dir string, controllers bool) (*server, error) {
	c := &stock.ControlPlane{Binary: k.binary, Dir: dir}
	if err := c.Start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	s := &server{
		subject: k.name(), dir: dir, took: c.Took,
		measured: []*stock.Process{c.Etcd, c.API},
		user:     c.Config(stock.UserToken),
		metrics:  []*rest.Config{c.EtcdConfig(), c.Config(stock.AdminToken)},
	}
	if controllers {
		if err := startControllers(ctx, c, s); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

// startControllers starts the controller manager and waits until it has created the first
// service account.
func startControllers(ctx context.Context, c *stock.ControlPlane, s *server) error {
	if err := c.StartControllers(); err != nil {
		return err
	}
	s.beside = append(s.beside, c.Controllers)
	accounts, err := watchAccounts(ctx, s.user)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, accounts.close)
	s.newTenant = func(ctx context.Context, c *client, name string) (tenant, error) {
		return newNamespace(ctx, c, accounts, name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("no service account after two minutes"))
	defer cancel()
	select {
	case <-c.Controllers.Done():
		return c.Controllers.Ended()
	case err := <-accounts.wait("default"):
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", c.Controllers.Name, context.Cause(ctx))
	}
}

// newNamespace creates a namespace and returns when its default service account exists,
// which pods need.
func newNamespace(ctx context.Context, c *client, accounts *accounts, name string) (tenant, error) {
	seen := accounts.wait(name)
	err := c.Post(ctx, "/api/v1/namespaces", &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	})
	if err != nil {
		return tenant{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no default service account after a minute"))
	defer cancel()
	select {
	case err = <-seen:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return tenant{}, fmt.Errorf("namespace %s: %w", name, err)
	}
	path := "/api/v1/namespaces/" + name + "/configmaps"
	return tenant{configMaps: path, all: path}, nil
}
