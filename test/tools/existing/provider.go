package main

import (
	"context"
	"fmt"
	"strings"
	"sync"

	kcpclient "github.com/kcp-dev/apimachinery/v2/pkg/client"
	"github.com/kcp-dev/multicluster-provider/apiexport"
	"github.com/kcp-dev/multicluster-provider/initializingworkspaces"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	kcpcorev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	kcpcluster "github.com/kcp-dev/sdk/client/clientset/versioned/cluster"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

// names are the names of clusters that the provider has engaged.
var names sync.Map

// engaged returns the provider's name of a logical cluster, which begins with that of an endpoint.
func engaged(cluster string) (name multicluster.ClusterName) {
	names.Range(func(key, _ any) bool {
		if n := key.(multicluster.ClusterName); strings.HasSuffix(string(n), cluster) {
			name = n
		}
		return name == ""
	})
	return name
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// provide runs a controller for all tenants of the export. For each Widget it writes the status
// and, by the permission claim, a ConfigMap. One tenant comes after the start, and one leaves.
func provide(ctx context.Context, cfg *rest.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	mgr, err := manager(kcpclient.SetCluster(rest.CopyConfig(cfg), provider))
	if err != nil {
		return err
	}
	wait.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Println("the manager:", err)
		}
	})
	for _, name := range tenants {
		if err := use(ctx, cfg, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	typed, err := kcpcluster.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if _, err := typed.Cluster(root).TenancyV1alpha1().Workspaces().Create(ctx,
		&tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	tenants = []string{"late"}
	if err := bind(ctx, cfg); err != nil {
		return err
	}
	if err := use(ctx, cfg, "late"); err != nil {
		return fmt.Errorf("late: %w", err)
	}
	late, err := typed.Cluster(root).TenancyV1alpha1().Workspaces().Get(ctx, "late", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := typed.Cluster(root.Join("late")).ApisV1alpha2().APIBindings().Delete(ctx, "widgets", metav1.DeleteOptions{}); err != nil {
		return err
	}
	name := engaged(late.Spec.Cluster)
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		_, err := mgr.GetCluster(ctx, name)
		return err != nil, nil
	})
}

// initialize runs a controller for the workspaces of a type while these are initialized. It creates
// a ConfigMap in each, and lets it be Ready.
func initialize(ctx context.Context, cfg *rest.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	at := kcpclient.SetCluster(rest.CopyConfig(cfg), provider)
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kcpcorev1alpha1.AddToScheme, tenancyv1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			return err
		}
	}
	clusters, err := initializingworkspaces.New(at, "shop", initializingworkspaces.Options{Scheme: s})
	if err != nil {
		return err
	}
	mgr, err := mcmanager.New(at, clusters, ctrl.Options{Scheme: s, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	if err := mcbuilder.ControllerManagedBy(mgr).Named("shops").For(&kcpcorev1alpha1.LogicalCluster{}).Complete(mcreconcile.Func(
		func(ctx context.Context, req mcreconcile.Request) (ctrl.Result, error) {
			cluster, err := mgr.GetCluster(ctx, req.ClusterName)
			if err != nil {
				return ctrl.Result{}, err
			}
			return ctrl.Result{}, open(ctx, cluster.GetClient(), req)
		})); err != nil {
		return err
	}
	wait.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Println("the manager:", err)
		}
	})
	typed, err := kcpcluster.NewForConfig(cfg)
	if err != nil {
		return err
	}
	in := typed.Cluster(provider).TenancyV1alpha1().Workspaces()
	if _, err := in.Create(ctx, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "branch"}, Spec: tenancyv1alpha1.WorkspaceSpec{
		Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "shop", Path: provider.String()},
	}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := eventually(ctx, func(ctx context.Context) (bool, error) {
		ws, err := in.Get(ctx, "branch", metav1.GetOptions{})
		return err == nil && ws.Status.Phase == kcpcorev1alpha1.LogicalClusterPhaseReady, err
	}); err != nil {
		return err
	}
	c, err := dynamic.NewForConfig(kcpclient.SetCluster(rest.CopyConfig(cfg), provider.Join("branch")))
	if err != nil {
		return err
	}
	_, err = c.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("default").Get(ctx, "opened", metav1.GetOptions{})
	return err
}

// open creates the ConfigMap of a workspace, and removes the initializer.
func open(ctx context.Context, c client.Client, req mcreconcile.Request) error {
	lc := &kcpcorev1alpha1.LogicalCluster{}
	if err := c.Get(ctx, req.NamespacedName, lc); err != nil {
		return client.IgnoreNotFound(err)
	}
	var own kcpcorev1alpha1.LogicalClusterInitializer
	for _, i := range lc.Status.Initializers {
		if strings.HasSuffix(string(i), ":shop") {
			own = i
		}
	}
	if own == "" {
		return nil
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "opened"}}
	if err := c.Create(ctx, cm); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	before := lc.DeepCopy()
	lc.Status.Initializers = initialization.EnsureInitializerAbsent(own, lc.Status.Initializers)
	return c.Status().Patch(ctx, lc, client.MergeFrom(before))
}

// use creates a Widget in a workspace and waits for what the controller makes of it.
func use(ctx context.Context, cfg *rest.Config, name string) error {
	c, err := dynamic.NewForConfig(kcpclient.SetCluster(rest.CopyConfig(cfg), root.Join(name)))
	if err != nil {
		return err
	}
	in := c.Resource(widgets).Namespace("default")
	w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "one"}}}
	if _, err := in.Create(ctx, w, metav1.CreateOptions{}); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		w, err := in.Get(ctx, "one", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		phase, _, _ := unstructured.NestedString(w.Object, "status", "phase")
		_, err = c.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("default").Get(ctx, "of-one", metav1.GetOptions{})
		return phase == "Ready" && err == nil, nil
	})
}

func manager(cfg *rest.Config) (mcmanager.Manager, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apisv1alpha1.AddToScheme, apisv1alpha2.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	tenants, err := apiexport.New(cfg, "widgets", apiexport.Options{Scheme: s})
	if err != nil {
		return nil, err
	}
	mgr, err := mcmanager.New(cfg, tenants, ctrl.Options{Scheme: s, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(widgets.GroupVersion().WithKind("Widget"))
	return mgr, mcbuilder.ControllerManagedBy(mgr).Named("widgets").For(widget).Owns(&corev1.ConfigMap{}).Complete(mcreconcile.Func(
		func(ctx context.Context, req mcreconcile.Request) (ctrl.Result, error) {
			names.Store(req.ClusterName, nil)
			cluster, err := mgr.GetCluster(ctx, req.ClusterName)
			if err != nil {
				return ctrl.Result{}, err
			}
			return ctrl.Result{}, reconcile(ctx, cluster.GetClient(), req)
		}))
}

func reconcile(ctx context.Context, c client.Client, req mcreconcile.Request) error {
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(widgets.GroupVersion().WithKind("Widget"))
	if err := c.Get(ctx, req.NamespacedName, widget); err != nil {
		return client.IgnoreNotFound(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: "of-" + req.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, c, cm, func() error {
		cm.Data = map[string]string{"widget": req.Name}
		return controllerutil.SetControllerReference(widget, cm, c.Scheme())
	}); err != nil {
		return err
	}
	if err := unstructured.SetNestedField(widget.Object, "Ready", "status", "phase"); err != nil {
		return err
	}
	return c.Status().Update(ctx, widget)
}
