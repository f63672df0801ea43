package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/kcptest"
)

// TestLastTarget expects that nothing of a fleet is left in its consumers when its last SyncTarget is gone: their
// objects can be deleted. With the next SyncTarget, they are placed again.
func TestLastTarget(t *testing.T) {
	c, shop := placing(t)
	placed := func(want bool) { t.Helper(); placed(t, shop, want) }
	placed(true)
	gone := func(name string) { t.Helper(); c.unregister(t, name) }
	c.register(t, "west", "")
	c.wait(t, "west", func(of *workload.SyncTarget) bool { return len(of.Finalizers) > 0 })
	gone("east")
	placed(true)
	gone("west")
	placed(false)
	c.register(t, "north", "")
	placed(true)
	gone("north")
	placed(false)
	deleted(t, shop)
}

// TestComputeWorkspaceEnds expects that consumers do not hold up the deletion of their compute workspace.
func TestComputeWorkspaceEnds(t *testing.T) {
	c, shop := placing(t)
	says(t, shop, deployments(), "default", "web", "NoTarget")
	remove(t, c)
	placed(t, shop, false)
	deleted(t, shop)
}

// TestExportEnds expects that the deletion of the export alone frees the consumers, while a SyncTarget
// has their workloads. It does not hold up the deletion of its workspace.
func TestExportEnds(t *testing.T) {
	c, shop := placing(t)
	far := &kcptest.Universe{Server: &kcp.Server{Listen: "127.0.0.1:0", NoSync: true}}
	t.Cleanup(func() {
		if err := far.Close(); err != nil {
			t.Error(err)
		}
	})
	c.Apply(`
apiVersion: scheduling.kcp.io/v1alpha1
kind: Location
metadata: {name: here}
spec: {}
`)
	c.register(t, "west", kubeconfigOf(t, far))
	assigned := shop.Dynamic.Resource(workload.GroupVersion.WithResource("assignments")).Namespace("default")
	eventually(t, func() error {
		all, err := assigned.List(t.Context(), metav1.ListOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(all.Items), "targets:") {
			err = fmt.Errorf("no target has the Deployment: %v", all.Items)
		}
		return err
	})
	exports := c.Dynamic.Resource(apis.GroupVersion.WithResource("apiexports"))
	if err := exports.Delete(t.Context(), workload.KubernetesExport, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	placed(t, shop, false)
	deleted(t, shop)
	remove(t, c)
}

// TestSweep expects that a server that starts frees the consumers of a compute workspace that is gone.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	var shop *kcptest.Cluster
	var c computing
	for i, extensions := range [][]kcp.Extension{{fleet.Extension(fleet.Options{})}, nil, {fleet.Extension(fleet.Options{})}} {
		u := &kcptest.Universe{Server: &kcp.Server{Dir: dir, Listen: "127.0.0.1:0", NoSync: true, Extensions: extensions}}
		switch i {
		case 0:
			c = compute(t, u)
			c.register(t, "east", "")
			c.wait(t, "east", func(of *workload.SyncTarget) bool { return len(of.Finalizers) > 0 })
			shop = consumer(t, u, c)
			shop.Apply(placement("all", ""))
			shop.Apply(deployment)
			placed(t, shop, true)
		case 1: // without the extension, the compute workspace goes only when somebody removes the finalizers
			c.Cluster = moved(t, u, c.Cluster)
			unfinalized := []byte(`{"metadata":{"finalizers":null}}`)
			if _, err := c.Dynamic.Resource(workload.GroupVersion.WithResource("synctargets")).Patch(t.Context(), "east", types.MergePatchType, unfinalized, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Dynamic.Resource(apis.GroupVersion.WithResource("apiexports")).Patch(t.Context(), workload.KubernetesExport, types.MergePatchType, unfinalized, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			remove(t, c)
		case 2:
			shop = moved(t, u, shop)
			placed(t, shop, false)
			deleted(t, shop)
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// moved returns a logical cluster at the next server on the same data.
func moved(t *testing.T, to *kcptest.Universe, c *kcptest.Cluster) *kcptest.Cluster {
	t.Helper()
	s, err := to.Start()
	if err != nil {
		t.Fatal(err)
	}
	next := &kcptest.Cluster{Name: c.Name, Server: s}
	if next.Config, err = s.Cluster(t.Context(), c.Name); err != nil {
		t.Fatal(err)
	}
	if next.Dynamic, err = dynamic.NewForConfig(next.Config); err != nil {
		t.Fatal(err)
	}
	return next
}

// placed waits until the Deployment of a consumer has finalizers and an Assignment, or has neither.
func placed(t *testing.T, shop *kcptest.Cluster, want bool) {
	t.Helper()
	eventually(t, func() error {
		o, err := shop.Dynamic.Resource(deployments()).Namespace("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, err := shop.Dynamic.Resource(workload.GroupVersion.WithResource("assignments")).List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(o.GetFinalizers()) > 0 != want || len(all.Items) > 0 != want) {
			err = fmt.Errorf("finalizers %v, %d Assignments, want some: %v", o.GetFinalizers(), len(all.Items), want)
		}
		return err
	})
}

// deleted deletes the Deployment of a consumer, and waits until it is gone.
func deleted(t *testing.T, shop *kcptest.Cluster) {
	t.Helper()
	if err := shop.Dynamic.Resource(deployments()).Namespace("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := shop.Dynamic.Resource(deployments()).Namespace("default").Get(t.Context(), "web", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the Deployment exists: %v", err)
	})
}

// remove deletes a compute workspace.
func remove(t *testing.T, c computing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Server.Remove(ctx, c.Name); err != nil {
		t.Fatal(err)
	}
}

// placing returns a compute workspace with one SyncTarget, and a consumer with a Deployment.
func placing(t *testing.T) (computing, *kcptest.Cluster) {
	t.Helper()
	u, c := registered(t)
	shop := consumer(t, u, c)
	shop.Apply(placement("all", ""))
	shop.Apply(deployment)
	return c, shop
}

// registered returns a compute workspace with a SyncTarget that is connected to nothing.
func registered(t *testing.T) (*kcptest.Universe, computing) {
	t.Helper()
	u := &kcptest.Universe{Server: server(300 * time.Millisecond)}
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	c := compute(t, u)
	c.register(t, "east", "")
	c.wait(t, "east", func(of *workload.SyncTarget) bool { return len(of.Finalizers) > 0 })
	return u, c
}

// consumer returns a workspace that binds the kinds of a compute workspace.
func consumer(t *testing.T, u *kcptest.Universe, c computing) *kcptest.Cluster {
	t.Helper()
	shop := u.New(t)
	shop.Apply(`
apiVersion: apis.kcp.io/v1alpha2
kind: APIBinding
metadata: {name: kubernetes}
spec: {reference: {export: {path: "` + c.Name + `", name: kubernetes}}}
`)
	return shop
}
