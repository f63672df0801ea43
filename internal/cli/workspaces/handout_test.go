package workspaces

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/cli/kubeconfig"
)

// TestBare checks that a kubeconfig for a program is complete and independent of its location, and
// has no credentials of the user.
func TestBare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority, err := os.ReadFile("../testdata/ca.crt") // no server uses it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	mine := api.NewConfig()
	mine.CurrentContext = "mine"
	mine.Contexts["mine"] = &api.Context{Cluster: "mine", AuthInfo: "me", Namespace: "dev"}
	mine.Clusters["mine"] = &api.Cluster{
		Server: "https://kcp.example.com/clusters/root:org", CertificateAuthority: "ca.crt", TLSServerName: "kcp",
		ProxyURL: "http://me:secret-proxy@proxy.example.com", DisableCompression: true,
	}
	mine.AuthInfos["me"] = &api.AuthInfo{
		Token: "secret-token", Username: "", ClientCertificateData: []byte("secret-certificate"), ClientKeyData: []byte("secret-key"),
		Impersonate: "secret-boss",
	}
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*mine, file); err != nil {
		t.Fatal(err)
	}
	s, err := kubeconfig.Open(&genericclioptions.ConfigFlags{KubeConfig: &file})
	if err != nil {
		t.Fatal(err)
	}
	config, err := bareConfig(s, s.Here.At("root:org:team"), "deployer")
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret") || len(config.AuthInfos) > 0 {
		t.Errorf("it has something of its maker:\n%s", text)
	}
	cl := config.Clusters["root:org:team"]
	if cl == nil || cl.Server != "https://kcp.example.com/clusters/root:org:team" || string(cl.CertificateAuthorityData) != string(authority) || cl.CertificateAuthority != "" ||
		cl.TLSServerName != "kcp" || cl.ProxyURL != "http://proxy.example.com" || !cl.DisableCompression || config.CurrentContext != "root:org:team" {
		t.Errorf("the server cannot be reached with %+v, context %s", cl, config.CurrentContext)
	}
}

// TestHandoutAs checks which arguments are the name of a service account and which are a
// workspace.
func TestHandoutAs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ as, args, account, rest, err string }{
		{"deployer", "", "deployer", "", ""},
		{"deployer", "team", "deployer", "team", ""},
		{"serviceaccount", "deployer", "deployer", "", ""},
		{"sa", "team deployer", "deployer", "team", ""},
		{"serviceaccount", "", "", "", "needs a name"},
		{"user", "ann", "", "", "run: kubectl ws share ann --role edit"},
		{"User", "team ann", "", "", "run: kubectl ws share ann --role edit"},
		{"group", "devs", "", "", "run: kubectl ws share devs --group --role edit"},
		{"user", "", "", "", "run: kubectl ws share NAME --role edit"},
	} {
		h := handout{as: c.as, ttl: ttl}
		rest, err := h.split(strings.Fields(c.args))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("--as %s %s: %v, want %q", c.as, c.args, err, c.err)
			}
			continue
		}
		if err == nil {
			err = h.name("")
		}
		if err != nil || h.account != c.account || strings.Join(rest, " ") != c.rest {
			t.Errorf("--as %s %s: account %q, left %q, %v", c.as, c.args, h.account, rest, err)
		}
	}
}

// TestHandoutFile checks that files with other content are not replaced.
func TestHandoutFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, contexts := range map[string][]string{"same": {"root:a"}, "other": {"root:b"}, "both": {"root:a", "root:b"}, "none": nil} {
		config := api.NewConfig()
		for _, c := range contexts {
			config.Contexts[c] = &api.Context{Cluster: c}
		}
		if err := clientcmd.WriteToFile(*config, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("my diary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"same": true, "missing": true, "other": false, "both": false, "none": false, "text": false} {
		if err := (handout{file: filepath.Join(dir, name)}).checkFile("root:a"); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
