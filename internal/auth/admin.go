package auth

import (
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
)

// Names of the server's own administrators.
const (
	// KcpAdmin is in [AdminGroup]. Its token is another one after every start.
	KcpAdmin = "kcp-admin"

	// ShardAdmin is in system:masters. Its token outlives restarts.
	ShardAdmin = "shard-admin"
)

// AdminFiles says where the credentials of administrators are kept. With its zero
// value they are kept in memory only.
type AdminFiles struct {
	// Kubeconfig is the file with the tokens of both administrators.
	Kubeconfig string

	// TokenStore is the file with the SHA-256 of the shard admin's token. It lets
	// a token from Kubeconfig be used again without being trusted for being there.
	TokenStore string

	// Tokens, if set, are the tokens, which other processes know as well. Then none
	// are made, and there is no TokenStore.
	Tokens *AdminTokens
}

// AdminTokens are the tokens of both administrators.
type AdminTokens struct {
	Kcp   string `json:"kcp"`
	Shard string `json:"shard"`
}

// Admins are the server's own administrators, known by their tokens.
type Admins struct {
	files    AdminFiles
	kcp      string
	shard    string
	kcpHash  [sha256.Size]byte
	shardSum [sha256.Size]byte
}

var _ authenticator.Token = (*Admins)(nil)

// NewAdmins makes tokens for the administrators, or takes over that of the shard
// admin from an earlier start.
func NewAdmins(files AdminFiles) (*Admins, error) {
	a := &Admins{files: files, kcp: rand.Text()}
	if t := files.Tokens; t != nil {
		a.kcp, a.shard = t.Kcp, t.Shard
		a.kcpHash, a.shardSum = sha256.Sum256([]byte(a.kcp)), sha256.Sum256([]byte(a.shard))
		return a, nil
	}
	a.kcpHash = sha256.Sum256([]byte(a.kcp))
	stored, known, err := readTokenStore(files.TokenStore)
	if err != nil {
		return nil, err
	}
	if known {
		old := shardToken(files.Kubeconfig)
		if sum := sha256.Sum256([]byte(old)); old != "" && subtle.ConstantTimeCompare(sum[:], stored[:]) == 1 {
			a.shard, a.shardSum = old, sum
			return a, nil
		}
	}
	a.shard = rand.Text()
	a.shardSum = sha256.Sum256([]byte(a.shard))
	if files.TokenStore != "" {
		if err := replaceFile(files.TokenStore, []byte(hex.EncodeToString(a.shardSum[:])+"\n")); err != nil {
			return nil, fmt.Errorf("keep the hash of the token of %s: %w", ShardAdmin, err)
		}
	}
	return a, nil
}

// AuthenticateToken implements [authenticator.Token].
func (a *Admins) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	sum := sha256.Sum256([]byte(token))
	switch {
	case subtle.ConstantTimeCompare(sum[:], a.kcpHash[:]) == 1:
		return &authenticator.Response{User: &user.DefaultInfo{Name: KcpAdmin, Groups: []string{AdminGroup}}}, true, nil
	case subtle.ConstantTimeCompare(sum[:], a.shardSum[:]) == 1:
		return &authenticator.Response{User: &user.DefaultInfo{Name: ShardAdmin, Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	}
	return nil, false, nil
}

// Kubeconfig returns the credentials of both administrators for the server at
// host, e.g. https://127.0.0.1:6443, whose certificate is signed by ca (PEM).
func (a *Admins) Kubeconfig(host string, ca []byte) *clientcmdapi.Config {
	host = strings.TrimSuffix(host, "/")
	config := clientcmdapi.NewConfig()
	for name, server := range map[string]string{
		"root": host + "/clusters/root", "base": host, "system:admin": host + "/clusters/system:admin",
	} {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	}
	config.AuthInfos[KcpAdmin] = &clientcmdapi.AuthInfo{Token: a.kcp}
	config.AuthInfos[ShardAdmin] = &clientcmdapi.AuthInfo{Token: a.shard}
	config.Contexts["root"] = &clientcmdapi.Context{Cluster: "root", AuthInfo: KcpAdmin}
	config.Contexts["base"] = &clientcmdapi.Context{Cluster: "base", AuthInfo: KcpAdmin}
	config.Contexts["system:admin"] = &clientcmdapi.Context{Cluster: "system:admin", AuthInfo: ShardAdmin}
	config.Contexts["shard-base"] = &clientcmdapi.Context{Cluster: "base", AuthInfo: ShardAdmin}
	config.CurrentContext = "root"
	return config
}

// WriteKubeconfig writes what Kubeconfig returns to the file that a was made
// with, or nowhere if there is none. What users added to the file stays: the
// contexts of the workspaces they are in, which are moved to host, and which
// context is current.
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

// keepAdditions adds to config what old has besides.
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

// readTokenStore returns the hash in the file at path, and whether there is one.
func readTokenStore(path string) (sum [sha256.Size]byte, ok bool, err error) {
	if path == "" {
		return sum, false, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return sum, false, nil
	}
	if err != nil {
		return sum, false, fmt.Errorf("read the hash of the token of %s: %w", ShardAdmin, err)
	}
	sum, ok = parseTokenStore(data)
	return sum, ok, nil
}

// parseTokenStore reads a SHA-256 in hexadecimal digits, or its bare 32 bytes as
// the existing kcp writes them. Anything else is no hash: then no old token is
// trusted and a new one is made.
func parseTokenStore(data []byte) (sum [sha256.Size]byte, ok bool) {
	if len(data) == len(sum) {
		return [sha256.Size]byte(data), true
	}
	raw, err := hex.DecodeString(strings.TrimSuffix(string(data), "\n"))
	if err != nil || len(raw) != len(sum) {
		return sum, false
	}
	return [sha256.Size]byte(raw), true
}

// shardToken returns the shard admin's token in the kubeconfig at path. A file
// that is missing or broken has none: it is about to be written anew.
func shardToken(path string) string {
	if path == "" {
		return ""
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil || config.AuthInfos[ShardAdmin] == nil {
		return ""
	}
	return config.AuthInfos[ShardAdmin].Token
}
