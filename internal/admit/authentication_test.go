package admit

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A configuration has each issuer once, as that of kube-apiserver. It keeps those that it has more often.
func TestDuplicateIssuers(t *testing.T) {
	rule := WorkspaceAuthentications()
	provider := func(url, discovery string) any {
		issuer := map[string]any{"url": url, "audiences": []any{"app"}}
		if discovery != "" {
			issuer["discoveryURL"] = discovery
		}
		return map[string]any{"issuer": issuer, "claimMappings": map[string]any{"username": map[string]any{"claim": "sub", "prefix": ""}}}
	}
	a, b, keysOfA, keysOfB := provider("https://a.example.com", ""), provider("https://b.example.com", ""), provider("https://a.example.com", "https://keys.example.com"), provider("https://b.example.com", "https://keys.example.com")
	of := func(providers ...any) map[string]any { return map[string]any{"spec": map[string]any{"jwt": providers}} }
	for name, c := range map[string]struct {
		old, now map[string]any
		why      string // empty if it is accepted
	}{
		"different":              {nil, of(a, b), ""},
		"the same":               {nil, of(a, b, a), `spec.jwt[2].issuer.url: Duplicate value: "https://a.example.com"`},
		"the same, added":        {of(a), of(a, a), `spec.jwt[1].issuer.url: Duplicate value`},
		"the same, kept":         {of(a, a), of(b, a, a), ""},
		"the same, once more":    {of(a, a), of(a, a, a), `spec.jwt[2].issuer.url: Duplicate value`},
		"found at the same URL":  {nil, of(keysOfA, keysOfB), `spec.jwt[1].issuer.discoveryURL: Duplicate value: "https://keys.example.com"`},
		"found at different URL": {nil, of(keysOfA, b), ""},
	} {
		err := rule.Validate(t.Context(), request("c", "workspaceauthenticationconfigurations", "x", c.old, c.now))
		if c.why == "" && err != nil || c.why != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
