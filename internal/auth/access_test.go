package auth

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
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
		"none":                        {"", person("dave"), true},
		"a member":                    {"staff", person("dave", "staff"), true},
		"no member":                   {"staff", person("dave", "devs"), false},
		"not even the owner":          {"staff", person("alice"), false},
		"both":                        {"staff,devs", person("dave", "devs", "staff"), true},
		"one of both":                 {"staff,devs", person("dave", "devs"), false},
		"the other alternative":       {"staff,devs;ops", person("dave", "ops"), true},
		"an alternative that is none": {"staff;", person("dave"), false},
		"only separators":             {";,;", person("dave", ""), false},
		"kcp-admin":                   {"staff", person("x", AdminGroup), true},
		"bootstrapper":                {"staff", person("x", WorkspaceBootstrapperGroup), true},
		"logical cluster admin":       {"staff", person("x", LogicalClusterAdminGroup), true},
		"external one":                {"staff", person("x", ExternalLogicalClusterAdminGroup), true},
		"masters":                     {"staff", person("x", user.SystemPrivilegedGroup), true},
		"an account":                  {"staff", account("aa", "default", "robot"), true},
		"one from elsewhere":          {"staff", account("bb", "default", "robot"), true},
		"a warrant of a member":       {"staff", with(person("dave"), WarrantKey, `{"user":"eve","groups":["staff"]}`), true},
		"a member out of scope":       {"staff", with(person("dave", "staff"), ScopesKey, "cluster:bb"), false},
		"anonymous":                   {"staff", nobody(), false},
	} {
		t.Run(name, func(t *testing.T) {
			z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) {
				return Cluster{Phase: core.PhaseReady, RequiredGroups: tt.required}, true
			}})
			if d, _, err := z.Authorize(in("aa"), resource(tt.u, "get", "configmaps", "default")); (d == allow) != tt.want || err != nil {
				t.Errorf("got %v, %v; want allowed: %v", d, err, tt.want)
			}
			// A deep review uses only RBAC.
			if d, _, _ := z.Authorize(Deep(in("aa")), resource(tt.u, "get", "configmaps", "default")); (d == allow) != (name != "anonymous" && name != "nobody") {
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
		if d, _, _ := z.Authorize(in("aa"), resource(person("alice"), "get", "secrets", "x")); (d == allow) != want {
			t.Errorf("in phase %s: %v", p, d)
		}
		lc := resource(person("x", LogicalClusterAdminGroup), "update", "logicalclusters", "")
		if d, _, _ := z.Authorize(in("aa"), withGroup(lc, "core.kcp.io")); d != allow {
			t.Errorf("logical cluster admin in phase %s: %v", p, d)
		}
	}
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) { return Cluster{}, false }})
	if d, _, _ := z.Authorize(in("aa"), resource(person("alice"), "get", "secrets", "x")); d != deny {
		t.Errorf("without a LogicalCluster: %v", d)
	}
}
