package authn

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authtest"
)

func TestNobodyBringsALifecycleGroup(t *testing.T) {
	t.Parallel()
	groups := []string{"a", auth.InitializerGroupPrefix + "root:web", auth.TerminatorGroupPrefix + "root:web", auth.InitializerGroupPrefix, "b"}
	from := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "u", UID: "1", Groups: groups, Extra: map[string][]string{"k": {"v"}}}}, true, nil
	})
	r, ok, err := withoutViewGroups(from).AuthenticateRequest(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if u := r.User; !slices.Equal(u.GetGroups(), []string{"a", "b"}) || u.GetName() != "u" || u.GetUID() != "1" || len(u.GetExtra()) != 1 {
		t.Errorf("it is %v", u)
	}
}

func TestNobodyElseSaysWhoseRightsAUserHas(t *testing.T) {
	u := authtest.With(authtest.With(authtest.With(authtest.Person("alice"), auth.WarrantKey, "x"), auth.ScopesKey, "y"), "example.com/team", "z")
	for relayed, want := range map[bool]int{false: 1, true: 3} {
		got, err := vetted(authtest.In("aa"), u, relayed)
		if err != nil || len(got.GetExtra()) != want {
			t.Errorf("relayed: %v: %v, %v", relayed, got, err)
		}
	}
}
