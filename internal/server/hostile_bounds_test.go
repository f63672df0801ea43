package server_test

import (
	"slices"
	"strings"
	"testing"
)

// Selectors above a limit are refused before authentication, wherever a request may contain
// them. The error has the limit. Shorter ones are parsed and answered.
func TestLargeRequestsAreRefusedUnread(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	long := strings.Repeat("k!=v,", 100_000) + "k"
	many := strings.Repeat("k!=v,", 600) + "k"
	visitors := a.visitors()
	for _, v := range visitors {
		for _, v.http1 = range []bool{false, true} {
			for _, c := range []struct{ method, target string }{
				{"GET", a.path(maps) + "?labelSelector="},
				{"GET", a.path(maps) + "?watch=1&labelSelector="},
				{"GET", a.path(maps) + "?fieldSelector="},
				{"DELETE", a.path(maps) + "?labelSelector="},
				{"GET", "/clusters/no-such" + maps + "?labelSelector="},
				{"GET", maps + "?labelSelector="},
				{"GET", "/services/reachableworkspaces?labelSelector="},
			} {
				if got := v.send(c.method, c.target+long, ""); got.code != 414 || !strings.Contains(got.body, "the limit is 16384") {
					t.Errorf("%s: %s %s: %d %.300s", v.name, c.method, c.target, got.code, got.body)
				}
				if got := v.send(c.method, c.target+many, ""); got.code != 400 || !strings.Contains(got.body, "the limit is 100") {
					t.Errorf("%s: %s %s of many terms: %d %.300s", v.name, c.method, c.target, got.code, got.body)
				}
			}
		}
	}
	owner := visitors[slices.IndexFunc(visitors, func(v visitor) bool { return v.name == "owner" })]
	if got := owner.send("GET", a.path(maps)+"?labelSelector="+strings.Repeat("k!=v,", 90)+"k+in+("+strings.Repeat("v,", 400)+"v)", ""); got.code != 200 {
		t.Errorf("a selector of 90 requirements and a set of 400 values: %d %.300s", got.code, got.body)
	}
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"list","resource":"configmaps","labelSelector":{"rawSelector":"` + long + `"}}}}`
	if got := owner.send("POST", a.path("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"), review, "Content-Type", "application/json"); got.code != 413 {
		t.Errorf("a review with a long selector: %d %.300s", got.code, got.body)
	}
}
