package authn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
)

// adminTokens are the tokens of the administrators in tests.
var adminTokens = AdminTokens{Kcp: "token-of-kcp-admin", Shard: "token-of-shard-admin"}

func TestAdminsAreKnownByToken(t *testing.T) {
	a := NewAdmins(adminTokens)
	hash := sha256.Sum256([]byte(adminTokens.Shard))
	for token, want := range map[string]*user.DefaultInfo{
		adminTokens.Kcp:   {Name: "kcp-admin", Groups: []string{"system:kcp:admin"}},
		adminTokens.Shard: {Name: "shard-admin", Groups: []string{"system:masters"}},
		"":                nil, "x": nil, adminTokens.Kcp + "x": nil, adminTokens.Kcp[1:]: nil,
		hex.EncodeToString(hash[:]): nil, string(hash[:]): nil,
	} {
		r, ok, err := a.AuthenticateToken(context.Background(), token)
		if err != nil || ok != (want != nil) {
			t.Errorf("%q: %v, %v", token, ok, err)
		} else if ok && cmp.Diff(want, r.User) != "" {
			t.Error(cmp.Diff(want, r.User))
		}
	}
}
