package native

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/crds"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
)

// Given holds the custom resources that the server defines in every cluster.
type Given struct {
	workspace *serve.Shape // of all clusters but the server's own
	system    *serve.Shape // of the server's own clusters
}

// NewGiven returns the shapes of the server's own kinds and of further kinds. The tenancy
// kinds are stored under the identity.
func NewGiven(identity string, further []*apiextensionsv1.CustomResourceDefinition) (*Given, error) {
	var every, workspaces []serve.Served
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
		if g := crd.Spec.Group; g == "core.kcp.io" || g == "apis.kcp.io" || g == "topology.kcp.io" {
			every = append(every, serve.Served{Content: content})
		} else {
			workspaces = append(workspaces, serve.Served{Content: content, Identity: identity})
		}
	}
	for _, crd := range further {
		content, err := serve.NewContent(crd)
		if err != nil {
			return nil, fmt.Errorf("definition of %s: %w", crd.Name, err)
		}
		workspaces = append(workspaces, serve.Served{Content: content})
	}
	return &Given{serve.NewShape(append(workspaces, every...)...), serve.NewShape(every...)}, nil
}

// Of returns the shape of the kinds that the server defines in cluster c.
func (g *Given) Of(c cluster.Name) *serve.Shape {
	if c == "" || c.System() {
		return g.system
	}
	return g.workspace
}
