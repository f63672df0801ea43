package authz

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

func TestRequiredGroups(t *testing.T) {
	m := tenants()
	m.at("aa").bind("everybody", "cluster-admin", groupSubject(user.AllAuthenticated))
	for name, tt := range map[string]struct {
		required string
		u        user.Info
		want     bool
	}{
		"none":                        {"", authtest.Person("dave"), true},
		"a member":                    {"staff", authtest.Person("dave", "staff"), true},
		"no member":                   {"staff", authtest.Person("dave", "devs"), false},
		"not even the owner":          {"staff", authtest.Person("alice"), false},
		"both":                        {"staff,devs", authtest.Person("dave", "devs", "staff"), true},
		"one of both":                 {"staff,devs", authtest.Person("dave", "devs"), false},
		"the other alternative":       {"staff,devs;ops", authtest.Person("dave", "ops"), true},
		"an alternative that is none": {"staff;", authtest.Person("dave"), false},
		"only separators":             {";,;", authtest.Person("dave", ""), false},
		"kcp-admin":                   {"staff", authtest.Person("x", auth.AdminGroup), true},
		"bootstrapper":                {"staff", authtest.Person("x", auth.WorkspaceBootstrapperGroup), true},
		"logical cluster admin":       {"staff", authtest.Person("x", auth.LogicalClusterAdminGroup), true},
		"external one":                {"staff", authtest.Person("x", auth.ExternalLogicalClusterAdminGroup), true},
		"masters":                     {"staff", authtest.Person("x", user.SystemPrivilegedGroup), true},
		"an account":                  {"staff", authtest.Account("aa", "default", "robot"), true},
		"one from elsewhere":          {"staff", authtest.Account("bb", "default", "robot"), true},
		"a warrant of a member":       {"staff", authtest.With(authtest.Person("dave"), auth.WarrantKey, `{"user":"eve","groups":["staff"]}`), true},
		"a member out of scope":       {"staff", authtest.With(authtest.Person("dave", "staff"), auth.ScopesKey, "cluster:bb"), false},
		"anonymous":                   {"staff", authtest.Nobody(), false},
	} {
		t.Run(name, func(t *testing.T) {
			z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) {
				return Cluster{Phase: core.PhaseReady, RequiredGroups: tt.required}, true
			}})
			if d, _, err := z.Authorize(authtest.In("aa"), resource(tt.u, "get", "configmaps", "default")); (d == allow) != tt.want || err != nil {
				t.Errorf("got %v, %v; want allowed: %v", d, err, tt.want)
			}
			// A deep review uses only RBAC.
			if d, _, _ := z.Authorize(Deep(authtest.In("aa")), resource(tt.u, "get", "configmaps", "default")); (d == allow) != (name != "anonymous" && name != "nobody") {
				t.Errorf("a deep review: %v", d)
			}
		})
	}
	for groups, ok := range map[string]bool{"": true, "a": true, "a,b;c": true, "a;": false, ",": false, "a, b": false, " a": false, "a;;b": false} {
		if err := CheckRequiredGroups(groups); (err == nil) != ok {
			t.Errorf("%q: %v", groups, err)
		}
	}
}

func TestPhases(t *testing.T) {
	m := tenants()
	for p, want := range map[core.Phase]bool{
		core.PhaseScheduling: false, core.PhaseUnavailable: false, core.PhaseInitializing: true, core.PhaseReady: true,
		core.PhaseInactive: true, core.PhaseTerminating: true, core.PhaseDeleting: true,
	} {
		z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) { return Cluster{Phase: p}, true }})
		if d, _, _ := z.Authorize(authtest.In("aa"), resource(authtest.Person("alice"), "get", "secrets", "x")); (d == allow) != want {
			t.Errorf("in phase %s: %v", p, d)
		}
		lc := resource(authtest.Person("x", auth.LogicalClusterAdminGroup), "update", "logicalclusters", "")
		if d, _, _ := z.Authorize(authtest.In("aa"), withGroup(lc, "core.kcp.io")); d != allow {
			t.Errorf("logical cluster admin in phase %s: %v", p, d)
		}
	}
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) { return Cluster{}, false }})
	if d, _, _ := z.Authorize(authtest.In("aa"), resource(authtest.Person("alice"), "get", "secrets", "x")); d != deny {
		t.Errorf("without a LogicalCluster: %v", d)
	}
}
