package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	coreapi "github.com/unforked/kcp/apis/core/v1alpha1"
)

const clusterUsagePath = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster/usage"

// usage returns what the tenant's cluster stores.
func (c *tenant) usage() coreapi.LogicalClusterUsage {
	c.t.Helper()
	raw := must(c.kube.CoreV1().RESTClient().Get().AbsPath(clusterUsagePath).Do(c.t.Context()).Raw())(c.t)
	u := coreapi.LogicalClusterUsage{}
	if err := json.Unmarshal(raw, &u); err != nil {
		c.t.Fatal(err)
	}
	return u
}

// The usage of a cluster counts its objects, and those of all workspaces below it.
func TestUsageOfClusters(t *testing.T) {
	t.Parallel()
	top := newTenant(t).workspace("top")
	middle := top.workspace("middle")
	low := middle.workspace("low")
	count := func(u coreapi.LogicalClusterUsage, name string) (n coreapi.Stored) {
		for _, r := range u.Resources {
			if r.Group == "" && r.Resource == name {
				n = r.Stored
			}
		}
		return n
	}
	before, above := low.usage(), top.usage()
	if above.Below.Workspaces != 2 {
		t.Errorf("%d workspaces are below", above.Below.Workspaces)
	}
	low.make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "big", Namespace: "default"}, Data: map[string]string{"k": strings.Repeat("x", 10_000)}})
	low.configMap("small")
	after, now := low.usage(), top.usage()
	if n, old := count(after, "configmaps"), count(before, "configmaps"); n.Objects != old.Objects+2 || n.Bytes < old.Bytes+10_000 || n.Bytes > old.Bytes+11_000 {
		t.Errorf("config maps were %+v and are %+v", old, n)
	}
	if after.Total.Objects != before.Total.Objects+2 || now.Total != above.Total || now.Below.Objects != above.Below.Objects+2 {
		t.Errorf("below the top were %+v and are %+v", above, now)
	}
	if after.Below.Workspaces != 0 || after.Path != string(low.usage().Path) || !strings.HasSuffix(after.Path, ":top:middle:low") {
		t.Errorf("%+v", after)
	}
}

// The usage needs a right of its own, in the cluster itself. It says nothing about other clusters.
func TestUsageOfClustersIsAuthorized(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	alice := c.alice()
	get := func(at *tenant, path string) int {
		t.Helper()
		return alice.send(http.MethodGet, at.path(path), "").code
	}
	if status := get(c, clusterUsagePath); status != http.StatusForbidden {
		t.Errorf("without a right: %d", status)
	}
	c.clusterRole("usage", rbacv1.PolicyRule{APIGroups: []string{coreapi.GroupVersion.Group}, Resources: []string{"logicalclusters/usage"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{NonResourceURLs: []string{"/"}, Verbs: []string{"access"}})
	must(c.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "usage"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "usage"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "alice"}},
	}, metav1.CreateOptions{}))(t)
	for path, want := range map[string]int{
		clusterUsagePath: http.StatusOK,
		strings.Replace(clusterUsagePath, "/cluster/", "/other/", 1): http.StatusNotFound,
		strings.Replace(clusterUsagePath, "v1alpha1", "v1", 1):       http.StatusNotFound,
		strings.TrimSuffix(clusterUsagePath, "/usage"):               http.StatusForbidden,
	} {
		if status := get(c, path); status != want {
			t.Errorf("%s: %d, not %d", path, status, want)
		}
	}
	if status := get(other, clusterUsagePath); status != http.StatusForbidden {
		t.Errorf("in another cluster: %d", status)
	}
	if status := alice.send(http.MethodDelete, c.path(clusterUsagePath), "").code; status == http.StatusOK {
		t.Error("it can be deleted")
	}
}
