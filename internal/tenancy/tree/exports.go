package tree

import (
	"encoding/json"
	"slices"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A DefaultExport is an entry in the default bindings of a type. Its path is set.
type DefaultExport struct {
	tenancyapi.APIExportReference
	// From are the clusters that the path led to when the authors of the entry were allowed to bind
	// the export. Any cluster is fine if it is empty.
	From []cluster.Name
}

// Allows reports whether the export may be that of a cluster.
func (d DefaultExport) Allows(c cluster.Name) bool {
	return len(d.From) == 0 || slices.Contains(d.From, c)
}

type defaultExport struct {
	DefaultExport
	maintained bool
}

// CheckedExports are the clusters of exports that the author of a WorkspaceType may bind, by the
// paths and names of the exports.
type CheckedExports map[string]cluster.Name

// CheckedExportsOf reads the annotation of a WorkspaceType.
func CheckedExportsOf(annotations map[string]string) CheckedExports {
	var c CheckedExports
	if json.Unmarshal([]byte(annotations[tenancyapi.CheckedExportsAnnotation]), &c) != nil {
		return nil
	}
	return c
}

// CheckedExport returns the key of an export in [CheckedExports].
func CheckedExport(ref tenancyapi.APIExportReference) string { return ref.Path + ":" + ref.Export }

// addDefaults adds the default bindings of one of the types of a template.
func (t *Template) addDefaults(of Type, path cluster.Path) {
	maintained := of.Spec.DefaultAPIBindingLifecycle != nil && *of.Spec.DefaultAPIBindingLifecycle == tenancyapi.Maintain
	for _, ref := range of.Spec.DefaultAPIBindings {
		d := DefaultExport{APIExportReference: ref}
		if from, ok := of.checked[CheckedExport(ref)]; ok {
			d.From = []cluster.Name{from}
		}
		if d.Path == "" {
			d.Path, d.From = string(path), []cluster.Name{of.Cluster}
		}
		i := slices.IndexFunc(t.defaults, func(other defaultExport) bool { return other.APIExportReference == d.APIExportReference })
		if i < 0 {
			t.defaults = append(t.defaults, defaultExport{d, maintained})
			continue
		}
		same := &t.defaults[i]
		same.maintained = same.maintained || maintained
		if same.From = append(same.From, d.From...); len(d.From) == 0 {
			same.From = nil // any author's right is enough
		}
	}
}

// DefaultExports returns the default bindings of a template, or only those that are maintained.
func (t *Template) DefaultExports(maintained bool) []DefaultExport {
	var all []DefaultExport
	for _, d := range t.defaults {
		if d.maintained || !maintained {
			all = append(all, d.DefaultExport)
		}
	}
	return all
}

// Maintained returns the clusters whose default bindings a change of a type concerns. It takes
// time proportional to their number, and looks once at the names in all types.
func (t *Types) Maintained(c cluster.Name, name string) []cluster.Name {
	of, ok := t.Get(c, name)
	if !ok || len(of.Spec.DefaultAPIBindings) == 0 || of.Spec.DefaultAPIBindingLifecycle == nil || *of.Spec.DefaultAPIBindingLifecycle != tenancyapi.Maintain {
		return nil
	}
	all := t.tree.clusters.ClustersBy(t.Name(of))
	for _, k := range t.extending(name) {
		ref := tenancyapi.WorkspaceTypeReference{Name: k.Name, Path: string(t.tree.PathOf(k.Cluster))}
		if tmpl, err := t.template(cluster.Root, ref); err == nil && tmpl.Type != of && tmpl.Is(c, name) {
			all = append(all, t.tree.clusters.ClustersBy(tmpl.String())...)
		}
	}
	return all
}

// extending returns the types that may extend a type of a name, directly or through others: it does not
// look at paths.
func (t *Types) extending(name string) []keys.Key {
	by := map[string][]keys.Key{} // by the name of what they extend
	for _, k := range t.table.Keys() {
		if of, ok := t.Get(k.Cluster, k.Name); ok && of.Spec.Extend != nil {
			for _, ref := range of.Spec.Extend.With {
				by[ref.Name] = append(by[ref.Name], k)
			}
		}
	}
	var all []keys.Key
	seen := map[keys.Key]bool{}
	for names := []string{name}; len(names) > 0; names = names[1:] {
		for _, k := range by[names[0]] {
			if !seen[k] {
				seen[k] = true
				all, names = append(all, k), append(names, k.Name)
			}
		}
	}
	return all
}
