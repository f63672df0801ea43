package authz

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// The limits of a provider also hold for a grant, unless the provider itself has it.
func TestGrantsObeyLimits(t *testing.T) {
	t.Parallel()
	z, err := NewAuthorizer(Authorization{
		Exists: func(context.Context, cluster.Name) bool { return true },
		Limited: func(_ cluster.Name, gr schema.GroupResource) (cluster.Name, bool) {
			return "provider", gr.Resource == "widgets"
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for resource, want := range map[string][2]bool{"widgets": {false, true}, "configmaps": {true, true}} {
		for i, unlimited := range []bool{false, true} {
			g := &Grant{Cluster: "c1", Group: "system:g", Unlimited: unlimited, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"*"}}}}
			d, _, _ := z.Authorize(WithGrant(cluster.With(t.Context(), "c1"), g), authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: "m", Groups: []string{g.Group}}, Verb: "get", Resource: resource, APIVersion: "v1", ResourceRequest: true,
			})
			if got := d == authorizer.DecisionAllow; got != want[i] {
				t.Errorf("%s, unlimited %t: allowed %t", resource, unlimited, got)
			}
		}
	}
}

// A grant alone determines the rights of its group in its cluster, also for escalation checks.
func TestGrants(t *testing.T) {
	t.Parallel()
	z, err := NewAuthorizer(Authorization{Exists: func(context.Context, cluster.Name) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	g := &Grant{Cluster: "c1", Group: auth.InitializerGroupPrefix + "root:web", Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}
	member, admin := &user.DefaultInfo{Name: "m", Groups: []string{g.Group}}, &user.DefaultInfo{Name: "a", Groups: []string{auth.AdminGroup, g.Group}}
	get := func(ctx context.Context, u user.Info, resource string) bool {
		d, _, _ := z.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: "get", Resource: resource, APIVersion: "v1", ResourceRequest: true})
		return d == authorizer.DecisionAllow
	}
	in := func(c cluster.Name) context.Context { return WithGrant(cluster.With(t.Context(), c), g) }
	for what, is := range map[string]bool{
		"what is granted":                get(in("c1"), member, "configmaps"),
		"no more":                        !get(in("c1"), member, "secrets"),
		"not even what they have beside": !get(in("c1"), admin, "secrets"),
		"not elsewhere":                  !get(in("c2"), member, "configmaps"),
		"elsewhere what they have":       get(in("c2"), admin, "secrets"),
		"not in another request":         !get(cluster.With(t.Context(), "c1"), member, "configmaps"),
		"not who is in no such group":    !get(in("c1"), &user.DefaultInfo{Name: "m"}, "configmaps"),
	} {
		if !is {
			t.Error("not so:", what)
		}
	}
	held, err := z.Rules().RulesFor(in("c1"), admin, "")
	if err != nil || len(held) != 1 || held[0].Verbs[0] != "get" {
		t.Errorf("it can pass on %v (%v)", held, err)
	}
}
