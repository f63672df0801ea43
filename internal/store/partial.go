package store

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
)

// CustomMetadata returns the storage of kinds served from schemas for readers of all
// clusters that want metadata alone. The clusters may have the resource in different
// versions and with different schemas.
func (s *Store) CustomMetadata(config Config) *Getter {
	g := s.Customs(config)
	g.metadataOnly = true
	return g
}

// decodeMetadata returns an object with what every version of it has.
func (c *custom) decodeMetadata(r *Raw) (*unstructured.Unstructured, error) {
	tail, value, err := cutFrame(r.framed)
	if err != nil {
		return nil, err
	}
	var stored struct {
		Metadata map[string]any `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &stored); err != nil {
		return nil, fmt.Errorf("stored object %s: %w", tail, err)
	}
	u, ok := c.newFunc().(*unstructured.Unstructured)
	name, namespace, object, valid := splitTail(tail)
	if !ok || !valid || stored.Metadata["name"] != object {
		return nil, fmt.Errorf("stored object %s is none", tail)
	}
	u.Object["metadata"] = stored.Metadata
	u.SetNamespace(namespace)
	u.SetResourceVersion(r.ResourceVersion)
	stamp(u, name)
	return u, nil
}
