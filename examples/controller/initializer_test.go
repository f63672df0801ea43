package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// named returns cache options with which informers index each LogicalCluster by the name of
// its cluster: all have the object name "cluster".
func named() cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{&core.LogicalCluster{}: {Transform: func(o any) (any, error) {
		if l, ok := o.(*core.LogicalCluster); ok {
			l.Name = l.Annotations["kcp.io/cluster"]
		}
		return o, nil
	}}}}
}

// initialize adds an initializer to a manager for the view of all workspaces that wait for it.
func initialize(mgr ctrl.Manager, view rest.Config, id string) error {
	prepare := func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		one := rest.CopyConfig(&view)
		one.Host += "/clusters/" + req.Name
		c, err := client.New(one, client.Options{Scheme: mgr.GetScheme()})
		if err != nil {
			return ctrl.Result{}, err
		}
		var l core.LogicalCluster
		if err := c.Get(ctx, client.ObjectKey{Name: "cluster"}, &l); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err) // another run has initialized it
		}
		hello := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
		if err := c.Create(ctx, hello); client.IgnoreAlreadyExists(err) != nil {
			return ctrl.Result{}, err
		}
		l.Status.Initializers = slices.DeleteFunc(l.Status.Initializers, func(i core.Initializer) bool { return string(i) == id })
		return ctrl.Result{}, c.Status().Update(ctx, &l)
	}
	return ctrl.NewControllerManagedBy(mgr).For(&core.LogicalCluster{}).Complete(reconcile.Func(prepare))
}

// TestInitializer checks that such a manager initializes existing and new workspaces.
func TestInitializer(t *testing.T) {
	t.Parallel()
	c := kcptest.New(t)
	at := strings.LastIndex(c.Config.Host, "/clusters/")
	id := c.Config.Host[at+len("/clusters/"):] + ":web"
	c.Apply("{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: web}, spec: {initializer: true, extend: {with: [{name: universal, path: root}]}}}")
	workspaces := func(from, to int) {
		for i := from; i < to; i++ {
			c.Apply(fmt.Sprintf("{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: w%d}, spec: {type: {name: web, path: %q}}}", i, strings.TrimSuffix(id, ":web")))
		}
	}
	workspaces(0, 5)

	view := rest.CopyConfig(c.Config)
	view.Host = c.Config.Host[:at] + "/services/initializingworkspaces/" + id
	all := rest.CopyConfig(view)
	all.Host += "/clusters/*"
	scheme := clientgoscheme.Scheme
	if err := core.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(all, ctrl.Options{Scheme: scheme, Cache: named(), Metrics: server.Options{BindAddress: "0"}})
	if err == nil {
		err = initialize(mgr, *view, id)
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	workspaces(5, 10)
	for i := range 10 {
		c.Wait(schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}, "", fmt.Sprintf("w%d", i), func(o *unstructured.Unstructured) bool {
			phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
			return phase == "Ready"
		})
	}
}
