package hooks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/lru"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// maxTypes is the maximum number of kept converters of custom resources.
	maxTypes = 64
	// typeTime limits the read of a schema. The first read of a server builds its documents.
	typeTime = 30 * time.Second
)

// types converts objects for policies that change objects by merging a part into them. Clusters
// with the same schema share a converter.
type types struct {
	native func() []managedfields.TypeConverter
	client func(cluster.Name) *rest.Config
	custom *lru.Cache // by the hash of the OpenAPI document of a group and version
}

func newTypes(models func() []map[string]*spec.Schema, client func(cluster.Name) *rest.Config) *types {
	return &types{client: client, custom: lru.New(maxTypes), native: sync.OnceValue(func() []managedfields.TypeConverter {
		var all []managedfields.TypeConverter
		for _, m := range models() {
			if c, err := managedfields.NewTypeConverter(m, false); err == nil {
				all = append(all, c)
			}
		}
		return all
	})}
}

// in returns the converters for a cluster.
func (t *types) in(c cluster.Name) patch.TypeConverterManager { return typesIn{t, c} }

type typesIn struct {
	*types
	cluster cluster.Name
}

// Run implements [patch.TypeConverterManager].
func (typesIn) Run(context.Context) {}

// GetTypeConverter implements [patch.TypeConverterManager].
func (t typesIn) GetTypeConverter(gvk schema.GroupVersionKind) managedfields.TypeConverter {
	return &lateTypes{find: sync.OnceValues(func() (managedfields.TypeConverter, error) { return t.find(gvk) })}
}

// lateTypes finds the converter when it is needed: patches in JSON need none.
type lateTypes struct {
	find func() (managedfields.TypeConverter, error)
}

// ObjectToTyped implements [managedfields.TypeConverter].
func (l *lateTypes) ObjectToTyped(o runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	c, err := l.find()
	if err != nil {
		return nil, err
	}
	return c.ObjectToTyped(o, options...)
}

// TypedToObject implements [managedfields.TypeConverter].
func (l *lateTypes) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	c, err := l.find()
	if err != nil {
		return nil, err
	}
	return c.TypedToObject(v)
}

func (t typesIn) find(gvk schema.GroupVersionKind) (managedfields.TypeConverter, error) {
	stub := &unstructured.Unstructured{}
	stub.SetGroupVersionKind(gvk)
	for _, c := range t.native() {
		if _, err := c.ObjectToTyped(stub); err == nil {
			return c, nil
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), typeTime)
	defer cancel()
	c, err := t.read(ctx, gvk.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", gvk, err)
	}
	return c, nil
}

// read returns a converter for the kinds of a group and version that the cluster serves.
func (t typesIn) read(ctx context.Context, gv schema.GroupVersion) (managedfields.TypeConverter, error) {
	config := t.client(t.cluster)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/openapi/v3/apis/"+gv.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", runtime.ContentTypeJSON)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the OpenAPI document of %s: %s", gv, resp.Status)
	}
	tag := resp.Header.Get("ETag")
	if kept, ok := t.custom.Get(tag); ok && tag != "" {
		return kept.(managedfields.TypeConverter), nil
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var doc spec3.OpenAPI
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	c, err := managedfields.NewTypeConverter(doc.Components.Schemas, false)
	if err == nil && tag != "" {
		t.custom.Add(tag, c)
	}
	return c, err
}
