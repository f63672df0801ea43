package bind

import (
	"context"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
)

// A Consumer is a cluster that has a resource through a binding.
type Consumer struct {
	Cluster cluster.Name
	Bound   Bound
}

// Consumers returns the clusters that have a resource through a binding to an export.
func (b *Bindings) Consumers(e ExportName, gr schema.GroupResource) []Consumer {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []Consumer
	for n := range b.exports[e.Cluster][e.Name] {
		if r, bound := owner(b.clusters[n.cluster], gr); r != nil && r.name == n.name {
			all = append(all, Consumer{n.cluster, bound})
		}
	}
	return all
}

// Count returns the number of bindings to an export.
func (b *Bindings) Count(e ExportName) int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.exports[e.Cluster][e.Name])
}

// Served returns how the consumers of a provider are served a resource.
func (a *APIs) Served(provider cluster.Name, b Bound) (*serve.Content, bool) {
	content, ok := a.definitions.Bound(b.UID, false)
	if !ok {
		return nil, false
	}
	content, _ = a.conversions.apply(provider, b.Schema, content)
	return content, true
}

// Candidate returns the content with which an APIResourceSchema of a provider would be served. No
// export has to name the schema. Candidate reads it from the store.
func (a *APIs) Candidate(ctx context.Context, provider cluster.Name, name string) (*serve.Content, error) {
	s := &apisv1alpha1.APIResourceSchema{}
	rev, err := a.store.ReadInto(ctx, SchemaResource().Key(provider, "", name), s)
	if err != nil {
		return nil, err
	}
	if rev == 0 {
		return nil, &invalidSchemaError{fmt.Sprintf("there is no APIResourceSchema %s in the workspace of the APIExport", name)}
	}
	crd, err := s.CustomResourceDefinition()
	if err != nil {
		return nil, &invalidSchemaError{err.Error()}
	}
	content, err := ContentOf(crd)
	if err != nil {
		return nil, err
	}
	content, _ = a.conversions.apply(provider, name, content)
	return content, nil
}

// ContentOf returns the content of a definition made of an APIResourceSchema.
func ContentOf(crd *apiextensionsv1.CustomResourceDefinition) (*serve.Content, error) {
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	crd.Status.AcceptedNames = crd.Spec.Names
	return serve.NewContent(crd)
}

// IsInvalidSchema reports whether an error means that a schema is missing or malformed.
func IsInvalidSchema(err error) bool {
	var invalid *invalidSchemaError
	return errors.As(err, &invalid)
}
