package credentials

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/storage/store"
)

// AdminFiles names the files with the credentials of the server's own administrators. Its zero value
// keeps the credentials in memory only.
type AdminFiles struct {
	// Kubeconfig is the file with the tokens of both administrators.
	Kubeconfig string

	// TokenStore is the file with the SHA-256 hashes of both tokens. A token in
	// Kubeconfig is kept over a restart only if it has the hash that is stored here.
	TokenStore string
}

// Admins returns the tokens of the administrators. Servers on one etcd share them there. If the etcd is
// embedded in this process, the files have the tokens of an earlier start, and missing tokens are
// generated.
func Admins(ctx context.Context, s *store.Store, files AdminFiles) (authn.AdminTokens, error) {
	if s.Shared() {
		return sharedAdmins(ctx, s)
	}
	return files.tokens()
}

// sharedAdmins returns the tokens that all servers on this etcd have.
func sharedAdmins(ctx context.Context, s *store.Store) (authn.AdminTokens, error) {
	var tokens authn.AdminTokens
	data, err := s.SharedValue(ctx, "admin-tokens", func() ([]byte, error) {
		return json.Marshal(authn.AdminTokens{Kcp: rand.Text(), Shard: rand.Text()})
	})
	if err != nil {
		return tokens, err
	}
	if err := json.Unmarshal(data, &tokens); err != nil || tokens.Kcp == "" || tokens.Shard == "" {
		return tokens, errors.Join(errors.New("the tokens of the administrators of the servers on this etcd are damaged"), err)
	}
	return tokens, nil
}

// tokens reads the tokens of an earlier start, and generates the missing ones.
func (f AdminFiles) tokens() (authn.AdminTokens, error) {
	stored, err := readTokenStore(f.TokenStore)
	if err != nil {
		return authn.AdminTokens{}, err
	}
	hashes := parseTokenStore(stored)
	t := authn.AdminTokens{
		Kcp:   keptToken(f.Kubeconfig, authn.KcpAdmin, hashes.kcp),
		Shard: keptToken(f.Kubeconfig, authn.ShardAdmin, hashes.shard),
	}
	kcp, shard := hashOf(t.Kcp), hashOf(t.Shard)
	next := tokenHashes{shard: &shard, kcp: &kcp}.encode()
	if f.TokenStore == "" || bytes.Equal(next, stored) {
		return t, nil
	}
	if err := replaceFile(f.TokenStore, next); err != nil {
		return authn.AdminTokens{}, fmt.Errorf("write the hashes of the tokens of the administrators: %w", err)
	}
	return t, nil
}

// kubeconfig returns the credentials of both administrators. host is the URL of the server,
// e.g. https://127.0.0.1:6443; ca is the PEM certificate of the CA of its certificate.
func kubeconfig(t authn.AdminTokens, host string, ca []byte) *clientcmdapi.Config {
	host = strings.TrimSuffix(host, "/")
	config := clientcmdapi.NewConfig()
	for name, server := range map[string]string{
		"root": host + "/clusters/root", "base": host, "system:admin": host + "/clusters/system:admin",
	} {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	}
	config.AuthInfos[authn.KcpAdmin] = &clientcmdapi.AuthInfo{Token: t.Kcp}
	config.AuthInfos[authn.ShardAdmin] = &clientcmdapi.AuthInfo{Token: t.Shard}
	config.Contexts["root"] = &clientcmdapi.Context{Cluster: "root", AuthInfo: authn.KcpAdmin}
	config.Contexts["base"] = &clientcmdapi.Context{Cluster: "base", AuthInfo: authn.KcpAdmin}
	config.Contexts["system:admin"] = &clientcmdapi.Context{Cluster: "system:admin", AuthInfo: authn.ShardAdmin}
	config.Contexts["shard-base"] = &clientcmdapi.Context{Cluster: "base", AuthInfo: authn.ShardAdmin}
	config.CurrentContext = "root"
	return config
}

// WriteKubeconfig writes the kubeconfig of the administrators for the server at host, whose CA is ca in
// PEM. Without a file it does nothing. It keeps the current context, and the clusters, users and
// contexts that users added. Added clusters of workspaces are moved to host.
func (f AdminFiles) WriteKubeconfig(t authn.AdminTokens, host string, ca []byte) error {
	if f.Kubeconfig == "" {
		return nil
	}
	config := kubeconfig(t, host, ca)
	if old, err := clientcmd.LoadFromFile(f.Kubeconfig); err == nil { // else there is nothing to keep
		keepAdditions(config, old)
	}
	data, err := clientcmd.Write(*config)
	if err == nil {
		err = replaceFile(f.Kubeconfig, data)
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

type tokenHash [sha256.Size]byte

func hashOf(token string) tokenHash { return sha256.Sum256([]byte(token)) }

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
func keptToken(path, user string, hash *tokenHash) string {
	if config, err := clientcmd.LoadFromFile(path); err == nil && hash != nil && config.AuthInfos[user] != nil {
		kept := config.AuthInfos[user].Token
		of := hashOf(kept)
		if kept != "" && subtle.ConstantTimeCompare(of[:], hash[:]) == 1 {
			return kept
		}
	}
	return rand.Text()
}
