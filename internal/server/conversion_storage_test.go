package server_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
)

// A change of the storage version does not rewrite stored objects.
func testChangedStorageVersion(t *testing.T, all *conversions) {
	c := all.tenant(t)
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	c.endpoint(v1, "b", object{"hostPort": "h:2"})
	c.define(endpointDefinition(v2, all.hook.client()))
	checkMixedVersions(t, c)
}

// After a restart with another storage version, stored objects are readable.
func TestChangedStorageVersion(t *testing.T) {
	t.Parallel()
	hook, dir, name := newConverter(t), t.TempDir(), cluster.NewName()
	c, stop := restartable(t, dir, name, endpointDefinition(v1, hook.client()))
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	c.endpoint(v1, "b", object{"hostPort": "h:2"})
	stop()
	c, _ = restartable(t, dir, name, endpointDefinition(v2, hook.client()))
	checkMixedVersions(t, c)
}

// checkMixedVersions checks that objects stored in v1 are readable, and that their next write
// stores them in v2.
func checkMixedVersions(t *testing.T, c *tenant) {
	t.Helper()
	stored := func(name string) string {
		raw := must(c.server.Store().RawClient().Get(t.Context(), "/registry/c/convert.example.com/endpoints/-/"+string(c.name)+"/default/"+name))(t)
		var o struct{ APIVersion string }
		if len(raw.Kvs) != 1 || json.Unmarshal(raw.Kvs[0].Value, &o) != nil {
			t.Fatalf("%s is not stored", name)
		}
		return strings.TrimPrefix(o.APIVersion, "convert.example.com/")
	}
	c.endpoint(v1, "c", object{"hostPort": "h:3"})
	must(c.endpoints(v1).Patch(t.Context(), "b", types.MergePatchType, []byte(`{"spec":{"hostPort":"h:4"}}`), metav1.PatchOptions{}))(t)
	got := map[string]string{}
	for _, n := range []string{"a", "b", "c"} {
		got[n] = stored(n)
	}
	if diff := cmp.Diff(map[string]string{"a": v1, "b": v2, "c": v2}, got); diff != "" {
		t.Error("stored versions: " + diff)
	}
	for version, want := range map[string][]object{
		v1: {{"hostPort": "h:1"}, {"hostPort": "h:4"}, {"hostPort": "h:3"}},
		v2: {{"host": "h", "port": "1"}, {"host": "h", "port": "4"}, {"host": "h", "port": "3"}},
	} {
		list := must(c.endpoints(version).List(t.Context(), metav1.ListOptions{}))(t)
		if len(list.Items) != 3 {
			t.Fatalf("%d endpoints in %s", len(list.Items), version)
		}
		for i := range want {
			wantSpec(t, &list.Items[i], version, want[i])
		}
	}
}
