package bind

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// TestDefinitionsCountForTheProvider shows that a provider cannot fill etcd with definitions that
// bindings keep after the schemas were deleted, also if loops make them.
func TestDefinitionsCountForTheProvider(t *testing.T) {
	s := newShelf(t, store.Options{TenantShare: 1, Etcd: etcd.Config{QuotaBackendBytes: 1 << 30}}, "attacker", cluster.BoundDefinitions)
	const size, share, definitions = 1 << 20, 64, 2
	text := strings.Repeat("x", size)
	for i := range share - definitions - 2 { // the schemas are there while they are defined
		name := fmt.Sprint("filler-", i)
		s.put(keys.CustomResource(schema.GroupResource{Group: "example.com", Resource: "fillers"}, ""), "attacker", name, map[string]any{
			"apiVersion": "example.com/v1", "kind": "Filler", "metadata": map[string]any{"name": name, "annotations": map[string]any{"text": text}},
		})
	}
	define := func(i int) (uid string, err error) {
		r := exports.Exported{GroupResource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Schema: fmt.Sprintf("v%d.widgets.example.com", i)}
		o := &apisv1alpha1.APIResourceSchema{TypeMeta: metav1.TypeMeta{APIVersion: apisv1alpha1.GroupVersion.String(), Kind: "APIResourceSchema"}, ObjectMeta: values.NewMeta("", r.Schema)}
		data, _ := json.Marshal(map[string]any{ // strings always encode
			"group": r.Group, "scope": "Cluster", "names": map[string]any{"plural": r.Resource, "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"type": "object", "description": text}}},
		})
		if err := json.Unmarshal(data, &o.Spec); err != nil {
			t.Fatal(err)
		}
		s.put(exports.SchemaResource(), "attacker", r.Schema, o)
		defer s.put(exports.SchemaResource(), "attacker", r.Schema, nil)
		_, err = s.apis.Exports.Define(t.Context(), exports.Name{Cluster: "attacker", Name: "widgets"}, "consumer", r)
		return string(o.UID), err
	}
	var kept []string
	for i := range definitions {
		uid, err := define(i)
		if err != nil {
			t.Fatalf("definition %d: %v", i, err)
		}
		kept = append(kept, uid)
	}
	// A loop does not try again after this error.
	if _, err := define(definitions); !exports.IsInvalidSchema(err) || strings.Contains(err.Error(), "attacker") {
		t.Fatalf("a definition beyond the share of one tenant: %v", err)
	}
	if err := s.apis.Collect(t.Context(), kept[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.store.Feed().CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := define(definitions); err != nil {
		t.Errorf("after a definition was deleted: %v", err)
	}
}
