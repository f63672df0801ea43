package native

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/crds"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/tenancy"
)

// Given holds the custom resources that the server defines in every cluster. The kinds of
// built-in exports are in clusters that bind these; requests to all clusters have them, too.
type Given struct {
	workspace *catalog.Shape // of all clusters but the server's own
	root      *catalog.Shape // of the root workspace
	all       *catalog.Shape // of requests to all clusters
	system    *catalog.Shape // of the server's own clusters
}

// NewGiven returns the shapes of the server's own kinds and of further kinds. The kinds of
// built-in exports are stored under the identities of these, by name. If bound is set, clusters
// get them with bindings; else all workspaces have them, and root has all.
func NewGiven(identities map[string]string, bound bool, further []*apiextensionsv1.CustomResourceDefinition) (*Given, error) {
	var every, workspaces, all []catalog.Served
	for _, name := range crds.Names() {
		text, err := crds.YAML(name)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("definition of %s: %w", name, err)
		}
		if len(crd.Spec.Versions) > 1 {
			catalog.InProcess(crd)
		}
		content, err := catalog.NewContent(crd)
		if err != nil {
			return nil, err
		}
		if of, exported := tenancy.BuiltInOf(name); exported && of.Given {
			every = append(every, catalog.Served{Content: content, Identity: identities[of.Name]})
		} else if exported {
			all = append(all, catalog.Served{Content: content, Identity: identities[of.Name]})
			if of.Everywhere && !bound {
				workspaces = append(workspaces, all[len(all)-1])
			}
		} else {
			every = append(every, catalog.Served{Content: content})
		}
	}
	for _, crd := range further {
		content, err := catalog.NewContent(crd)
		if err != nil {
			return nil, fmt.Errorf("definition of %s: %w", crd.Name, err)
		}
		workspaces = append(workspaces, catalog.Served{Content: content})
	}
	workspaces = append(workspaces, every...)
	g := &Given{workspace: catalog.NewShape(workspaces...), all: catalog.NewShape(slices.Concat(workspaces, all)...), system: catalog.NewShape(every...)}
	if g.root = g.workspace; !bound {
		g.root = g.all
	}
	return g, nil
}

// Of returns the shape of the kinds that the server defines in cluster c.
func (g *Given) Of(c cluster.Name) *catalog.Shape {
	switch {
	case c == "" || c.System():
		return g.system
	case c == cluster.All:
		return g.all
	case c == cluster.Root:
		return g.root
	default:
		return g.workspace
	}
}
