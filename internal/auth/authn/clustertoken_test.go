package authn

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

func TestClusterOfToken(t *testing.T) {
	encode := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for token, want := range map[string]cluster.Name{
		encode(`{"kubernetes.io":{"clusterName":"aa"}}`):                                                 "aa",
		encode(`{"iss":"x","kubernetes.io":{"namespace":"n","clusterName":"system:admin"}}`):             "system:admin",
		encode(`{"kubernetes.io/serviceaccount/clusterName":"aa"}`):                                      "aa",
		encode(`{"kubernetes.io/serviceaccount/clusterName":"aa","kubernetes.io":{"clusterName":"bb"}}`): "",
		encode(`{"kubernetes.io":{"clusterName":"aa"},"kubernetes.io":{"clusterName":"bb"}}`):            "",
		encode(`{"kubernetes.io":{"clusterName":"aa","clusterName":"bb"}}`):                              "",
		encode(`{"Kubernetes.io":{"clusterName":"aa"}}`):                                                 "",
		encode(`{"kubernetes.io":{"ClusterName":"aa"}}`):                                                 "",
		encode(`{"kubernetes.io":{"clusterName":"*"}}`):                                                  "",
		encode(`{"kubernetes.io":{"clusterName":"aa/../bb"}}`):                                           "",
		encode(`{"kubernetes.io":{"clusterName":"root:org"}}`):                                           "",
		encode(`{"kubernetes.io":{"clusterName":["aa"]}}`):                                               "",
		encode(`{"kubernetes.io":"aa"}`):                                                                 "",
		encode(`{"kubernetes.io":{"clusterName":"aa"}} x`):                                               "",
		encode(`{}`):   "",
		encode(`null`): "",
		encode(`[]`):   "",
		encode(``):     "",
		encode(`{"kubernetes.io":{"clusterName":"aa"}}`) + ".x":                                                "",
		strings.Replace(encode(`{"kubernetes.io":{"clusterName":"aa"}}`), ".", ".\n", 1):                       "",
		encode(`{"x":"` + strings.Repeat("y", auth.MaxToken) + `","kubernetes.io":{"clusterName":"aa"}}`):      "",
		"e30." + base64.URLEncoding.EncodeToString([]byte(`{"kubernetes.io":{"clusterName":"aa"}}`)) + ".c2ln": "",
		"": "", ".": "", "..": "", "Bearer": "",
	} {
		if got, ok := ClusterOfToken(token); got != want && ok || ok != (want != "") {
			t.Errorf("%.80s: got %q, %v; want %q", token, got, ok, want)
		}
	}
}

func FuzzClusterOfToken(f *testing.F) {
	s := newAccounts(f, ServiceAccountOptions{})
	o := newObjects()
	a := o.account("aa", "ns", "robot", "u1")
	f.Add(boundToken(f, s, "aa", a, nil, 3600))
	f.Add(legacyToken(f, s, "aa", a, o.secret("aa", "ns", "t", "u2")))
	f.Add("a.b.c")
	f.Add("e30.eyJrdWJlcm5ldGVzLmlvIjp7ImNsdXN0ZXJOYW1lIjoiYWEifX0.x")
	f.Fuzz(func(t *testing.T, token string) {
		c, ok := ClusterOfToken(token)
		if !ok {
			if _, valid, _ := s.AuthenticateToken(authtest.In("aa"), token); valid {
				t.Fatalf("%q names no cluster and is valid", token)
			}
			return
		}
		if _, err := cluster.ParseName(string(c)); err != nil {
			t.Fatalf("%q names %q: %v", token, c, err)
		}
		if strings.Count(token, ".") != 2 || strings.ContainsAny(strings.Split(token, ".")[1], " \r\n=+/") {
			t.Fatalf("accepted %q", token)
		}
	})
}
