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
