package main

import (
	"context"
	"fmt"

	kcpcache "github.com/kcp-dev/apimachinery/v2/pkg/cache"
	kcpinformers "github.com/kcp-dev/apimachinery/v2/third_party/informers"
	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/apis/v1alpha2/permissionclaims"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	applyv1alpha1 "github.com/kcp-dev/sdk/client/applyconfiguration/tenancy/v1alpha1"
	kcpclient "github.com/kcp-dev/sdk/client/clientset/versioned/cluster"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

var (
	root     = core.RootCluster.Path()
	provider = root.Join("provider")
	tenants  = []string{"ann", "ben"}
)

// workspaces creates, applies, lists and watches workspaces.
func workspaces(ctx context.Context, cfg *rest.Config) error {
	client, err := kcpclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	in := client.Cluster(root).TenancyV1alpha1().Workspaces()
	for _, name := range append([]string{"provider"}, tenants...) {
		created, err := in.Create(ctx, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if created.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
			return fmt.Errorf("workspace %s is %s", name, created.Status.Phase)
		}
	}
	applied, err := in.Apply(ctx, applyv1alpha1.Workspace("ann").WithLabels(map[string]string{"team": "a"}), metav1.ApplyOptions{FieldManager: "existing"})
	if err != nil || applied.Labels["team"] != "a" || applied.Spec.Cluster == "" {
		return fmt.Errorf("applied %v: %w", applied, err)
	}
	some, err := in.List(ctx, metav1.ListOptions{LabelSelector: "team=a"})
	if err != nil || len(some.Items) != 1 {
		return fmt.Errorf("selected %v: %w", some, err)
	}
	all, err := client.TenancyV1alpha1().Workspaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, ws := range all.Items {
		if logicalcluster.From(&ws) == "" {
			return fmt.Errorf("workspace %s has no cluster", ws.Name)
		}
	}
	one, err := client.Cluster(root.Join("ann")).CoreV1alpha1().LogicalClusters().Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	if err != nil || logicalcluster.From(one).String() != applied.Spec.Cluster {
		return fmt.Errorf("logical cluster %v: %w", one, err)
	}
	if _, err := client.Cluster(root).TenancyV1alpha1().WorkspaceTypes().Get(ctx, "universal", metav1.GetOptions{}); err != nil {
		return err
	}
	_, err = client.CoreV1alpha1().Shards().List(ctx, metav1.ListOptions{})
	return err
}

// informers runs a cluster-aware informer over all clusters, with its index.
func informers(ctx context.Context, cfg *rest.Config) error {
	client, err := kcpclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := kcpinformers.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.TenancyV1alpha1().Workspaces().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.TenancyV1alpha1().Workspaces().Watch(ctx, o)
		},
	}, &tenancyv1alpha1.Workspace{}, 0, cache.Indexers{kcpcache.ClusterIndexName: kcpcache.ClusterIndexFunc})
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("no sync")
	}
	has := func(path logicalcluster.Path, name string) error {
		lc, err := client.Cluster(path).CoreV1alpha1().LogicalClusters().Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return eventually(ctx, func(context.Context) (bool, error) {
			_, exists, err := informer.GetIndexer().GetByKey(kcpcache.ToClusterAwareKey(logicalcluster.From(lc).String(), "", name))
			return exists, err
		})
	}
	if err := has(root, "ben"); err != nil {
		return err
	}
	if _, err := client.Cluster(root.Join("ben")).TenancyV1alpha1().Workspaces().Create(ctx,
		&tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "inner"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return has(root.Join("ben"), "inner")
}

// definition is the kind that is exported.
func definition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
			}},
		},
	}
}

// export makes an APIResourceSchema as "kubectl kcp crd snapshot" does, and an APIExport with a
// permission claim.
func export(ctx context.Context, cfg *rest.Config) error {
	client, err := kcpclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	in := client.Cluster(provider)
	schema, err := apisv1alpha1.CRDToAPIResourceSchema(definition(), "v1")
	if err != nil {
		return err
	}
	if _, err := in.ApisV1alpha1().APIResourceSchemas().Create(ctx, schema, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := in.ApisV1alpha2().APIExports().Create(ctx, &apisv1alpha2.APIExport{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets"},
		Spec: apisv1alpha2.APIExportSpec{
			Resources: []apisv1alpha2.ResourceSchema{{Group: "example.com", Name: "widgets", Schema: schema.Name,
				Storage: apisv1alpha2.ResourceSchemaStorage{CRD: &apisv1alpha2.ResourceSchemaStorageCRD{}}}},
			PermissionClaims: []apisv1alpha2.PermissionClaim{{
				GroupResource: apisv1alpha2.GroupResource{Resource: "configmaps"}, Verbs: []string{"*"},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := eventually(ctx, func(ctx context.Context) (bool, error) {
		e, err := in.ApisV1alpha2().APIExports().Get(ctx, "widgets", metav1.GetOptions{})
		return err == nil && e.Status.IdentityHash != "" && conditions.IsTrue(e, apisv1alpha2.APIExportIdentityValid), err
	}); err != nil {
		return err
	}
	_, err = in.ApisV1alpha1().APIExportEndpointSlices().Get(ctx, "widgets", metav1.GetOptions{})
	return err
}

// older reads, changes and writes back what the newer version of the API has made.
func older(ctx context.Context, cfg *rest.Config) error {
	client, err := kcpclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	exports := client.Cluster(provider).ApisV1alpha1().APIExports()
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		e, err := exports.Get(ctx, "widgets", metav1.GetOptions{})
		if err != nil {
			return err
		}
		e.Spec.MaximalPermissionPolicy = &apisv1alpha1.MaximalPermissionPolicy{Local: &apisv1alpha1.LocalAPIExportPolicy{}}
		e, err = exports.Update(ctx, e, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		e.Spec.MaximalPermissionPolicy = nil
		_, err = exports.Update(ctx, e, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	e, err := client.Cluster(provider).ApisV1alpha2().APIExports().Get(ctx, "widgets", metav1.GetOptions{})
	if err != nil || len(e.Spec.Resources) != 1 || len(e.Spec.PermissionClaims) != 1 {
		return fmt.Errorf("export %v: %w", e, err)
	}
	return nil
}

// bind binds the export in all tenants and accepts its claim.
func bind(ctx context.Context, cfg *rest.Config) error {
	client, err := kcpclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for _, name := range tenants {
		bindings := client.Cluster(root.Join(name)).ApisV1alpha2().APIBindings()
		if _, err := bindings.Create(ctx, &apisv1alpha2.APIBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "widgets"},
			Spec: apisv1alpha2.APIBindingSpec{
				Reference: apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportBindingReference{Path: provider.String(), Name: "widgets"}},
				PermissionClaims: []apisv1alpha2.AcceptablePermissionClaim{{
					State: apisv1alpha2.ClaimAccepted,
					ScopedPermissionClaim: apisv1alpha2.ScopedPermissionClaim{
						PermissionClaim: apisv1alpha2.PermissionClaim{GroupResource: apisv1alpha2.GroupResource{Resource: "configmaps"}, Verbs: []string{"*"}},
						Selector:        apisv1alpha2.PermissionClaimSelector{MatchAll: true},
					},
				}},
			},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := eventually(ctx, func(ctx context.Context) (bool, error) {
			b, err := bindings.Get(ctx, "widgets", metav1.GetOptions{})
			return err == nil && b.Status.Phase == apisv1alpha2.APIBindingPhaseBound && len(b.Status.BoundResources) == 1 &&
				conditions.IsTrue(b, apisv1alpha2.InitialBindingCompleted) && conditions.IsTrue(b, apisv1alpha2.PermissionClaimsApplied), err
		}); err != nil {
			return err
		}
	}
	all, err := client.ApisV1alpha2().APIBindings().List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) < len(tenants) {
		return fmt.Errorf("%d bindings in all clusters: %w", len(all.Items), err)
	}
	_, err = client.Cluster(root.Join("none")).ApisV1alpha2().APIBindings().Create(ctx, &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets"}}, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return fmt.Errorf("a binding in a missing workspace: %w", err)
	}
	return nil
}

// labels finds objects in the view of the export by the labels that the library of the existing kcp
// computes for its claim and for its APIBindings.
func labels(ctx context.Context, cfg *rest.Config) error {
	client, err := kcpclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	e, err := client.Cluster(provider).ApisV1alpha2().APIExports().Get(ctx, "widgets", metav1.GetOptions{})
	if err != nil {
		return err
	}
	owner := logicalcluster.From(e)
	view := rest.CopyConfig(cfg)
	view.Host += "/services/apiexport/" + owner.String() + "/widgets/clusters/*"
	in, err := dynamic.NewForConfig(view)
	if err != nil {
		return err
	}
	claimed, claim, err := permissionclaims.ToLabelKeyAndValue(owner, "widgets", e.Spec.PermissionClaims[0])
	if err != nil {
		return err
	}
	own, binding := permissionclaims.ToReflexiveAPIBindingLabelKeyAndValue(owner, "widgets")
	for selector, r := range map[string]schema.GroupVersionResource{
		claimed + "=" + claim: {Version: "v1", Resource: "configmaps"},
		own + "=" + binding:   apisv1alpha2.SchemeGroupVersion.WithResource("apibindings"),
	} {
		found, err := in.Resource(r).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil || len(found.Items) < len(tenants) {
			return fmt.Errorf("of %s, %d have the label %s: %w", r.Resource, len(found.Items), selector, err)
		}
	}
	return nil
}

// others uses the remaining kinds of the clientset.
func others(ctx context.Context, cfg *rest.Config) error {
	client, err := kcpclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	in := client.Cluster(provider)
	if _, err := in.TopologyV1alpha1().Partitions().Create(ctx, &topologyv1alpha1.Partition{ObjectMeta: metav1.ObjectMeta{Name: "all"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	slices := in.ApisV1alpha1().APIExportEndpointSlices()
	if _, err := slices.Create(ctx, &apisv1alpha1.APIExportEndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "part"},
		Spec:       apisv1alpha1.APIExportEndpointSliceSpec{APIExport: apisv1alpha1.ExportBindingReference{Path: provider.String(), Name: "widgets"}, Partition: "all"},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := eventually(ctx, func(ctx context.Context) (bool, error) {
		s, err := slices.Get(ctx, "part", metav1.GetOptions{})
		return err == nil && len(s.Status.APIExportEndpoints) == 1, err
	}); err != nil {
		return err
	}
	types := in.TenancyV1alpha1().WorkspaceTypes()
	if _, err := types.Create(ctx, &tenancyv1alpha1.WorkspaceType{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec: tenancyv1alpha1.WorkspaceTypeSpec{
			Initializer:        true,
			Extend:             tenancyv1alpha1.WorkspaceTypeExtension{With: []tenancyv1alpha1.WorkspaceTypeReference{{Name: "universal", Path: "root"}}},
			DefaultAPIBindings: []tenancyv1alpha1.APIExportReference{{Path: provider.String(), Export: "widgets"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		t, err := types.Get(ctx, "shop", metav1.GetOptions{})
		return err == nil && len(t.Status.VirtualWorkspaces) == 2, err
	})
}
