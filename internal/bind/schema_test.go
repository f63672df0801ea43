package bind

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/etcd"
	"github.com/unforked/kcp/internal/store"
)

// TestDefinitionsCountForTheProvider shows that a provider cannot fill etcd with definitions that
// bindings keep after the schemas were deleted.
func TestDefinitionsCountForTheProvider(t *testing.T) {
	s := newShelf(t, store.Options{TenantShare: 1, Etcd: etcd.Config{QuotaBackendBytes: 1 << 30}}, "attacker", cluster.BoundDefinitions)
	const size, share = 1 << 20, 64 << 20
	define := func(i int) (uid string, err error) {
		r := Exported{GroupResource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Schema: fmt.Sprintf("v%d.widgets.example.com", i)}
		o := &apisv1alpha1.APIResourceSchema{TypeMeta: metav1.TypeMeta{APIVersion: apisv1alpha1.GroupVersion.String(), Kind: "APIResourceSchema"}, ObjectMeta: newMeta("", r.Schema)}
		data, _ := json.Marshal(map[string]any{ // strings always encode
			"group": r.Group, "scope": "Cluster", "names": map[string]any{"plural": r.Resource, "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"type": "object", "description": strings.Repeat("x", size)}}},
		})
		if err := json.Unmarshal(data, &o.Spec); err != nil {
			t.Fatal(err)
		}
		s.put(SchemaResource(), "attacker", r.Schema, o)
		defer s.put(SchemaResource(), "attacker", r.Schema, nil)
		_, err = s.apis.content(t.Context(), "attacker", r)
		return string(o.UID), err
	}
	var kept []string
	for i := range 2 * share / size {
		uid, err := define(i)
		if err == nil {
			kept = append(kept, uid)
			continue
		}
		if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "attacker") {
			t.Fatalf("schema %d: %v", i, err)
		}
		break
	}
	if n := len(kept); n*size > share || n*size < share/2 {
		t.Fatalf("%d definitions of %d MiB were stored, and the limit is %d MiB", n, size>>20, share>>20)
	}
	for _, uid := range kept[:5] {
		if err := s.apis.Collect(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.store.Feed().CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := define(0); err != nil {
		t.Errorf("after definitions were deleted: %v", err)
	}
}
