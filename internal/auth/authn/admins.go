package authn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/auth"
)

// Names of the server's own administrators.
const (
	// KcpAdmin is in [auth.AdminGroup].
	KcpAdmin = "kcp-admin"

	// ShardAdmin is in system:masters.
	ShardAdmin = "shard-admin"
)

// AdminTokens are the tokens of both administrators.
type AdminTokens struct {
	Kcp   string `json:"kcp"`
	Shard string `json:"shard"`
}

// Admins authenticates the server's own administrators by their tokens.
type Admins struct{ kcp, shard [sha256.Size]byte } // hashes of the tokens

var _ authenticator.Token = (*Admins)(nil)

// NewAdmins returns Admins with these tokens.
func NewAdmins(t AdminTokens) *Admins {
	return &Admins{kcp: sha256.Sum256([]byte(t.Kcp)), shard: sha256.Sum256([]byte(t.Shard))}
}

// AuthenticateToken implements [authenticator.Token]. It compares in constant time.
func (a *Admins) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	hash := sha256.Sum256([]byte(token))
	is := func(known [sha256.Size]byte) bool { return subtle.ConstantTimeCompare(hash[:], known[:]) == 1 }
	switch {
	case is(a.kcp):
		return &authenticator.Response{User: &user.DefaultInfo{Name: KcpAdmin, Groups: []string{auth.AdminGroup}}}, true, nil
	case is(a.shard):
		return &authenticator.Response{User: &user.DefaultInfo{Name: ShardAdmin, Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	}
	return nil, false, nil
}
