package fleet_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// TestLastTarget expects that nothing of a fleet is left in its consumers when its last SyncTarget is gone: their
// objects can be deleted. With the next SyncTarget, they are placed again.
func TestLastTarget(t *testing.T) {
	c, shop := placing(t)
	placed := func(want bool) {
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
	placed(true)
	gone := func(name string) {
		t.Helper()
		if err := c.targets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			_, err := c.targets.Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("SyncTarget %s exists: %v", name, err)
		})
	}
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

// TestComputeWorkspaceEnds expects that consumers do not hold up the deletion of their compute workspace.
func TestComputeWorkspaceEnds(t *testing.T) {
	c, shop := placing(t)
	says(t, shop, deployments(), "default", "web", "NoTarget")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Server.Remove(ctx, c.Name); err != nil {
		t.Fatal(err)
	}
}

// placing returns a compute workspace with one SyncTarget, and a consumer with a Deployment.
func placing(t *testing.T) (computing, *kcptest.Cluster) {
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
	shop := consumer(t, u, c)
	shop.Apply(placement("all", ""))
	shop.Apply(deployment)
	return c, shop
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
