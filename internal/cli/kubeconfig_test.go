package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

func TestParsePlace(t *testing.T) {
	for server, want := range map[string]place{
		"https://h:6443/clusters/root":          {"https://h:6443", "root"},
		"https://h/clusters/root:org:team/":     {"https://h", "root:org:team"},
		"https://h/some/proxy/clusters/2okdr":   {"https://h/some/proxy", "2okdr"},
		"http://[::1]:80/clusters/system:admin": {"http://[::1]:80", "system:admin"},
	} {
		if got, ok := parsePlace(server); !ok || got != want || got.URL() != strings.TrimSuffix(server, "/") {
			t.Errorf("%s: %+v, %v; want %+v", server, got, ok, want)
		}
	}
	for _, server := range []string{
		"", "https://h", "https://h/", "https://h/clusters", "https://h/clusters/", "https://h/clusters/*", "h:6443/clusters/root",
		"https://h/clusters/root/api", "https://h/clusters/a1/clusters/b1", "https://h/clusters/root?x=y", "https://h/clusters/root#x",
		"https:///clusters/root", "ftp://h/clusters/root", "https://h/clusters/Root", "https://h/clusters/root//",
		"https://h/services/apiexport/root/widgets/clusters/root",
	} {
		if got, ok := parsePlace(server); ok {
			t.Errorf("%s is taken as %+v", server, got)
		}
	}
}

func FuzzParsePlace(f *testing.F) {
	for _, s := range []string{"https://h:1/clusters/root", "https://h/x/clusters/a1:b/", "https://h/clusters/", "https://h/%2f/clusters/root", "https://u:p@h/clusters/root", "https://h//clusters/root"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, server string) {
		at, ok := parsePlace(server)
		if !ok {
			return
		}
		if again, ok := parsePlace(at.URL()); !ok || again != at {
			t.Fatalf("%q is %+v, whose URL is %+v, %v", server, at, again, ok)
		}
	})
}

// TestKubeconfigKeepsOthers checks that entering a workspace changes only the necessary entries of
// the kubeconfig.
func TestKubeconfigKeepsOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:org:team")
	file := w.kubeconfig()
	before := load(t, file)
	steps := []struct{ to, current, previous string }{
		{"org", "root:org", "root"},
		{"team", "root:org:team", "root:org"},
		{":root:org:team", "root:org:team", "root:org"}, // nowhere new
		{"-", "root:org", "root:org:team"},
		{"-", "root:org:team", "root:org"},
	}
	for _, step := range steps {
		if got := call(t, file, "kubectl-ws", step.to); got.code != 0 {
			t.Fatalf("ws %s: %+v", step.to, got)
		}
		after := load(t, file)
		for name, want := range map[string]string{currentContext: step.current, previousContext: step.previous} {
			entry := after.Contexts[name]
			if entry == nil || entry.AuthInfo != "kcp-admin" || after.Clusters[entry.Cluster] == nil || after.Clusters[entry.Cluster].Server != w.URL+"/clusters/"+want {
				t.Fatalf("after ws %s: context %s is %+v, want %s", step.to, name, entry, want)
			}
		}
		if after.CurrentContext != currentContext {
			t.Fatalf("after ws %s: the current context is %s", step.to, after.CurrentContext)
		}
		after.CurrentContext = before.CurrentContext
		for _, ours := range []string{currentContext, previousContext} {
			delete(after.Contexts, ours)
			delete(after.Clusters, ours)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("ws %s changed more than its own: %s", step.to, diff)
		}
	}
}

// TestFromAnyContext checks navigation from contexts of all kinds.
func TestFromAnyContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org", "root:other", "root:other:x")
	file := w.kubeconfig()
	config := load(t, file)
	config.Clusters["mine"] = &api.Cluster{Server: w.URL + "/clusters/root:other", TLSServerName: "mine"}
	config.Contexts["mine"] = &api.Context{Cluster: "mine", AuthInfo: "me", Namespace: "dev"}
	config.AuthInfos["me"] = &api.AuthInfo{Token: "mine"}
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	call(t, file, "kubectl-ws", "org")
	if got := call(t, file, "kubectl-ws", "x", "--context", "mine"); got.code != 0 || !strings.Contains(got.out, "'root:other:x'") {
		t.Fatalf("got %+v", got)
	}
	after := load(t, file)
	entry, cl := after.Contexts[currentContext], after.Clusters[currentContext]
	if entry.AuthInfo != "me" || entry.Namespace != "dev" || cl.TLSServerName != "mine" || cl.Server != w.URL+"/clusters/root:other:x" {
		t.Errorf("the current context is %+v of %+v, want one like mine", entry, cl)
	}
	if got := after.Contexts[previousContext]; got.Cluster != "mine" || got.AuthInfo != "me" {
		t.Errorf("the previous context is %+v, want mine", got)
	}
	if got := call(t, file, "kubectl-ws", "-"); got.code != 0 || !strings.Contains(got.out, "'root:other'") {
		t.Errorf("got %+v", got)
	}
	if got := load(t, file).Contexts["mine"]; got.Cluster != "mine" || got.AuthInfo != "me" {
		t.Errorf("mine became %+v", got)
	}
}

func TestNotInAWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	for _, line := range []string{"ws .", "ws :root:org", "ws tree", "ws create x", "create-workspace x", "ws -"} {
		got := call(t, file, append(strings.Fields("kubectl-"+line), "--context", "base")...)
		want := "error: context \"base\" is not of a workspace: its server " + w.URL + " does not end in /clusters/PATH; run: kubectl config use-context root\n"
		if got != (result{err: want, code: 1}) {
			t.Errorf("%s: got %+v, want %q", line, got, want)
		}
	}
	if got := call(t, file, "kubectl-ws", ".", "--context", "none"); got.code != 1 || !strings.Contains(got.err, "kubectl config get-contexts") {
		t.Errorf("unknown context: %+v", got)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := call(t, empty, "kubectl-ws", "."); got.code != 1 || !strings.Contains(got.err, "set KUBECONFIG to a kubeconfig") {
		t.Errorf("empty kubeconfig: %+v", got)
	}
}

// TestSeveralFiles checks KUBECONFIG as a list: new entries go to the first file, existing ones stay
// in their file, and relative paths of certificates stay valid.
func TestSeveralFiles(t *testing.T) {
	w := newWorld(t, "root:org", "root:org:team")
	first, second := filepath.Join(t.TempDir(), "first"), w.kubeconfig()
	if err := os.WriteFile(first, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(read(t, second), "token: secret", "tokenFile: token")
	if err := os.WriteFile(filepath.Join(filepath.Dir(second), "token"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(second, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", first+string(filepath.ListSeparator)+second)
	for _, to := range []string{"org", "team", ".."} {
		if got := call(t, "", "kubectl-ws", to); got.code != 0 {
			t.Fatalf("ws %s: %+v", to, got)
		}
	}
	added := load(t, first)
	if got := added.Clusters[added.Contexts[currentContext].Cluster].Server; got != w.URL+"/clusters/root:org" || added.Contexts[previousContext] == nil {
		t.Errorf("the first file has %+v", added)
	}
	if len(added.AuthInfos) != 0 || added.Contexts["root"] != nil {
		t.Errorf("the first file got entries of the second: %+v", added)
	}
	changed := load(t, second)
	if changed.Contexts[currentContext] != nil || changed.AuthInfos["kcp-admin"].TokenFile != "token" {
		t.Errorf("the second file was changed: %+v", changed)
	}
}

func TestCertificateOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "root:org")
	with := filepath.Join(dir, "a", "config")
	config := load(t, w.kubeconfig())
	config.Clusters["root"].CertificateAuthority = "ca.crt"
	if err := clientcmd.WriteToFile(*config, with); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "ca.crt"), []byte(certificate), 0o600); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(dir, "first")
	if err := os.WriteFile(first, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", first+string(filepath.ListSeparator)+with)
	if got := call(t, "", "kubectl-ws", "org"); got.code != 0 {
		t.Fatalf("got %+v", got)
	}
	if got := load(t, first).Clusters[currentContext].CertificateAuthority; filepath.Join(dir, got) != filepath.Join(dir, "a", "ca.crt") {
		t.Errorf("the certificate is now at %q", got)
	}
	if got := load(t, with).Clusters["root"].CertificateAuthority; got != "ca.crt" {
		t.Errorf("the certificate was at ca.crt and is now at %q", got)
	}
}

func TestCreateContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	call(t, file, "kubectl-ws", "org")
	for _, c := range []struct{ line, out, err string }{
		{"create-context", "Created context \"root:org\" and switched to it.\n", ""},
		{"create-context", "", "error: context \"root:org\" already exists in the kubeconfig; add --overwrite to replace it\n"},
		{"create-context mine -w ..", "Created context \"mine\" and switched to it.\n", ""},
		{"create-context mine --context root:org --overwrite", "Updated context \"mine\" and switched to it.\n", ""},
	} {
		if got := call(t, file, append([]string{"kubectl-ws"}, strings.Fields(c.line)...)...); got.out != c.out || got.err != c.err {
			t.Fatalf("%s: got %+v", c.line, got)
		}
	}
	config := load(t, file)
	if config.CurrentContext != "mine" || config.Clusters["mine"].Server != w.URL+"/clusters/root:org" || config.Clusters["root:org"].Server != w.URL+"/clusters/root:org" {
		t.Errorf("got %+v", config)
	}
}

// certificate is a valid certificate of an authority, which no server uses.
const certificate = `-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIUdTP9wpDBlXJNmdtZok+K0VBk2xswCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMjEwMDI0MDFaGA8yMTI2MTAyODAwMjQw
MVowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABCPu
18OEb30sBjCBq8uKCl22gE5QPCsDzCO4EZREzhh6nrYZCPYJHmlhBdREJ8ZIq4aZ
E6SN5VinGiKA1tuLW/6jUzBRMB0GA1UdDgQWBBSJwt+t3hhuT61L1iXU/h1BtcDO
ZTAfBgNVHSMEGDAWgBSJwt+t3hhuT61L1iXU/h1BtcDOZTAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0gAMEUCIAQmc2Zx16gcA3NvylDRoRCa0XHu+3JnuDKm
nk5nAEEdAiEA01m9zjwGR50V2LSe2xU+0O44IMan6pL7WCK/4CirADY=
-----END CERTIFICATE-----`
