package v1alpha1

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/apis/apis/v1alpha2"
)

// ToV1alpha2 returns e in v1alpha2. What v1alpha2 cannot express is in annotations, so that
// [APIExportFromV1alpha2] returns e again.
func (e *APIExport) ToV1alpha2() *v1alpha2.APIExport {
	out := &v1alpha2.APIExport{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha2.GroupVersion.String(), Kind: "APIExport"},
		ObjectMeta: withOwnAnnotations(e.ObjectMeta),
		Spec: v1alpha2.APIExportSpec{
			Identity:                e.Spec.Identity,
			MaximalPermissionPolicy: e.Spec.MaximalPermissionPolicy,
		},
		Status: e.Status,
	}
	out.Spec.Resources = resources().toNew(e.Spec.LatestResourceSchemas, &out.ObjectMeta)
	out.Spec.PermissionClaims = exportClaims().toNew(e.Spec.PermissionClaims, &out.ObjectMeta)
	return out.DeepCopy() // shares nothing with e
}

// APIExportFromV1alpha2 returns e in v1alpha1. What v1alpha1 cannot express is in
// annotations, so that [APIExport.ToV1alpha2] returns e again. A client of v1alpha1 may
// change the result without knowing of the annotations.
func APIExportFromV1alpha2(e *v1alpha2.APIExport) *APIExport {
	out := &APIExport{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "APIExport"},
		ObjectMeta: withOwnAnnotations(e.ObjectMeta),
		Spec: APIExportSpec{
			Identity:                e.Spec.Identity,
			MaximalPermissionPolicy: e.Spec.MaximalPermissionPolicy,
		},
		Status: e.Status,
	}
	out.Spec.LatestResourceSchemas = resources().toOld(e.Spec.Resources, &out.ObjectMeta)
	out.Spec.PermissionClaims = exportClaims().toOld(e.Spec.PermissionClaims, &out.ObjectMeta)
	return out.DeepCopy()
}

// ToV1alpha2 returns b in v1alpha2. What v1alpha2 cannot express is in annotations, so that
// [APIBindingFromV1alpha2] returns b again.
func (b *APIBinding) ToV1alpha2() *v1alpha2.APIBinding {
	out := &v1alpha2.APIBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha2.GroupVersion.String(), Kind: "APIBinding"},
		ObjectMeta: withOwnAnnotations(b.ObjectMeta),
		Spec:       v1alpha2.APIBindingSpec{Reference: b.Spec.Reference},
		Status: v1alpha2.APIBindingStatus{
			APIExportClusterName: b.Status.APIExportClusterName,
			BoundResources:       b.Status.BoundResources,
			Phase:                b.Status.Phase,
			Conditions:           b.Status.Conditions,
		},
	}
	out.Spec.PermissionClaims = acceptableClaims().toNew(b.Spec.PermissionClaims, &out.ObjectMeta)
	out.Status.ExportPermissionClaims = statusExportClaims().toNew(b.Status.ExportPermissionClaims, &out.ObjectMeta)
	out.Status.AppliedPermissionClaims = statusAppliedClaims().toNew(b.Status.AppliedPermissionClaims, &out.ObjectMeta)
	return out.DeepCopy()
}

// APIBindingFromV1alpha2 returns b in v1alpha1. What v1alpha1 cannot express is in
// annotations, so that [APIBinding.ToV1alpha2] returns b again. A client of v1alpha1 may
// change the result without knowing of the annotations.
func APIBindingFromV1alpha2(b *v1alpha2.APIBinding) *APIBinding {
	out := &APIBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "APIBinding"},
		ObjectMeta: withOwnAnnotations(b.ObjectMeta),
		Spec:       APIBindingSpec{Reference: b.Spec.Reference},
		Status: APIBindingStatus{
			APIExportClusterName: b.Status.APIExportClusterName,
			BoundResources:       b.Status.BoundResources,
			Phase:                b.Status.Phase,
			Conditions:           b.Status.Conditions,
		},
	}
	out.Spec.PermissionClaims = acceptableClaims().toOld(b.Spec.PermissionClaims, &out.ObjectMeta)
	out.Status.ExportPermissionClaims = statusExportClaims().toOld(b.Status.ExportPermissionClaims, &out.ObjectMeta)
	out.Status.AppliedPermissionClaims = statusAppliedClaims().toOld(b.Status.AppliedPermissionClaims, &out.ObjectMeta)
	return out.DeepCopy()
}

func withOwnAnnotations(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.Annotations = maps.Clone(m.Annotations)
	return m
}

// resources converts the exported resources. v1alpha1 hides those that are not stored like
// custom resources, and those whose schema has the name of another resource.
func resources() list[string, v1alpha2.ResourceSchema] {
	stored := v1alpha2.ResourceSchema{Storage: v1alpha2.ResourceStorage{CRD: &v1alpha2.CRDStorage{}}}
	upgrade := func(schema string, r *v1alpha2.ResourceSchema) {
		name := splitSchemaName(schema)
		r.Name, r.Group, r.Schema = name.Resource, name.Group, schema
	}
	return list[string, v1alpha2.ResourceSchema]{
		annotation: v1alpha2.ResourceSchemasAnnotation,
		defaultNew: stored,
		key: func(r v1alpha2.ResourceSchema) key {
			return key{GroupResource: schema.GroupResource{Group: r.Group, Resource: r.Name}}
		},
		upgrade: upgrade,
		downgrade: func(r v1alpha2.ResourceSchema, schema *string) bool {
			*schema = r.Schema
			name := splitSchemaName(r.Schema)
			return r.Storage.CRD != nil && r.Storage.Virtual == nil && r.Storage.Native == nil && r.Name == name.Resource && r.Group == name.Group
		},
	}
}

// exportClaims converts the claims of an APIExport. v1alpha1 hides those on some verbs only.
// The identity is no part of the key: an APIExport claims a resource once.
func exportClaims() list[PermissionClaim, v1alpha2.PermissionClaim] {
	return list[PermissionClaim, v1alpha2.PermissionClaim]{
		annotation:    v1alpha2.PermissionClaimsAnnotation,
		oldAnnotation: v1alpha2.V1alpha1PermissionClaimsAnnotation,
		defaultOld:    PermissionClaim{All: true},
		defaultNew:    v1alpha2.PermissionClaim{Verbs: []string{"*"}},
		key: func(c v1alpha2.PermissionClaim) key {
			return key{GroupResource: schema.GroupResource{Group: c.Group, Resource: c.Resource}}
		},
		upgrade:   upgradeClaim,
		downgrade: downgradeClaim,
	}
}

// statusExportClaims converts copies of the claims of an APIExport.
func statusExportClaims() list[PermissionClaim, v1alpha2.PermissionClaim] {
	l := exportClaims()
	l.annotation = v1alpha2.StatusExportPermissionClaimsAnnotation
	l.oldAnnotation = v1alpha2.V1alpha1StatusExportPermissionClaimsAnnotation
	return l
}

// statusAppliedClaims converts claims that are in effect. v1alpha1 hides those on some verbs
// or objects only.
func statusAppliedClaims() list[PermissionClaim, v1alpha2.ScopedPermissionClaim] {
	return list[PermissionClaim, v1alpha2.ScopedPermissionClaim]{
		annotation:    v1alpha2.StatusAppliedPermissionClaimsAnnotation,
		oldAnnotation: v1alpha2.V1alpha1StatusAppliedPermissionClaimsAnnotation,
		defaultOld:    PermissionClaim{All: true},
		defaultNew:    everything(),
		key:           func(c v1alpha2.ScopedPermissionClaim) key { return scopedKey(c) },
		upgrade:       func(o PermissionClaim, n *v1alpha2.ScopedPermissionClaim) { upgradeClaim(o, &n.PermissionClaim) },
		downgrade:     downgradeScoped,
	}
}

// acceptableClaims converts the answers to claims. v1alpha1 hides those on some verbs or
// objects only.
func acceptableClaims() list[AcceptablePermissionClaim, v1alpha2.AcceptablePermissionClaim] {
	return list[AcceptablePermissionClaim, v1alpha2.AcceptablePermissionClaim]{
		annotation:    v1alpha2.AcceptablePermissionClaimsAnnotation,
		oldAnnotation: v1alpha2.V1alpha1PermissionClaimsAnnotation,
		defaultOld:    AcceptablePermissionClaim{PermissionClaim: PermissionClaim{All: true}},
		defaultNew:    v1alpha2.AcceptablePermissionClaim{ScopedPermissionClaim: everything()},
		key:           func(c v1alpha2.AcceptablePermissionClaim) key { return scopedKey(c.ScopedPermissionClaim) },
		upgrade: func(o AcceptablePermissionClaim, n *v1alpha2.AcceptablePermissionClaim) {
			upgradeClaim(o.PermissionClaim, &n.PermissionClaim)
			n.State = o.State
		},
		downgrade: func(n v1alpha2.AcceptablePermissionClaim, o *AcceptablePermissionClaim) bool {
			o.State = n.State
			return downgradeScoped(n.ScopedPermissionClaim, &o.PermissionClaim)
		},
	}
}

// everything returns a claim on all verbs and all objects.
func everything() v1alpha2.ScopedPermissionClaim {
	return v1alpha2.ScopedPermissionClaim{
		PermissionClaim: v1alpha2.PermissionClaim{Verbs: []string{"*"}},
		Selector:        v1alpha2.PermissionClaimSelector{MatchAll: true},
	}
}

func scopedKey(c v1alpha2.ScopedPermissionClaim) key {
	return key{schema.GroupResource{Group: c.Group, Resource: c.Resource}, c.IdentityHash}
}

func upgradeClaim(o PermissionClaim, n *v1alpha2.PermissionClaim) {
	n.Group, n.Resource, n.IdentityHash = o.Group, o.Resource, o.IdentityHash
}

func downgradeClaim(n v1alpha2.PermissionClaim, o *PermissionClaim) bool {
	o.Group, o.Resource, o.IdentityHash = n.Group, n.Resource, n.IdentityHash
	return slices.Contains(n.Verbs, "*")
}

func downgradeScoped(n v1alpha2.ScopedPermissionClaim, o *PermissionClaim) bool {
	s := n.Selector
	return downgradeClaim(n.PermissionClaim, o) && s.MatchAll && len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}
