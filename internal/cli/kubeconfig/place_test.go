package kubeconfig

import (
	"strings"
	"testing"
)

func TestParsePlace(t *testing.T) {
	for server, want := range map[string]Place{
		"https://h:6443/clusters/root":          {"https://h:6443", "root"},
		"https://h/clusters/root:org:team/":     {"https://h", "root:org:team"},
		"https://h/some/proxy/clusters/2okdr":   {"https://h/some/proxy", "2okdr"},
		"http://[::1]:80/clusters/system:admin": {"http://[::1]:80", "system:admin"},
	} {
		if got, ok := ParsePlace(server); !ok || got != want || got.URL() != strings.TrimSuffix(server, "/") {
			t.Errorf("%s: %+v, %v; want %+v", server, got, ok, want)
		}
	}
	for _, server := range []string{
		"", "https://h", "https://h/", "https://h/clusters", "https://h/clusters/", "https://h/clusters/*", "h:6443/clusters/root",
		"https://h/clusters/root/api", "https://h/clusters/a1/clusters/b1", "https://h/clusters/root?x=y", "https://h/clusters/root#x",
		"https:///clusters/root", "ftp://h/clusters/root", "https://h/clusters/Root", "https://h/clusters/root//",
		"https://h/services/apiexport/root/widgets/clusters/root",
	} {
		if got, ok := ParsePlace(server); ok {
			t.Errorf("%s is taken as %+v", server, got)
		}
	}
}

func FuzzParsePlace(f *testing.F) {
	for _, s := range []string{"https://h:1/clusters/root", "https://h/x/clusters/a1:b/", "https://h/clusters/", "https://h/%2f/clusters/root", "https://u:p@h/clusters/root", "https://h//clusters/root"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, server string) {
		at, ok := ParsePlace(server)
		if !ok {
			return
		}
		if again, ok := ParsePlace(at.URL()); !ok || again != at {
			t.Fatalf("%q is %+v, whose URL is %+v, %v", server, at, again, ok)
		}
	})
}
