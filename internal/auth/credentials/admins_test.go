package credentials

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/auth/authn"
)

const host = "https://127.0.0.1:6443"

// start returns the tokens of the administrators as a server has them after its start.
func start(t *testing.T, files AdminFiles) authn.AdminTokens {
	t.Helper()
	tokens, err := files.tokens()
	if err != nil {
		t.Fatal(err)
	}
	if err := files.WriteKubeconfig(tokens, host, []byte("CA")); err != nil {
		t.Fatal(err)
	}
	return tokens
}

func adminFiles(t *testing.T) AdminFiles {
	dir := filepath.Join(t.TempDir(), "root")
	return AdminFiles{Kubeconfig: filepath.Join(dir, "admin.kubeconfig"), TokenStore: filepath.Join(dir, ".admin-token-store")}
}

func TestKubeconfig(t *testing.T) {
	files := adminFiles(t)
	a := start(t, files)
	onlyFile(t, files.Kubeconfig)
	onlyFile(t, files.TokenStore)
	got, err := clientcmd.LoadFromFile(files.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	type context struct{ Server, CA, Token string }
	contexts := map[string]context{}
	for name, c := range got.Contexts {
		cluster, u := got.Clusters[c.Cluster], got.AuthInfos[c.AuthInfo]
		contexts[name] = context{cluster.Server, string(cluster.CertificateAuthorityData), u.Token}
	}
	if diff := cmp.Diff(map[string]context{
		"root":         {host + "/clusters/root", "CA", a.Kcp},
		"base":         {host, "CA", a.Kcp},
		"system:admin": {host + "/clusters/system:admin", "CA", a.Shard},
		"shard-base":   {host, "CA", a.Shard},
	}, contexts); diff != "" {
		t.Error(diff)
	}
	if got.CurrentContext != "root" || got.AuthInfos["kcp-admin"] == nil || got.AuthInfos["shard-admin"] == nil || len(got.Clusters) != 3 {
		t.Errorf("%+v", got)
	}
	if kubeconfig(a, host+"/", nil).Clusters["root"].Server != host+"/clusters/root" {
		t.Error("a slash at the end of the host is doubled")
	}
}

func TestAdminsAcrossStarts(t *testing.T) {
	write := func(path string, data string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(token string) string { s := sha256.Sum256([]byte(token)); return string(s[:]) }
	planted := func(token string) string {
		config := clientcmdapi.NewConfig()
		config.AuthInfos[authn.ShardAdmin], config.AuthInfos[authn.KcpAdmin] = &clientcmdapi.AuthInfo{Token: token}, &clientcmdapi.AuthInfo{Token: token}
		data, err := clientcmd.Write(*config)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for name, tt := range map[string]struct {
		between func(AdminFiles)
		kept    bool
	}{
		"untouched":            {func(AdminFiles) {}, true},
		"kubeconfig lost":      {func(f AdminFiles) { _ = os.Remove(f.Kubeconfig) }, false},
		"kubeconfig broken":    {func(f AdminFiles) { write(f.Kubeconfig, "{") }, false},
		"kubeconfig empty":     {func(f AdminFiles) { write(f.Kubeconfig, "") }, false},
		"a token planted":      {func(f AdminFiles) { write(f.Kubeconfig, planted("mine")) }, false},
		"no token, hash of it": {func(f AdminFiles) { write(f.Kubeconfig, planted("")); write(f.TokenStore, sum("")) }, false},
		"hash lost":            {func(f AdminFiles) { _ = os.Remove(f.TokenStore) }, false},
		"hash of another":      {func(f AdminFiles) { write(f.TokenStore, sum("other")) }, false},
		"hash broken":          {func(f AdminFiles) { write(f.TokenStore, "broken") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			files := adminFiles(t)
			before := start(t, files)
			tt.between(files)
			after := start(t, files)
			if (before.Shard == after.Shard) != tt.kept {
				t.Errorf("the shard admin's token is kept: %v, want %v", !tt.kept, tt.kept)
			}
			if (before.Kcp == after.Kcp) != tt.kept {
				t.Errorf("the token of kcp-admin is kept: %v, want %v", !tt.kept, tt.kept)
			}
			onlyFile(t, files.TokenStore)
			for _, planted := range []string{"mine", ""} {
				if _, ok, _ := authn.NewAdmins(after).AuthenticateToken(t.Context(), planted); ok {
					t.Errorf("the token %q is accepted", planted)
				}
			}
			if again := start(t, files); again.Shard != after.Shard || again.Kcp != after.Kcp {
				t.Error("the tokens made then are not kept")
			}
		})
	}
	t.Run("hash as the existing kcp writes it", func(t *testing.T) {
		files := adminFiles(t)
		before := start(t, files)
		write(files.TokenStore, sum(before.Shard))
		after := start(t, files)
		if after.Shard != before.Shard {
			t.Error("the token is not kept")
		}
		if after.Kcp == before.Kcp {
			t.Error("a token without a stored hash is kept")
		}
		if again := start(t, files); again.Kcp != after.Kcp || again.Shard != before.Shard {
			t.Error("the tokens are not kept over another start")
		}
	})
	t.Run("nowhere to write", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		write(file, "")
		if _, err := (AdminFiles{TokenStore: filepath.Join(file, "store")}).tokens(); err == nil {
			t.Error("no error for a token store below a file")
		}
		files := AdminFiles{Kubeconfig: filepath.Join(file, "kubeconfig")}
		tokens, err := files.tokens()
		if err != nil {
			t.Fatal(err)
		}
		if err := files.WriteKubeconfig(tokens, host, nil); err == nil {
			t.Error("no error for a kubeconfig below a file")
		}
	})
}

func FuzzTokenStore(f *testing.F) {
	hash := sha256.Sum256([]byte("token"))
	f.Add(hash[:])
	f.Add([]byte(hex.EncodeToString(hash[:]) + "\n"))
	f.Add(tokenHashes{(*tokenHash)(&hash), (*tokenHash)(&hash)}.encode())
	f.Add([]byte(""))
	f.Add([]byte("broken"))
	f.Fuzz(func(t *testing.T, data []byte) {
		hashes := parseTokenStore(data)
		switch {
		case hashes.shard == nil && hashes.kcp != nil:
			t.Fatalf("%q: a hash of kcp-admin alone", data)
		case hashes.shard == nil:
			return
		case hashes.kcp == nil:
			hashes.kcp = &tokenHash{}
		}
		// Written hashes can be read.
		again := parseTokenStore(hashes.encode())
		if again.shard == nil || again.kcp == nil || *again.shard != *hashes.shard || *again.kcp != *hashes.kcp {
			t.Fatalf("%q: %v, then %v", data, hashes, again)
		}
		if n := len(data); n != 32 && n != 64 && n != 65 && n != 129 && n != 130 {
			t.Fatalf("%q has no hashes", data)
		}
	})
}

// A restart keeps additions of users to the kubeconfig, and updates their URLs when that of the
// server has changed.
func TestKubeconfigKeepsAdditions(t *testing.T) {
	dir := t.TempDir()
	files := AdminFiles{Kubeconfig: filepath.Join(dir, "admin.kubeconfig"), TokenStore: filepath.Join(dir, "store")}
	for i, host := range []string{"https://127.0.0.1:1111", "https://127.0.0.1:2222"} {
		tokens, err := files.tokens()
		if err != nil {
			t.Fatal(err)
		}
		if err := files.WriteKubeconfig(tokens, host, []byte(host)); err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.LoadFromFile(files.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			config.Clusters["mine"] = &clientcmdapi.Cluster{Server: host + "/clusters/root:mine", CertificateAuthorityData: []byte(host)}
			config.Clusters["other"] = &clientcmdapi.Cluster{Server: "https://example.com/clusters/root"}
			config.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: "t"}
			config.Contexts["mine"] = &clientcmdapi.Context{Cluster: "mine", AuthInfo: "me"}
			config.CurrentContext = "mine"
			if err := clientcmd.WriteToFile(*config, files.Kubeconfig); err != nil {
				t.Fatal(err)
			}
			continue
		}
		mine := config.Clusters["mine"]
		if config.CurrentContext != "mine" || mine.Server != host+"/clusters/root:mine" || string(mine.CertificateAuthorityData) != host {
			t.Errorf("current context %q, cluster %+v", config.CurrentContext, mine)
		}
		if config.Clusters["other"].Server != "https://example.com/clusters/root" || config.AuthInfos["me"].Token != "t" {
			t.Errorf("what is not ours was changed: %+v", config)
		}
		if config.Clusters["root"].Server != host+"/clusters/root" {
			t.Errorf("root is at %s", config.Clusters["root"].Server)
		}
	}
}
