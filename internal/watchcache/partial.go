package watchcache

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/values"
)

// decodeMetadata returns an object with the fields that all versions have.
func (c *custom) decodeMetadata(r *Raw) (*unstructured.Unstructured, error) {
	tail, value, err := values.CutFrame(r.framed)
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
	name, namespace, object, valid := keys.SplitTail(tail)
	if !ok || !valid || stored.Metadata["name"] != object {
		return nil, fmt.Errorf("stored object %s is none", tail)
	}
	u.Object["metadata"] = stored.Metadata
	u.SetNamespace(namespace)
	u.SetResourceVersion(r.ResourceVersion)
	values.SetCluster(u, name)
	return u, nil
}
