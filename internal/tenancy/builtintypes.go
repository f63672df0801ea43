package tenancy

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// bootstrapTypes creates the types that every server has, in the root workspace, and lets
// all users use those that can have a parent. It runs once, so later changes of these types
// stay.
func (w *Workspaces) bootstrapTypes(ctx context.Context) error {
	if _, done := w.Types.Get(cluster.Root, tree.Universal); done {
		return nil // it is written last
	}
	b := w.birth(cluster.Root, metav1.Now())
	types := shippedTypes()
	var usable []store.Write
	for _, t := range types {
		if t.Spec.LimitAllowedParents == nil || !tree.SelectsNone(t.Spec.LimitAllowedParents) {
			usable = append(usable, b.use(t.Name)...)
		}
	}
	if err := ensure(ctx, w.Store, usable...); err != nil {
		return err
	}
	for _, t := range types {
		meta := b.meta("", t.Name)
		meta.Generation = 1
		meta.Annotations = map[string]string{core.PathAnnotation: string(cluster.Root)}
		t.ObjectMeta = meta
		w.typeStatus(&t.Status, tree.Type{Cluster: cluster.Root, Name: t.Name})
		if err := w.commitType(ctx, cluster.Root, t, 0); err != nil && !storage.IsExist(err) {
			return err
		}
	}
	return nil
}

// use returns the writes that let all authenticated users use a type.
func (b birth) use(name string) []store.Write {
	rule := rbacv1.PolicyRule{Verbs: []string{"use"}, APIGroups: []string{tenancyapi.GroupVersion.Group}, Resources: []string{"workspacetypes"}, ResourceNames: []string{name}}
	return b.allow("system:kcp:"+name+"-workspacetype-use", user.AllAuthenticated, rule)
}

// allow returns the writes of a role and its binding that give a group some rights.
func (b birth) allow(name, group string, rules ...rbacv1.PolicyRule) []store.Write {
	meta := b.meta("", name)
	return []store.Write{
		b.write(native(rbacv1.GroupName, "clusterroles"), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}),
		b.write(native(rbacv1.GroupName, "clusterrolebindings"), &rbacv1.ClusterRoleBinding{
			ObjectMeta: b.meta("", meta.Name),
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: group}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		}),
	}
}

// NeededTypes returns the names of the types in the root workspace that every server needs:
// those of the root workspace and of homes, and the one that all others extend.
func NeededTypes() []string { return []string{tree.Universal, "root", "home"} }

// shippedTypes returns the types that every server has, universal at the end.
func shippedTypes() []*tenancyapi.WorkspaceType {
	rooted := func(name string) tenancyapi.WorkspaceTypeReference {
		return tenancyapi.WorkspaceTypeReference{Name: name, Path: string(cluster.Root)}
	}
	only := func(names ...string) *tenancyapi.WorkspaceTypeSelector {
		s := &tenancyapi.WorkspaceTypeSelector{}
		for _, n := range names {
			s.Types = append(s.Types, rooted(n))
		}
		return s
	}
	noParent := &tenancyapi.WorkspaceTypeSelector{None: new(bool)}
	*noParent.None = true
	extending := func(name, child string, parents, children *tenancyapi.WorkspaceTypeSelector) *tenancyapi.WorkspaceType {
		t := &tenancyapi.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}}
		of := rooted(child)
		t.Spec = tenancyapi.WorkspaceTypeSpec{
			Extend:                    &tenancyapi.WorkspaceTypeExtension{With: []tenancyapi.WorkspaceTypeReference{rooted(tree.Universal)}},
			DefaultChildWorkspaceType: &of, LimitAllowedParents: parents, LimitAllowedChildren: children,
		}
		return t
	}
	universal := &tenancyapi.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: tree.Universal}}
	child := rooted(tree.Universal)
	universal.Spec.Initializer, universal.Spec.DefaultChildWorkspaceType, universal.Spec.DefaultAPIBindings = true, &child, everywhere()
	return []*tenancyapi.WorkspaceType{
		extending("root", "organization", noParent, nil),
		extending("home", tree.Universal, noParent, nil),
		extending("organization", tree.Universal, only("root"), only(tree.Universal)),
		extending("team", tree.Universal, only("organization", "team"), nil),
		universal,
	}
}
