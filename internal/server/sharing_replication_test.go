package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// contentOf grants the content of one export to a user.
func (c *tenant) contentOf(export, name string) {
	c.t.Helper()
	role := "content-" + export
	must(c.kube.RbacV1().ClusterRoles().Create(c.t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{rbacv1.VerbAll}, APIGroups: []string{"apis.kcp.io"}, Resources: []string{"apiexports/content"}, ResourceNames: []string{export}},
			{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}},
		},
	}, metav1.CreateOptions{}))(c.t)
	c.bind(role, role, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
}

func replicationView(t *testing.T, s *running, of cluster.Name, slice string, u user.Info) *viewer {
	return &viewer{t, s, "/services/replication/" + string(of) + "/" + slice + "/clusters/", u}
}

// TestNobodyLearnsOfEndpointSlicesOfOthers shows that users who may not read the content of the export
// of an endpoint slice get one answer, whether the slice exists or not, and do not learn the name of
// its export.
func TestNobodyLearnsOfEndpointSlicesOfOthers(t *testing.T) {
	t.Parallel()
	p, consumer, empty := publisher(t), newTenant(t), newTenant(t)
	p.provides("pat")
	consumer.create(apiBindings, bindingTo("flavors", p.name, "flavors"))
	p.create(cachedSlices, flavorSlice("published", ""))
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: other}}`))
	p.contentOf("other", "olga")
	p.contentOf("flavors", "fred")
	p.allows("enter", rbacv1.UserKind, "gert", []string{"get"}, "apiexports")
	for _, name := range []string{"mallory", "gert", "olga"} {
		for _, path := range []string{
			"*/apis/example.com/v1/flavors", "*/apis/example.com/v1/flavors?watch=true", string(consumer.name) + "/apis/example.com/v1/flavors",
			string(consumer.name) + "/apis/example.com/v1/flavors/small", string(empty.name) + "/apis/example.com/v1/flavors", "*/apis", "*/metrics", "*/api/v1/secrets",
		} {
			answers := map[string]string{}
			for _, at := range []struct {
				home  cluster.Name
				slice string
			}{{p.name, "published"}, {p.name, "flavors"}, {p.name, "nothing"}, {p.name, "other"}, {empty.name, "published"}, {cluster.NewName(), "published"}} {
				status, body := replicationView(t, p.server, at.home, at.slice, as(name)).get(path)
				if status != http.StatusForbidden || strings.Contains(body, "apiexports") {
					t.Errorf("%s, %s of %s: %d %s", name, path, at.slice, status, body)
				}
				answers[fmt.Sprint(status, " ", strings.ReplaceAll(body, at.slice, "SLICE"))] = at.slice
			}
			if len(answers) != 1 {
				t.Errorf("%s, %s: the answers differ: %v", name, path, answers)
			}
		}
	}
	// With the right to the content of the export, the slice may have any name.
	for path, want := range map[string]int{
		"published": http.StatusOK, "flavors": http.StatusOK, "nothing": http.StatusForbidden,
	} {
		if status, body := replicationView(t, p.server, p.name, path, as("fred")).get("*/apis/example.com/v1/flavors"); status != want {
			t.Errorf("fred, %s: %d %s", path, status, body)
		}
	}
	if status, body := replicationView(t, p.server, p.name, "nothing", as("pat")).get("*/apis/example.com/v1/flavors"); status != http.StatusNotFound {
		t.Errorf("pat, who may read the content of all exports: %d %s", status, body)
	}
}

// TestAnotherServerHasStoredTheSlice shows that the export of an endpoint slice is the one that another
// server has stored just now.
func TestAnotherServerHasStoredTheSlice(t *testing.T) {
	t.Parallel()
	e := startEquals(t, 2, etcdtest.Options{})
	servers := []*running{{Server: e.all[0]}, {Server: e.all[1]}}
	name := cluster.NewName()
	e.ok(servers[0].MakeCluster(t.Context(), name))
	p := at(t, servers[0], name, server.System())
	p.publishes()
	p.contentOf("flavors", "fred")
	for i := range size(20, 200) {
		a, b := servers[i%2], servers[1-i%2]
		slice := fmt.Sprint("slice", i)
		at(t, a, name, server.System()).create(cachedSlices, flavorSlice(slice, ""))
		if status, body := replicationView(t, b, name, slice, as("fred")).get("*/apis/example.com/v1/flavors"); status != http.StatusOK {
			t.Errorf("%s: %d %s", slice, status, body)
		}
		if err := at(t, b, name, server.System()).any.Resource(cachedSlices).Delete(t.Context(), slice, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if status, body := replicationView(t, a, name, slice, as("fred")).get("*/apis/example.com/v1/flavors"); status != http.StatusForbidden {
			t.Errorf("%s after its deletion: %d %s", slice, status, body)
		}
	}
}
