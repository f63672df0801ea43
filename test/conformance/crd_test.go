package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// bundles installs all bundles, each in its own workspace if the server has workspaces, and
// compares one after the other with the stock server.
func (c *comparison) bundles(t *testing.T, all []*bundle) {
	if !c.long {
		for _, b := range all {
			b.crds = spread(b.crds, 2)
		}
	}
	sides := map[string]*side{}
	if c.separate {
		for _, b := range all {
			sides[b.name] = c.workspace(t, b.name)
			for _, d := range b.crds {
				sides[b.name].must(t, crds, d.body)
			}
		}
	}
	for _, b := range all {
		t.Run(b.name, func(t *testing.T) {
			began := time.Now()
			defer func() { t.Logf("took %v", time.Since(began)) }()
			of := &comparison{long: c.long, want: c.want, got: sides[b.name], known: c.known, workspace: c.workspace}
			if of.got == nil {
				of.got = c.workspace(t, b.name)
			}
			of.bundle(t, b)
		})
	}
}

// bundle compares one bundle.
func (c *comparison) bundle(t *testing.T, b *bundle) {
	c.install(t, b)
	if t.Failed() {
		return
	}
	c.served(t, b)
	stored, refused := 0, 0
	for _, d := range b.crds {
		for _, v := range d.Spec.Versions {
			if !v.Served {
				continue
			}
			k := newKind(t, b, d, v.Name)
			s, r := c.objects(t, k)
			stored, refused = stored+s, refused+r
		}
	}
	t.Logf("%d requests; of the samples %d were stored and %d refused", c.requests.Load(), stored, refused)
	if stored == 0 || refused == 0 {
		t.Error("there is no comparison without objects that are valid and others that are not")
	}
	c.uninstall(t, b)
}

// install creates missing CRDs, and waits until they are served.
func (c *comparison) install(t *testing.T, b *bundle) {
	t.Helper()
	for _, s := range []*side{c.want, c.got} {
		for _, d := range b.crds {
			r := request{name: "install", method: http.MethodPost, path: crds + "?fieldValidation=Strict", as: "user", header: asJSON(), body: d.body}
			if a := s.send(t, r); a.Status != http.StatusCreated && a.Status != http.StatusConflict {
				t.Errorf("%s: create %s: %v", b.name, d.Name, a)
			}
		}
		for _, ns := range b.namespaces() {
			s.send(t, request{name: "install", method: http.MethodPost, path: "/api/v1/namespaces", as: "user", header: asJSON(), body: `{"metadata":{"name":"` + ns + `"}}`})
		}
	}
	for _, d := range b.crds {
		for _, v := range d.Spec.Versions {
			if v.Served {
				r := request{name: b.name + ": " + d.Name + " is served", method: http.MethodGet, as: "user", until: http.StatusOK,
					path: fmt.Sprintf("/apis/%s/%s/%s", d.Spec.Group, v.Name, d.Spec.Names.Plural)}
				c.compare(t, r)
			}
		}
	}
}

// namespaces returns the namespaces of the samples.
func (b *bundle) namespaces() []string {
	var out []string
	for _, all := range b.samples {
		for _, s := range all {
			if ns, _ := field(s.object, "metadata", "namespace").(string); ns != "" && !slices.Contains(out, ns) {
				out = append(out, ns)
			}
		}
	}
	return out
}

// served compares the CRDs, their discovery and OpenAPI.
func (c *comparison) served(t *testing.T, b *bundle) {
	get := func(path, accept string, only func(any) any) {
		r := request{name: b.name + ": " + path, method: http.MethodGet, path: path, as: "user", header: http.Header{}, only: only}
		if accept != "" {
			r.name += " as " + accept
			r.header.Set("Accept", accept)
		}
		c.settle(t, r)
	}
	var groups, versions []string
	for _, d := range b.crds {
		get(crds+"/"+d.Name, "", conditions)
		get(crds+"/"+d.Name, asTable, withoutManagers)
		groups = append(groups, d.Spec.Group)
		for _, v := range d.Spec.Versions {
			if v.Served {
				versions = append(versions, d.Spec.Group+"/"+v.Name)
			}
		}
	}
	slices.Sort(groups)
	slices.Sort(versions)
	for _, g := range slices.Compact(groups) {
		get("/apis/"+g, "", nil)
		get("/apis", "", groupIn("groups", g))
		get("/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", groupIn("items", g))
		get("/openapi/v2", "", definitions(g))
	}
	for _, v := range slices.Compact(versions) {
		get("/apis/"+v, "", nil)
		get("/openapi/v3/apis/"+v, "", nil)
	}
	want, got := c.want.openapi(t), c.got.openapi(t)
	for _, d := range b.crds {
		for _, v := range d.Spec.Versions {
			if v.Served {
				c.explain(t, want, got, schema.GroupVersionResource{Group: d.Spec.Group, Version: v.Name, Resource: d.Spec.Names.Plural})
			}
		}
	}
}

// conditions sorts the conditions of a CRD, because several loops add them, and removes managed
// fields.
func conditions(v any) any {
	if all, ok := field(v, "status", "conditions").([]any); ok {
		slices.SortFunc(all, func(a, b any) int { return strings.Compare(text(a), text(b)) })
	}
	if m, ok := field(v, "metadata").(map[string]any); ok {
		delete(m, "managedFields")
	}
	return v
}

// withoutManagers removes the managed fields of the CRDs in a table, which differ.
func withoutManagers(v any) any {
	rows, _ := field(v, "rows").([]any)
	for _, row := range rows {
		conditions(field(row, "object"))
	}
	return v
}

// groupIn keeps one group of a list, without the server addresses: the stock server omits them
// when it aggregates several groups.
func groupIn(list, name string) func(any) any {
	return func(v any) any {
		all, _ := field(v, list).([]any)
		for _, g := range all {
			if field(g, "name") == name || field(g, "metadata", "name") == name {
				delete(g.(map[string]any), "serverAddressByClientCIDRs")
				return g
			}
		}
		return nil
	}
}

// definitions keeps the OpenAPI v2 definitions of the kinds of a group.
func definitions(group string) func(any) any {
	return func(v any) any {
		out := map[string]any{}
		all, _ := field(v, "definitions").(map[string]any)
		for name, d := range all {
			if kinds, _ := field(d, "x-kubernetes-group-version-kind").([]any); len(kinds) == 1 && field(kinds[0], "group") == group {
				out[name] = d
			}
		}
		paths, _ := field(v, "paths").(map[string]any)
		for name, p := range paths {
			if strings.HasPrefix(name, "/apis/"+group+"/") {
				out[name] = p
			}
		}
		return out
	}
}

// uninstall deletes the CRDs with all objects, and waits until both are gone.
func (c *comparison) uninstall(t *testing.T, b *bundle) {
	var all sync.WaitGroup
	for _, d := range b.crds {
		all.Go(func() {
			r := request{name: b.name + ": delete " + d.Name, method: http.MethodDelete, path: crds + "/" + d.Name, as: "user", only: conditions}
			c.compare(t, r)
			c.compare(t, request{name: b.name + ": " + d.Name + " is gone", method: http.MethodGet, path: r.path, as: "user", until: http.StatusNotFound})
		})
	}
	all.Wait()
	for _, d := range b.crds {
		c.compare(t, request{name: b.name + ": group of " + d.Name + " is gone", method: http.MethodGet, path: "/apis/" + d.Spec.Group, as: "user", until: http.StatusNotFound})
	}
}
