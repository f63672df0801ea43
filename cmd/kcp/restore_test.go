package main

import (
	"testing"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// --new-credentials leaves out what servers share, and nothing else.
func TestNewCredentials(t *testing.T) {
	if without := (&restore{}).target().Without; without != nil {
		t.Error("keys are left out by default")
	}
	without := (&restore{newCredentials: true}).target().Without
	for _, name := range []string{"serving-authority", "service-account-key", "service-account-signer", "admin-tokens"} {
		if !without(keys.SystemKey(cluster.Admin, "common", name).Path()) {
			t.Errorf("%s is restored", name)
		}
	}
	for _, key := range []string{keys.Fence("root").Path(), keys.Note("meta"), "/n/core/secrets/-/common/default/admin-tokens"} {
		if without(key) {
			t.Errorf("%s is left out", key)
		}
	}
}
