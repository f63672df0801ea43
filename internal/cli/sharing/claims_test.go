package sharing

import (
	"strings"
	"testing"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
)

// TestClaimOf leaves out the group of a claimed resource where that is clear.
func TestClaimOf(t *testing.T) {
	asked := []apis.PermissionClaim{{Resource: "configmaps"}, {Resource: "events"}, {Group: "events.k8s.io", Resource: "events"},
		{Group: "example.com", Resource: "widgets", IdentityHash: "a"}, {Group: "example.com", Resource: "widgets", IdentityHash: "b"}}
	for arg, want := range map[string]string{"configmaps": "configmaps.core", "ConfigMaps.core": "configmaps.core", "widgets": "widgets.example.com", "events.core": "events.core"} {
		if got, err := claimOf(asked, arg); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", arg, got, err, want)
		}
	}
	for arg, want := range map[string]string{"events": "write one of events.core, events.events.k8s.io", "secrets": "does not claim", "widgets.core": "does not claim"} {
		if got, err := claimOf(asked, arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", arg, got, err, want)
		}
	}
}

// TestMeant selects the claims that are answered. An identity that no claim has is a mistake.
func TestMeant(t *testing.T) {
	asked := []apis.PermissionClaim{{Resource: "secrets"}, {Group: "example.com", Resource: "widgets", IdentityHash: "a"}, {Group: "example.com", Resource: "widgets", IdentityHash: "b"}}
	for _, c := range []struct {
		resources []string
		identity  string
		want      int
	}{{nil, "", 3}, {[]string{"widgets"}, "", 2}, {[]string{"widgets"}, "b", 1}, {nil, "c", 0}, {[]string{"secrets"}, "a", 0}} {
		got, err := ClaimAnswer{resources: c.resources, identity: c.identity}.meant(asked)
		if len(got) != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%v with %q: %v, %v, want %d", c.resources, c.identity, got, err, c.want)
		}
	}
}

// TestConsentNamesRisks says what writes of some kinds allow beyond their objects.
func TestConsentNamesRisks(t *testing.T) {
	for _, c := range []struct {
		group, resource, verb, want string
	}{
		{"", "secrets", "get", "passwords"},
		{"rbac.authorization.k8s.io", "roles", "create", "who may do what"},
		{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", "*", "change and refuse"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "delete", "with all their objects"},
	} {
		text := consent(apis.PermissionClaim{Group: c.group, Resource: c.resource, Verbs: []string{c.verb}}, apis.PermissionClaimSelector{MatchAll: true})
		if !strings.Contains(text, c.want) {
			t.Errorf("%s does not say %q", text, c.want)
		}
	}
	if text := risk(apis.PermissionClaim{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations", Verbs: []string{"get", "list"}}); text != "" {
		t.Errorf("a claim to read: %s", text)
	}
}
