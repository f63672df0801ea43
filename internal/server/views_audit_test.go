package server_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// Audit events contain the view, the authenticated and the effective user, and the cluster of
// a request through a view. For a forced deletion they contain the user and the reason.
func TestAuditOfViewsAndForcedDeletions(t *testing.T) {
	t.Parallel()
	s, events, _ := recorded(t)
	r := &running{Server: s.Server, dir: s.dir}
	root := at(t, r, cluster.Root, server.System())
	alice := root.allow("alice")
	w := alice.workspace("w")
	w.content("m", hold)
	w.become("Initializing", map[string][]string{"initializers": {"root:web"}})
	root.mayVerb("ina", "initialize", "web")
	ina := root.initializing("root:web", as("ina"))
	must(ina.kube(w.name).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}))(t)
	must(ina.clusters("*").List(t.Context(), metav1.ListOptions{}))(t)
	alice.deleteWorkspace("w")
	olga := at(t, r, cluster.Root, &user.DefaultInfo{Name: "olga", Groups: []string{user.AllAuthenticated, "system:kcp:admin"}})
	if err := olga.force("w", "ticket 42"); err != nil {
		t.Fatal(err)
	}
	root.await(workspaces, "", "w", gone)

	prefix := "/services/initializingworkspaces/root:web/clusters/"
	find := func(user, uri string, is func(auditv1.Event) bool) {
		t.Helper()
		var all []auditv1.Event
		for _, e := range events() {
			if e.User.Username == user && strings.HasPrefix(e.RequestURI, uri) {
				if all = append(all, e); is(e) {
					return
				}
			}
		}
		t.Errorf("of what %s did at %s there is %+v", user, uri, all)
	}
	find("ina", prefix+string(w.name)+"/api/v1/namespaces/default/configmaps", func(e auditv1.Event) bool {
		return e.Annotations[auditCluster] == string(w.name) && e.ImpersonatedUser != nil && e.ImpersonatedUser.Username == "alice" && e.Annotations["authorization.k8s.io/decision"] == "allow" &&
			// one step for the right of ina to use the view, one for the rights of alice
			strings.Contains(e.Annotations["request.auth.kcp.io/view-05-local-reason"], "ina") && strings.Contains(e.Annotations["request.auth.kcp.io/05-local-reason"], "alice")
	})
	find("ina", prefix, func(e auditv1.Event) bool { return e.Annotations[auditCluster] == "*" && e.ImpersonatedUser == nil })
	find("olga", "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/w", func(e auditv1.Event) bool {
		return e.Annotations[forceDelete] == "Workspace w of logical cluster root, deletion forced by olga: ticket 42"
	})
}
