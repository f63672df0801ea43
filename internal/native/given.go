package native

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/crds"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/tenancy"
)

// Given holds the custom resources that the server defines in every cluster. The kinds of
// built-in exports are in clusters that bind these; requests to all clusters have them, too.
type Given struct {
	workspace *serve.Shape // of all clusters but the server's own
	all       *serve.Shape // of requests to all clusters
	system    *serve.Shape // of the server's own clusters
}

// NewGiven returns the shapes of the server's own kinds and of further kinds. The kinds of
// built-in exports are stored under the identities of these, by name.
func NewGiven(identities map[string]string, further []*apiextensionsv1.CustomResourceDefinition) (*Given, error) {
	var every, workspaces, all []serve.Served
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
			serve.InProcess(crd)
		}
		content, err := serve.NewContent(crd)
		if err != nil {
			return nil, err
		}
		if of, exported := tenancy.BuiltInOf(name); exported {
			all = append(all, serve.Served{Content: content, Identity: identities[of.Name]})
		} else {
			every = append(every, serve.Served{Content: content})
		}
	}
	for _, crd := range further {
		content, err := serve.NewContent(crd)
		if err != nil {
			return nil, fmt.Errorf("definition of %s: %w", crd.Name, err)
		}
		workspaces = append(workspaces, serve.Served{Content: content})
	}
	workspaces = append(workspaces, every...)
	return &Given{serve.NewShape(workspaces...), serve.NewShape(slices.Concat(workspaces, all)...), serve.NewShape(every...)}, nil
}

// Of returns the shape of the kinds that the server defines in cluster c.
func (g *Given) Of(c cluster.Name) *serve.Shape {
	switch {
	case c == "" || c.System():
		return g.system
	case c == cluster.All:
		return g.all
	default:
		return g.workspace
	}
}
