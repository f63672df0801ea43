package server_test

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/server"
)

// bindable returns the exports of the given clusters that the person may bind, page by page.
func (p person) bindable(limit string, of ...*tenant) []apisv1alpha2.BindableExport {
	p.t.Helper()
	var found []apisv1alpha2.BindableExport
	for next := ""; ; {
		var list apisv1alpha2.BindableExportList
		if code, body := p.get("/services/bindableexports?limit="+limit+"&continue="+url.QueryEscape(next), &list); code != http.StatusOK {
			p.t.Fatalf("%d %s", code, body)
		}
		for _, e := range list.Items {
			if slices.ContainsFunc(of, func(c *tenant) bool { return string(c.name) == e.Cluster }) {
				found = append(found, e)
			}
		}
		if next = list.Continue; next == "" {
			return found
		}
	}
}

func exportNames(all []apisv1alpha2.BindableExport) (names []string) {
	for _, e := range all {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

// TestTheCatalogue shows the list of exports that a user may bind.
func TestTheCatalogue(t *testing.T) {
	t.Parallel()
	p, other := exporter(t), exporter(t)
	described := widgetExport("described", "v1")
	described.SetAnnotations(map[string]string{"kubernetes.io/description": "All about widgets. " + strings.Repeat("é", 1024)})
	p.create(apiExports, described)
	p.create(apiExports, widgetExport("third", "v1"))
	bob, eve := p.person("bob"), p.person("eve")
	p.allows("bind", rbacv1.UserKind, bob.info.Name, []string{"bind"}, "apiexports")
	for _, limit := range []string{"1", "2", ""} {
		if got := exportNames(bob.bindable(limit, p, other)); !slices.Equal(got, []string{"described", "third", "widgets"}) {
			t.Errorf("with limit %q bob may bind %v", limit, got)
		}
	}
	for _, e := range bob.bindable("", p) {
		if e.Name != "described" {
			continue
		}
		if !strings.HasPrefix(e.Description, "All about widgets. é") || len(e.Description) > 1024 || e.Path == "" ||
			len(e.Resources) != 1 || e.Resources[0].Resource != "widgets" || !slices.Equal(e.Resources[0].Versions, []string{"v1"}) {
			t.Errorf("described as %+v", e)
		}
	}
	if got := eve.bindable("", p, other); len(got) != 0 {
		t.Errorf("eve may bind %v", got)
	}
	if got := exportNames((person{t, p.server, server.System().(*user.DefaultInfo)}).bindable("", p, other)); !slices.Equal(got, []string{"described", "third", "widgets", "widgets"}) {
		t.Errorf("the system may bind %v", got)
	}
}

// TestTheCatalogueHidesExports shows that neither answers nor tokens say anything about exports
// that a user may not bind, though bindings in their workspaces name the user.
func TestTheCatalogueHidesExports(t *testing.T) {
	t.Parallel()
	p := exporter(t)
	p.create(apiExports, widgetExport("alpha", "v1"))
	mallory := p.person("mallory")
	p.allows("see", rbacv1.UserKind, mallory.info.Name, []string{"get", "list"}, "apibindings")
	for _, token := range []string{`{}`, `{"s":1}`, `{"p":"root","c":"` + string(p.name) + `","e":"a"}`, `{"p":"` + string(p.name) + `","c":"` + string(p.name) + `","e":"alpha","s":1}`} {
		code, got := mallory.get("/services/bindableexports?continue="+base64.RawURLEncoding.EncodeToString([]byte(token)), nil)
		if code != http.StatusOK || strings.Contains(got, string(p.name)) {
			t.Errorf("with the token %s: %d %s", token, code, got)
		}
	}
	for _, token := range []string{"x", "e30x", ".AAAA", "."} {
		if code, body := mallory.get("/services/bindableexports?continue="+token, nil); code != http.StatusBadRequest {
			t.Errorf("with the token %s: %d %s", token, code, body)
		}
	}
}
