package server

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/crds"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
)

// given is what the server itself has each cluster serve as custom resources.
type given struct {
	workspace *serve.Shape // of workspaces and clusters like them
	system    *serve.Shape // of clusters that belong to the server
}

// newGiven returns the shapes of the kinds that the server itself defines, and
// of further ones. Workspaces are served from the export of that identity.
func newGiven(identity string, further []*apiextensionsv1.CustomResourceDefinition) (*given, error) {
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
		content, err := serve.NewContent(crd)
		if err != nil {
			return nil, err
		}
		if crd.Spec.Group == "core.kcp.io" {
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
	return &given{serve.NewShape(append(workspaces, every...)...), serve.NewShape(every...)}, nil
}

// of returns what a cluster is given.
func (g *given) of(c cluster.Name) *serve.Shape {
	if c == "" || c.System() {
		return g.system
	}
	return g.workspace
}
