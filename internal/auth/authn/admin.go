package authn

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/auth"
)

// Names of the server's own administrators.
const (
	// KcpAdmin is in [AdminGroup].
	KcpAdmin = "kcp-admin"

	// ShardAdmin is in system:masters.
	ShardAdmin = "shard-admin"
)

// AdminFiles names the files with the credentials of administrators. Its zero value keeps
// the credentials in memory only.
type AdminFiles struct {
	// Kubeconfig is the file with the tokens of both administrators.
	Kubeconfig string

	// TokenStore is the file with the SHA-256 hashes of both tokens. A token in
	// Kubeconfig is kept over a restart only if it has the hash that is stored here.
	TokenStore string

	// Tokens, if set, are the tokens to use, shared with other processes. NewAdmins then
	// generates none, and reads and writes no TokenStore.
	Tokens *AdminTokens
}

// AdminTokens are the tokens of both administrators.
type AdminTokens struct {
	Kcp   string `json:"kcp"`
	Shard string `json:"shard"`
}

// Admins authenticates the server's own administrators by their tokens.
type Admins struct {
	files      AdminFiles
	kcp, shard adminToken
}

// An adminToken is a token and its SHA-256 hash.
type adminToken struct {
	text string
	hash tokenHash
}

type tokenHash [sha256.Size]byte

func newAdminToken(text string) adminToken { return adminToken{text, sha256.Sum256([]byte(text))} }

// is reports whether hash is the hash of t, in constant time.
func (t adminToken) is(hash tokenHash) bool {
	return subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1
}

var _ authenticator.Token = (*Admins)(nil)

// NewAdmins reads the tokens of an earlier start from the files, and generates the missing
// ones.
func NewAdmins(files AdminFiles) (*Admins, error) {
	if t := files.Tokens; t != nil {
		return &Admins{files, newAdminToken(t.Kcp), newAdminToken(t.Shard)}, nil
	}
	stored, err := readTokenStore(files.TokenStore)
	if err != nil {
		return nil, err
	}
	hashes := parseTokenStore(stored)
	a := &Admins{
		files: files,
		kcp:   keptToken(files.Kubeconfig, KcpAdmin, hashes.kcp),
		shard: keptToken(files.Kubeconfig, ShardAdmin, hashes.shard),
	}
	next := tokenHashes{shard: &a.shard.hash, kcp: &a.kcp.hash}.encode()
	if files.TokenStore == "" || bytes.Equal(next, stored) {
		return a, nil
	}
	if err := replaceFile(files.TokenStore, next); err != nil {
		return nil, fmt.Errorf("write the hashes of the tokens of the administrators: %w", err)
	}
	return a, nil
}

// AuthenticateToken implements [authenticator.Token].
func (a *Admins) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	switch hash := sha256.Sum256([]byte(token)); {
	case a.kcp.is(hash):
		return &authenticator.Response{User: &user.DefaultInfo{Name: KcpAdmin, Groups: []string{auth.AdminGroup}}}, true, nil
	case a.shard.is(hash):
		return &authenticator.Response{User: &user.DefaultInfo{Name: ShardAdmin, Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	}
	return nil, false, nil
}

// Kubeconfig returns the credentials of both administrators. host is the URL of the server,
// e.g. https://127.0.0.1:6443; ca is the PEM certificate of the CA of its certificate.
func (a *Admins) Kubeconfig(host string, ca []byte) *clientcmdapi.Config {
	host = strings.TrimSuffix(host, "/")
	config := clientcmdapi.NewConfig()
	for name, server := range map[string]string{
		"root": host + "/clusters/root", "base": host, "system:admin": host + "/clusters/system:admin",
	} {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	}
	config.AuthInfos[KcpAdmin] = &clientcmdapi.AuthInfo{Token: a.kcp.text}
	config.AuthInfos[ShardAdmin] = &clientcmdapi.AuthInfo{Token: a.shard.text}
	config.Contexts["root"] = &clientcmdapi.Context{Cluster: "root", AuthInfo: KcpAdmin}
	config.Contexts["base"] = &clientcmdapi.Context{Cluster: "base", AuthInfo: KcpAdmin}
	config.Contexts["system:admin"] = &clientcmdapi.Context{Cluster: "system:admin", AuthInfo: ShardAdmin}
	config.Contexts["shard-base"] = &clientcmdapi.Context{Cluster: "base", AuthInfo: ShardAdmin}
	config.CurrentContext = "root"
	return config
}

// WriteKubeconfig writes the result of Kubeconfig to the file that a was made with. Without
// a file it does nothing. It keeps the current context, and the clusters, users and
// contexts that users added. Added clusters of workspaces are moved to host.
func (a *Admins) WriteKubeconfig(host string, ca []byte) error {
	if a.files.Kubeconfig == "" {
		return nil
	}
	config := a.Kubeconfig(host, ca)
	if old, err := clientcmd.LoadFromFile(a.files.Kubeconfig); err == nil { // else there is nothing to keep
		keepAdditions(config, old)
	}
	data, err := clientcmd.Write(*config)
	if err == nil {
		err = replaceFile(a.files.Kubeconfig, data)
	}
	if err != nil {
		return fmt.Errorf("write the kubeconfig of the administrators: %w", err)
	}
	return nil
}

// keepAdditions adds to config the clusters, users and contexts that only old has.
func keepAdditions(config, old *clientcmdapi.Config) {
	base, oldBase := config.Clusters["base"], old.Clusters["base"]
	for name, c := range old.Clusters {
		if _, ours := config.Clusters[name]; ours {
			continue
		}
		if oldBase != nil {
			if path, ok := strings.CutPrefix(c.Server, oldBase.Server+"/clusters/"); ok {
				c.Server, c.CertificateAuthorityData = base.Server+"/clusters/"+path, base.CertificateAuthorityData
			}
		}
		config.Clusters[name] = c
	}
	for name, u := range old.AuthInfos {
		if _, ours := config.AuthInfos[name]; !ours {
			config.AuthInfos[name] = u
		}
	}
	for name, c := range old.Contexts {
		if _, ours := config.Contexts[name]; !ours {
			config.Contexts[name] = c
		}
	}
	if _, ok := config.Contexts[old.CurrentContext]; ok {
		config.CurrentContext = old.CurrentContext
	}
}

// readTokenStore returns the content of the file at path, or nil if the file is missing.
func readTokenStore(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the hashes of the tokens of the administrators: %w", err)
	}
	return data, nil
}

// tokenHashes are the hashes in a token store. A missing hash is nil.
type tokenHashes struct{ shard, kcp *tokenHash }

// encode returns the content of a token store: two lines of hexadecimal digits. The first
// is the hash of the shard admin's token, the second that of kcp-admin's.
func (h tokenHashes) encode() []byte { return fmt.Appendf(nil, "%x\n%x\n", h.shard[:], h.kcp[:]) }

// parseTokenStore reads a token store. A single line is the hash of the shard admin's token
// alone. So are exactly 32 bytes, the format of the existing kcp. Any other content has no
// hashes: no token of an earlier start is then accepted.
func parseTokenStore(data []byte) tokenHashes {
	if len(data) == sha256.Size {
		hash := tokenHash(data)
		return tokenHashes{shard: &hash}
	}
	var hashes []*tokenHash
	for line := range strings.Lines(string(data)) {
		raw, err := hex.DecodeString(strings.TrimSuffix(line, "\n"))
		if err != nil || len(raw) != sha256.Size || len(hashes) == 2 {
			return tokenHashes{}
		}
		hash := tokenHash(raw)
		hashes = append(hashes, &hash)
	}
	switch len(hashes) {
	case 1:
		return tokenHashes{shard: hashes[0]}
	case 2:
		return tokenHashes{shard: hashes[0], kcp: hashes[1]}
	default:
		return tokenHashes{}
	}
}

// keptToken returns the token of a user in the kubeconfig at path if it matches hash.
// Otherwise it returns a new token. A missing or broken kubeconfig has no tokens.
func keptToken(path, user string, hash *tokenHash) adminToken {
	if config, err := clientcmd.LoadFromFile(path); err == nil && hash != nil && config.AuthInfos[user] != nil {
		if t := newAdminToken(config.AuthInfos[user].Token); t.text != "" && t.is(*hash) {
			return t
		}
	}
	return newAdminToken(rand.Text())
}
