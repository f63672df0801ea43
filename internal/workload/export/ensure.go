package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp"
	schemas "github.com/unforked/kcp/apis/apis/v1alpha1"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/apis/crds"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/pods"
	"github.com/unforked/kcp/internal/workload/profile"
)

// Root is the workspace of the export of SyncTargets and Locations.
const Root = "root"

// EnsureRoot creates the export of SyncTargets and Locations, which every user may bind.
func EnsureRoot(ctx context.Context, s *kcp.Server) error {
	cfg, err := s.Own(Root)
	if err != nil {
		return err
	}
	resources, err := ensureSchemas(ctx, cfg, Root, "synctargets.workload.kcp.io", "locations.scheduling.kcp.io", "resourceprofiles.workload.kcp.io")
	if err != nil {
		return err
	}
	if err := ensureExport(ctx, cfg, Root, workload.Export, offer{resources: resources}); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: "system:kcp:apiexport:workload.kcp.io:bind"}
	roles, err := client.New[*rbacv1.ClusterRole, *rbacv1.ClusterRoleList](cfg, Root, rbacv1.SchemeGroupVersion.WithResource("clusterroles"))
	if err != nil {
		return err
	}
	bindings, err := client.New[*rbacv1.ClusterRoleBinding, *rbacv1.ClusterRoleBindingList](cfg, Root, rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"))
	if err != nil {
		return err
	}
	_, err = roles.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"bind"}, APIGroups: []string{apis.GroupVersion.Group}, Resources: []string{"apiexports"}, ResourceNames: []string{workload.Export}}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = bindings.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// EnsureKubernetes creates the export of the kinds that run on physical clusters, in a compute workspace.
func EnsureKubernetes(ctx context.Context, s *kcp.Server, compute kcp.ClusterName) error {
	home, err := s.Own(string(compute))
	if err != nil {
		return err
	}
	resources, err := ensureSchemas(ctx, home, string(compute), "placements.scheduling.kcp.io", "placementreviews.scheduling.kcp.io", "assignments.workload.kcp.io", "targetstatuses.workload.kcp.io")
	if err != nil {
		return fmt.Errorf("export %s: %w", workload.KubernetesExport, err)
	}
	for _, p := range profile.Shipped() {
		resources = append(resources, native(p.GroupVersionResource))
	}
	resources = append(resources, native(pods.Resource()), native(pods.MetricsResource()))
	if err := ensureExport(ctx, home, string(compute), workload.KubernetesExport, offer{resources, claims()}); err != nil {
		return fmt.Errorf("export %s: %w", workload.KubernetesExport, err)
	}
	return nil
}

// claims are the permission claims of the export: what workloads refer to is read only where the
// owner of the workspace accepts that.
func claims() (all []apis.PermissionClaim) {
	for _, p := range profile.Dependencies() {
		all = append(all, apis.PermissionClaim{Group: p.Group, Resource: p.Resource, Verbs: []string{"get", "list", "watch"}})
	}
	return all
}

// ensureSchemas creates the schemas of the given definitions, and returns their resources.
func ensureSchemas(ctx context.Context, cfg *rest.Config, at string, definitions ...string) (resources []apis.ResourceSchema, err error) {
	all, err := client.New[*schemas.APIResourceSchema, *schemas.APIResourceSchemaList](cfg, at, schemas.GroupVersion.WithResource("apiresourceschemas"))
	if err != nil {
		return nil, err
	}
	for _, d := range definitions {
		s, err := schemaOf(d)
		if err != nil {
			return nil, err
		}
		if _, err := all.Get(ctx, s.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			_, err = all.Create(ctx, s, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return nil, err
			}
		} else if err != nil {
			return nil, err
		}
		resources = append(resources, apis.ResourceSchema{Group: s.Spec.Group, Name: s.Spec.Names.Plural, Schema: s.Name, Storage: apis.ResourceStorage{CRD: &apis.CRDStorage{}}})
	}
	return resources, nil
}

// native returns a kind of Kubernetes as a resource of an export.
func native(r schema.GroupVersionResource) apis.ResourceSchema {
	return apis.ResourceSchema{Group: r.Group, Name: r.Resource, Storage: apis.ResourceStorage{Native: &apis.NativeStorage{}}}
}

// An offer is what an export of the server has at least.
type offer struct {
	resources []apis.ResourceSchema
	claims    []apis.PermissionClaim
}

// ensureExport creates an export, or adds what it lacks. Its other resources and claims stay.
func ensureExport(ctx context.Context, cfg *rest.Config, at, name string, o offer) error {
	exports, err := client.New[*apis.APIExport, *apis.APIExportList](cfg, at, apis.GroupVersion.WithResource("apiexports"))
	if err != nil {
		return err
	}
	have, err := exports.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		made := &apis.APIExport{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apis.APIExportSpec{Resources: o.resources, PermissionClaims: o.claims}}
		if _, err = exports.Create(ctx, made, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return nil // another server was first, with the same content
		}
		return err
	}
	if err != nil {
		return err
	}
	next := have.DeepCopy()
	for _, r := range o.resources {
		i := slices.IndexFunc(next.Spec.Resources, func(of apis.ResourceSchema) bool { return of.Group == r.Group && of.Name == r.Name })
		if i < 0 {
			next.Spec.Resources = append(next.Spec.Resources, r)
		} else if r.Storage.Native == nil { // or else the export may have a schema of its own
			next.Spec.Resources[i].Schema = r.Schema
		}
	}
	for _, c := range o.claims {
		if !slices.ContainsFunc(next.Spec.PermissionClaims, func(of apis.PermissionClaim) bool {
			return of.Group == c.Group && of.Resource == c.Resource && of.IdentityHash == ""
		}) {
			next.Spec.PermissionClaims = append(next.Spec.PermissionClaims, c)
		}
	}
	if slices.Equal(schemaNames(have), schemaNames(next)) && len(have.Spec.PermissionClaims) == len(next.Spec.PermissionClaims) {
		return nil
	}
	_, err = exports.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

func schemaNames(e *apis.APIExport) (names []string) {
	for _, r := range e.Spec.Resources {
		names = append(names, r.Schema)
	}
	return names
}

// schemaOf returns the schema of a definition of this program. Another content has another name.
func schemaOf(definition string) (*schemas.APIResourceSchema, error) {
	text, err := crds.YAML(definition)
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	s, err := schemas.FromCustomResourceDefinition(crd, "v"+hex.EncodeToString(sum[:5]))
	if err == nil && s == nil {
		return nil, errors.New("no schema")
	}
	return s, err
}
