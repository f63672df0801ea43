package conformance

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/cached"
	explain "k8s.io/kubectl/pkg/explain/v2"

	"github.com/unforked/kcp/test/stock"
)

// openapi returns the documents that kubectl explain reads.
func (s *side) openapi(t *testing.T) openapi.Client {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(s.config(stock.UserToken))
	if err != nil {
		t.Fatal(err)
	}
	return cached.NewClient(c.OpenAPIV3())
}

// explainNatives compares the output of kubectl explain for built-in kinds.
func (c *comparison) explainNatives(t *testing.T) {
	want, got := c.want.openapi(t), c.got.openapi(t)
	all := []string{
		"v1 configmaps", "v1 secrets", "v1 namespaces", "v1 serviceaccounts", "v1 events",
		"rbac.authorization.k8s.io/v1 clusterroles", "rbac.authorization.k8s.io/v1 rolebindings",
		"coordination.k8s.io/v1 leases", "events.k8s.io/v1 events",
	}
	for _, r := range all {
		version, resource, _ := strings.Cut(r, " ")
		gv, err := schema.ParseGroupVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		c.explain(t, want, got, gv.WithResource(resource))
	}
}

// explain compares the output of kubectl explain --recursive for one kind.
func (c *comparison) explain(t *testing.T, want, got openapi.Client, r schema.GroupVersionResource) {
	t.Helper()
	c.requests.Add(1)
	say := func(from openapi.Client) answer {
		var b bytes.Buffer
		if err := explain.PrintModelDescription(nil, &b, from, r, true, "plaintext"); err != nil {
			return answer{Body: err.Error()}
		}
		lines := []any{}
		for line := range strings.Lines(b.String()) {
			lines = append(lines, line)
		}
		return answer{Status: 200, Body: lines}
	}
	a, b := say(want), say(got)
	if wrong := c.judge("explain: "+r.String(), a, b); wrong != "" || a.Status != 200 {
		t.Errorf("%s: %s", r, wrong+text(a)[:min(300, len(text(a)))])
	}
}
