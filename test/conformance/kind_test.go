package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// kind is one version of a CRD.
type kind struct {
	title, apiVersion, kind string
	root                    string // of URLs, up to the resource
	plural                  string
	namespaced              bool
	schema                  crdSchema
	subresources            map[string]any
	others                  []string // the other versions that are served
	samples                 []sample
}

func newKind(t *testing.T, b *bundle, d definition, version string) *kind {
	t.Helper()
	group, names := d.Spec.Group, d.Spec.Names
	k := &kind{
		title: fmt.Sprintf("%s: %s/%s", b.name, names.Plural, version), apiVersion: group + "/" + version, kind: names.Kind,
		root: "/apis/" + group + "/" + version, plural: names.Plural, namespaced: d.Spec.Scope == "Namespaced",
	}
	var raw any
	if err := json.Unmarshal([]byte(d.body), &raw); err != nil {
		t.Fatal(err)
	}
	all, _ := field(raw, "spec", "versions").([]any)
	for i, v := range d.Spec.Versions {
		if v.Name != version {
			if v.Served {
				k.others = append(k.others, "/apis/"+group+"/"+v.Name)
			}
			continue
		}
		k.schema, _ = field(all[i], "schema", "openAPIV3Schema").(map[string]any)
		k.subresources, _ = field(all[i], "subresources").(map[string]any)
	}
	for _, s := range b.samples[group+" "+names.Kind] {
		if s.object["apiVersion"] == k.apiVersion {
			k.samples = append(k.samples, s)
		}
	}
	return k
}

// path returns the URL path of the objects in a namespace.
func (k *kind) path(namespace string) string {
	if !k.namespaced {
		return k.root + "/" + k.plural
	}
	if namespace == "" {
		namespace = "default"
	}
	return k.root + "/namespaces/" + namespace + "/" + k.plural
}

// named returns an object of the kind, complete with a name.
func (k *kind) named(name string, object any) map[string]any {
	m, ok := object.(map[string]any)
	if !ok {
		m = map[string]any{}
	}
	m = maps.Clone(m)
	m["apiVersion"], m["kind"], m["metadata"] = k.apiVersion, k.kind, map[string]any{"name": name, "labels": map[string]any{"sample": "yes"}}
	return m
}

// objects compares requests for objects of a kind. It returns the numbers of samples that the
// stock server stored and refused.
func (c *comparison) objects(t *testing.T, k *kind) (stored, refused int) {
	samples, wrongs := spread(k.samples, 2), spread(mutations(k.schema), 8)
	if c.long {
		samples, wrongs = k.samples, spread(mutations(k.schema), 400)
	}
	var best map[string]any // the first valid sample
	for _, s := range samples {
		a := c.sample(t, k, s)
		if a.Status == http.StatusCreated && best == nil {
			best = k.named("best", maps.Clone(s.object))
		}
		if stored++; a.Status != http.StatusCreated {
			stored, refused = stored-1, refused+1
		}
	}
	good, bad := c.mutated(t, k, wrongs)
	if best == nil && good != nil {
		best = k.named("best", good)
	}
	if best == nil {
		best = k.named("best", k.schema.minimal())
	}
	if c.lifecycle(t, k, best) {
		stored++
	}
	return stored, refused + bad
}

// sample creates an object, reads it, and deletes it.
func (c *comparison) sample(t *testing.T, k *kind, s sample) answer {
	t.Helper()
	ns, _ := field(s.object, "metadata", "namespace").(string)
	title, path := k.title+" "+s.name, k.path(ns)
	one := path + "/" + fmt.Sprint(field(s.object, "metadata", "name"))
	c.compare(t, request{name: title + " strict dry run", method: http.MethodPost, path: path + "?dryRun=All&fieldValidation=Strict", as: "user", header: asJSON(), body: text(s.object)})
	created := c.compare(t, request{name: title + " create", method: http.MethodPost, path: path, as: "user", header: asJSON(), body: text(s.object)})
	if created.Status == http.StatusCreated {
		c.compare(t, request{name: title + " get", method: http.MethodGet, path: one, as: "user"})
		c.compare(t, request{name: title + " table", method: http.MethodGet, path: one, as: "user", header: http.Header{"Accept": {asTable}}})
		c.compare(t, request{name: title + " delete", method: http.MethodDelete, path: one, as: "user"})
	}
	return created
}

// mutated compares the answers to objects with one error each. It returns a valid object, if
// there is one, and the number of invalid ones.
func (c *comparison) mutated(t *testing.T, k *kind, all []mutation) (valid any, refused int) {
	const workers = 4
	var wait sync.WaitGroup
	answers := make([]answer, len(all))
	for w := range workers {
		wait.Go(func() {
			for i := w; i < len(all); i += workers {
				body := text(all[i].object) // text that is not an object is sent unchanged
				if m, ok := all[i].object.(map[string]any); ok {
					body = text(k.named("sample", m))
				}
				query := "?dryRun=All&fieldValidation=Strict"
				if i%2 == 0 {
					query = "?dryRun=All"
				}
				answers[i] = c.compare(t, request{name: k.title + " " + strings.TrimSpace(all[i].name), method: http.MethodPost,
					path: k.path("") + query, as: "user", header: asJSON(), body: body})
			}
		})
	}
	wait.Wait()
	for i, a := range answers {
		if a.Status != http.StatusCreated {
			refused++
		} else if valid == nil && i%2 != 0 { // the server ignored no field
			valid = all[i].object
		}
	}
	return valid, refused
}

const (
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	applyPatch = "application/apply-patch+yaml"
)

func asJSON() http.Header { return http.Header{"Content-Type": {"application/json"}} }

// lifecycle compares all operations on one valid object, and reports whether it could be
// created.
func (c *comparison) lifecycle(t *testing.T, k *kind, object map[string]any) bool {
	path := k.path("")
	created := c.compare(t, request{name: k.title + " create", method: http.MethodPost, path: path, as: "user", header: asJSON(), body: text(object)})
	if created.Status != http.StatusCreated {
		return false
	}
	for _, s := range steps(k, object) {
		method, at, _ := strings.Cut(s.to, " ")
		r := request{name: k.title + " " + s.name, method: method, path: path + at, as: "user", header: http.Header{}, body: s.body, events: s.events}
		if strings.HasPrefix(at, "/apis/") {
			r.path = at
		}
		if r.body != "" {
			r.header.Set("Content-Type", s.as)
		} else if s.as != "" {
			r.header.Set("Accept", s.as)
		}
		c.compare(t, r)
	}
	return true
}

// step is one request to the object "best". as is the content type if there is a body, and
// otherwise the Accept header.
type step struct {
	name, to, as, body string
	events             int
}

func steps(k *kind, object map[string]any) []step {
	const plain = "application/json"
	wrong, apply := with(object, "unknownField", 1), func(labels string) string {
		return `{"apiVersion":"` + k.apiVersion + `","kind":"` + k.kind + `","metadata":{"name":"best","labels":` + labels + `}}`
	}
	changed := with(object, "metadata", map[string]any{"name": "best", "resourceVersion": current, "annotations": map[string]any{"a": "b"}})
	out := []step{
		{"create again", "POST ", plain, text(object), 0},
		{"create with a warning", "POST ?dryRun=All", plain, text(with(wrong, "metadata", map[string]any{"name": "other"})), 0},
		{"create and ignore", "POST ?dryRun=All&fieldValidation=Ignore", plain, text(with(wrong, "metadata", map[string]any{"name": "other"})), 0},
		{"create strictly", "POST ?dryRun=All&fieldValidation=Strict", plain, text(with(wrong, "metadata", map[string]any{"name": "other"})), 0},
		{"create without a name", "POST ", plain, text(with(object, "metadata", map[string]any{})), 0},
		{"create with a bad name", "POST ", plain, text(with(object, "metadata", map[string]any{"name": "Bad_Name"})), 0},
		{"create another kind", "POST ", plain, text(with(object, "kind", "Other")), 0},
		{"create another version", "POST ", plain, text(with(object, "apiVersion", "v7")), 0},
		{"create nonsense", "POST ", plain, "{", 0},
		{"get", "GET /best", "", "", 0},
		{"get none", "GET /none", "", "", 0},
		{"get as table", "GET /best", asTable, "", 0},
		{"get metadata", "GET /best", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "", 0},
		{"get protobuf", "GET /best", "application/vnd.kubernetes.protobuf", "", 0},
		{"get YAML", "GET /best", "application/yaml", "", 0},
		{"list", "GET ?limit=1", "", "", 0},
		{"list as table", "GET ", asTable, "", 0},
		{"list by label", "GET ?labelSelector=sample%3Dno", "", "", 0},
		{"list by name", "GET ?fieldSelector=metadata.name%3Dbest", "", "", 0},
		{"list by an unknown field", "GET ?fieldSelector=spec.x%3Dbest", "", "", 0},
		{"watch", "GET ?watch=1&fieldSelector=metadata.name%3Dbest", "", "", 1},
		{"watch as table", "GET ?watch=1&fieldSelector=metadata.name%3Dbest", asTable, "", 1},
		{"merge", "PATCH /best?fieldManager=merger", mergePatch, `{"metadata":{"labels":{"merged":"yes"}}}`, 0},
		{"merge an unknown field", "PATCH /best?dryRun=All", mergePatch, `{"unknownField":1}`, 0},
		{"merge strictly", "PATCH /best?fieldValidation=Strict", mergePatch, `{"spec":{"unknownField":1}}`, 0},
		{"merge what is invalid", "PATCH /best", mergePatch, `{"spec":"text"}`, 0},
		{"merge a name", "PATCH /best", mergePatch, `{"metadata":{"name":"other"}}`, 0},
		{"merge strategically", "PATCH /best", "application/strategic-merge-patch+json", `{"spec":{}}`, 0},
		{"patch", "PATCH /best", jsonPatch, `[{"op":"add","path":"/metadata/labels/patched","value":"yes"}]`, 0},
		{"patch what is not there", "PATCH /best", jsonPatch, `[{"op":"remove","path":"/none/x"}]`, 0},
		{"apply", "PATCH /best?fieldManager=applier", applyPatch, apply(`{"applied":"yes","shared":"a"}`), 0},
		{"apply in conflict", "PATCH /best?fieldManager=second", applyPatch, apply(`{"shared":"b"}`), 0},
		{"apply with force, dry", "PATCH /best?fieldManager=second&force=true&dryRun=All", applyPatch, apply(`{"shared":"b"}`), 0},
		{"apply with force", "PATCH /best?fieldManager=second&force=true", applyPatch, apply(`{"shared":"b"}`), 0},
		{"apply less", "PATCH /best?fieldManager=applier", applyPatch, apply(`{}`), 0},
		{"apply without a manager", "PATCH /best", applyPatch, apply(`{}`), 0},
		{"apply all", "PATCH /best?fieldManager=applier&force=true", applyPatch, text(object), 0},
		{"apply an unknown field", "PATCH /best?fieldManager=applier&force=true", applyPatch, text(wrong), 0},
		{"apply what is new", "PATCH /new?fieldManager=applier&dryRun=All", applyPatch, text(with(object, "metadata", map[string]any{"name": "new"})), 0},
		{"update without a version", "PUT /best", plain, text(object), 0},
		{"update what has changed", "PUT /best", plain, strings.ReplaceAll(text(changed), current, "1"), 0},
		{"update", "PUT /best", plain, text(changed), 0},
		{"update another name", "PUT /none", plain, text(changed), 0},
		{"get status", "GET /best/status", "", "", 0},
		{"get scale", "GET /best/scale", "", "", 0},
		{"get another subresource", "GET /best/other", "", "", 0},
	}
	for _, v := range k.others {
		out = append(out, step{"get at " + v, "GET " + v + strings.TrimPrefix(k.path(""), k.root) + "/best", "", "", 0})
	}
	return append(append(append(out, statusSteps(k, changed)...), scaleSteps(k)...), endSteps()...)
}

func statusSteps(k *kind, changed map[string]any) []step {
	if k.subresources["status"] == nil {
		return nil
	}
	_, properties := k.schema.properties()
	status, _ := properties["status"].(map[string]any)
	full := map[string]any{}
	names, children := crdSchema(status).properties()
	for _, name := range names {
		child, _ := children[name].(map[string]any)
		full[name] = crdSchema(child).minimal()
	}
	return []step{
		{"merge status", "PATCH /best/status?fieldManager=status", mergePatch, text(map[string]any{"status": full, "spec": nil}), 0},
		{"merge minimal status", "PATCH /best/status?fieldManager=status", mergePatch, text(map[string]any{"status": crdSchema(status).minimal()}), 0},
		{"merge status beside", "PATCH /best?fieldManager=status", mergePatch, `{"status":null}`, 0},
		{"merge wrong status", "PATCH /best/status", mergePatch, `{"status":"text"}`, 0},
		{"merge unknown status", "PATCH /best/status?fieldValidation=Strict", mergePatch, `{"status":{"unknownField":1}}`, 0},
		{"update status", "PUT /best/status", "application/json", text(with(changed, "status", full)), 0},
		{"apply status", "PATCH /best/status?fieldManager=status&force=true", applyPatch, text(map[string]any{"apiVersion": k.apiVersion, "kind": k.kind, "metadata": map[string]any{"name": "best"}, "status": full}), 0},
		{"get after status", "GET /best", "", "", 0},
		{"table after status", "GET /best", asTable, "", 0},
		{"status as table", "GET /best/status", asTable, "", 0},
	}
}

func scaleSteps(k *kind) []step {
	if k.subresources["scale"] == nil {
		return nil
	}
	return []step{
		{"merge scale", "PATCH /best/scale", mergePatch, `{"spec":{"replicas":3}}`, 0},
		{"scale below none", "PATCH /best/scale", mergePatch, `{"spec":{"replicas":-3}}`, 0},
		{"update scale", "PUT /best/scale", "application/json", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"best","namespace":"default","resourceVersion":"` + current + `"},"spec":{"replicas":2}}`, 0},
		{"apply scale", "PATCH /best/scale?fieldManager=scaler&force=true", applyPatch, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"best"},"spec":{"replicas":4}}`, 0},
		{"get after scale", "GET /best", "", "", 0},
	}
}

// endSteps delete the object, which a finalizer blocks for a while.
func endSteps() []step {
	return []step{
		{"delete another", "DELETE /best", "application/json", `{"preconditions":{"uid":"00000000-0000-0000-0000-000000000000"}}`, 0},
		{"delete, dry", "DELETE /best?dryRun=All", "", "", 0},
		{"delete with a bad policy", "DELETE /best?propagationPolicy=None", "", "", 0},
		{"hold", "PATCH /best", mergePatch, `{"metadata":{"finalizers":["example.com/hold"]}}`, 0},
		{"delete", "DELETE /best", "", "", 0},
		{"get while it ends", "GET /best", "", "", 0},
		{"hold more", "PATCH /best", mergePatch, `{"metadata":{"finalizers":["example.com/hold","example.com/more"]}}`, 0},
		{"let go", "PATCH /best", mergePatch, `{"metadata":{"finalizers":null}}`, 0},
		{"get after the end", "GET /best", "", "", 0},
		{"delete all", "DELETE ", "", "", 0},
	}
}
