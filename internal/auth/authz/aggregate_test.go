package authz

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

const toView, toEdit = "rbac.authorization.k8s.io/aggregate-to-view", "rbac.authorization.k8s.io/aggregate-to-edit"

// part stores a role that allows to get a resource of example.com.
func (s *stored) part(name, resource, label string) {
	s.clusterRoles[name] = &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "true"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{resource}}},
	}
}

// granted returns the resources of example.com that the role of that name allows for bindings in
// c.
func granted(p policy, c cluster.Name, name string) []string {
	r, _ := p.clusterRole(c, name)
	return granting(r)
}

func granting(r *rbacv1.ClusterRole) []string {
	var all []string
	for _, rule := range r.Rules {
		if slices.Contains(rule.APIGroups, "example.com") {
			all = append(all, rule.Resources...)
		}
	}
	slices.Sort(all)
	return all
}

func TestRolesOfAClusterExtendThoseOfThePolicy(t *testing.T) {
	b, err := NewBootstrap()
	if err != nil {
		t.Fatal(err)
	}
	m := memory{}
	m.at("one").part("viewed", "viewed", toView)
	m.at("one").part("edited", "edited", toEdit)
	m.at("one").part("other", "other", "example.com/label")
	m.at("one").part("system:aggregate-to-view", "forged", toView) // a name of the policy
	m.at("two")
	m.at(cluster.Admin).part("everywhere", "everywhere", toView)
	p := newPolicy(b, m)
	for _, test := range []struct {
		in   cluster.Name
		role string
		want []string
	}{
		{"one", "view", []string{"everywhere", "viewed"}},
		{"one", "edit", []string{"edited", "everywhere", "viewed"}}, // view is a part of edit
		{"one", "admin", []string{"edited", "everywhere", "viewed"}},
		{"one", "cluster-admin", nil},
		{"two", "admin", []string{"everywhere"}},
		{cluster.Admin, "view", []string{"everywhere"}},
	} {
		if diff := cmp.Diff(test.want, granted(p, test.in, test.role)); diff != "" {
			t.Errorf("%s in %s (-want +got):\n%s", test.role, test.in, diff)
		}
	}
	// Bindings in the layers above do not use roles of a tenant.
	if r, _ := p.shared("admin"); !slices.Equal(granting(r), []string{"everywhere"}) {
		t.Errorf("for bindings above it grants %v", granting(r))
	}
	if r, _ := b.ClusterRole("admin"); granting(r) != nil {
		t.Errorf("the policy itself was changed: it grants %v", granting(r))
	}
}

func TestAggregate(t *testing.T) {
	b, err := NewBootstrap()
	if err != nil {
		t.Fatal(err)
	}
	m := memory{}
	m.at("one").part("b", "b", toView)
	m.at("one").part("a", "a", toView)
	m.at("one").part("again", "a", toView)
	m.at("one").part("system:aggregate-to-view", "forged", toView)
	sum := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sum", Labels: map[string]string{toView: "true"}}}
	sum.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{toView: "true"}}}}
	sum.Rules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"old"}}}
	m.at("one").clusterRoles["sum"] = sum

	var first []rbacv1.PolicyRule
	for range 10 { // roles are listed in any order
		rules, err := b.Aggregate("one", sum, m.ClusterRoles("one"))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = rules
		}
		if diff := cmp.Diff(first, rules); diff != "" {
			t.Fatalf("the order of roles matters:\n%s", diff)
		}
	}
	if got := granting(&rbacv1.ClusterRole{Rules: first}); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("it grants %v", got)
	}
	view, _ := b.ClusterRole("view")
	if len(first) != len(view.Rules)+2 {
		t.Errorf("it has %d rules; view, whose parts it selects too, has %d", len(first), len(view.Rules))
	}
	bad := sum.DeepCopy()
	bad.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}
	if _, err := b.Aggregate("one", bad, nil); err == nil {
		t.Error("aggregated by a selector that is not valid")
	}
}

// An aggregated role has the current rules of its parts, even before the loop has written them.
func TestRoleThatIsAboutToBeMade(t *testing.T) {
	m := tenants()
	top := m.at("top")
	top.clusterRole("sum")
	sum := top.clusterRoles["sum"]
	sum.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"sum": "yes"}}}}
	for c, rule := range map[cluster.Name]rbacv1.PolicyRule{"top": everything, "low": enter} {
		m.at(c).clusterRole("part", rule)
		m.at(c).clusterRoles["part"].Labels = map[string]string{"sum": "yes"}
	}
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	r, ok := z.ClusterRole(authtest.In("top"), "sum")
	if !ok || !allows(r.Rules, resource(authtest.Person("x"), "list", "secrets", "x")) || len(sum.Rules) > 0 {
		t.Errorf("got %v, %v of %v", r, ok, sum)
	}
	sum.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}
	if r, ok := z.ClusterRole(authtest.In("top"), "sum"); !ok || len(r.Rules) > 0 {
		t.Errorf("role with an unreadable rule: %v, %v", r, ok)
	}
	if _, ok := z.ClusterRole(authtest.In("low"), "sum"); ok {
		t.Error("it is in another cluster")
	}
}
