package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp/internal/cluster"
)

func parsed(t *testing.T, a answer) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(a.body), &u.Object); err != nil {
		t.Fatalf("%d %s: %v", a.code, a.body, err)
	}
	return u
}

// The system computes the metadata that identifies an object's cluster. Users cannot set it.
func TestForgedMetadata(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	v := a.owner()
	forged := map[string]any{
		"kcp.io/cluster": string(b.name), "kcp.io/path": string(b.name), "core.kcp.io/shard": "elsewhere", "kcp.io/undecodable": "yes", "kcp.io/shard": "x",
	}
	const maps = "/api/v1/namespaces/default/configmaps"
	forge := func(name string) string {
		text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]string{"k": "v"}, "metadata": map[string]any{
			"name": name, "annotations": forged, "selfLink": b.path(maps), "uid": "11111111-1111-1111-1111-111111111111",
			"labels": map[string]string{"kcp.io/cluster": string(b.name), "tenancy.kcp.io/phase": "Ready", "internal.kcp.io/replicate": "x"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	forgeAgain := func(name string) string {
		return strings.Replace(forge(name), `"uid":"11111111-1111-1111-1111-111111111111"`, `"generation":7`, 1)
	}
	jsonPatch := func(string) string {
		return fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":{"kcp.io/cluster":%q,"kcp.io/path":%q}}]`, b.name, b.name)
	}
	steps := []struct {
		method, name, query, kind string
		body                      func(string) string
	}{
		{"POST", "", "?dryRun=All", "application/json", forge},
		{"POST", "", "", "application/json", forge},
		{"PUT", "made", "", "application/json", forgeAgain},
		{"PATCH", "made", "", "application/merge-patch+json", forgeAgain},
		{"PATCH", "made", "", "application/strategic-merge-patch+json", forgeAgain},
		{"PATCH", "made", "", "application/json-patch+json", jsonPatch},
		{"PATCH", "made", "?dryRun=All", "application/json-patch+json", jsonPatch},
		{"PATCH", "made", "?fieldManager=m&force=true", "application/apply-patch+yaml", forgeAgain},
		{"PATCH", "applied", "?fieldManager=m&force=true", "application/apply-patch+yaml", forgeAgain},
		{"GET", "made", "", "", func(string) string { return "" }},
	}
	for _, s := range steps {
		name, target := s.name, a.path(maps)
		if name == "" {
			name = "made"
		} else {
			target += "/" + name
		}
		got := v.send(s.method, target+s.query, s.body(name), "Content-Type", s.kind)
		if !got.ok() {
			t.Errorf("%s %s: %d %s", s.method, s.kind, got.code, got.body)
			continue
		}
		o := parsed(t, got)
		annotations := o.GetAnnotations()
		if cluster.Of(o) != a.name || annotations["kcp.io/path"] != "" || annotations["core.kcp.io/shard"] != "" || annotations["kcp.io/undecodable"] != "" {
			t.Errorf("%s %s: %v", s.method, s.kind, annotations)
		}
	}
	if l := parsed(t, v.send("GET", a.path(maps), "")); strings.Contains(fmt.Sprint(l.Object["items"]), "kcp.io/cluster:"+string(b.name)+" kcp.io") {
		t.Errorf("listed: %v", l)
	}
}

// Users cannot set the fields of Workspaces and LogicalClusters that the system owns.
func TestForgedWorkspaces(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	own, theirs := a.workspace("own"), b.workspace("theirs")
	all := a.path("/apis/tenancy.kcp.io/v1alpha1/workspaces")
	one, ofOwn := all+"/own", own.path("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
	a.allow("alice")
	own.allow("alice")
	v := a.alice()
	meta := func(m string) string {
		return `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{` + m + `}}`
	}
	spec := func(s string) string { return strings.TrimSuffix(meta(`"name":"x"`), "}") + `,"spec":{` + s + `}}` }
	refused := []struct{ method, target, kind, body string }{
		{"POST", all, "json", spec(`"cluster":"` + string(b.name) + `"`)},
		{"POST", all, "json", spec(`"cluster":"` + string(theirs.name) + `","URL":"https://evil.example"`)},
		{"POST", all, "json", spec(`"cluster":"../x"`)},
		{"POST", all, "json", spec(`"cluster":null,"URL":"x"`)},
		{"POST", all, "json", spec(`"URL":"https://evil.example","mount":{"ref":{"apiVersion":"v1","kind":"x","name":"y"}}`)},
		{"PATCH", one, "merge-patch+json", `{"spec":{"mount":{"ref":{"apiVersion":"v1","kind":"x","name":"y"}}}}`},
		{"POST", all, "json", spec(`"type":{"name":"root","path":"root"}`)},
		{"POST", all, "json", spec(`"type":{"name":"universal","path":"` + string(b.name) + `"}`)},
		{"POST", all, "json", meta(`"name":"x","annotations":{"authorization.kcp.io/required-groups":"a"}`)},
		{"POST", all, "json", meta(`"name":"a:b"`)}, {"POST", all, "json", meta(`"name":"a.b"`)}, {"POST", all, "json", meta(`"name":"*"`)},
		{"POST", all, "json", meta(`"name":"` + strings.Repeat("x", 64) + `"`)}, {"POST", all, "json", meta(`"name":"../x"`)}, {"POST", all, "json", meta(`"name":""`)},
		{"POST", all, "json", meta(`"generateName":"A_"`)},
		{"PATCH", one, "merge-patch+json", `{"spec":{"cluster":"` + string(theirs.name) + `"}}`},
		{"PATCH", one, "merge-patch+json", `{"spec":{"URL":"https://evil.example"}}`},
		{"PATCH", one, "merge-patch+json", `{"spec":{"cluster":""}}`},
		{"PATCH", one, "json-patch+json", `[{"op":"replace","path":"/spec/cluster","value":"` + string(theirs.name) + `"}]`},
		{"PATCH", one + "?fieldManager=m&force=true", "apply-patch+yaml", strings.ReplaceAll(spec(`"cluster":"`+string(theirs.name)+`"`), `"x"`, `"own"`)},
		{"PATCH", one, "merge-patch+json", `{"metadata":{"annotations":{"experimental.tenancy.kcp.io/owner":"{}"}}}`},
		{"PATCH", one, "merge-patch+json", `{"metadata":{"labels":{"tenancy.kcp.io/phase":"Scheduling"}}}`},
		{"PATCH", one + "/status", "merge-patch+json", `{"status":{"phase":"Initializing"}}`},
		{"PATCH", one + "/status", "merge-patch+json", `{"metadata":{"annotations":{"a":"b"}}}`},
		{"PUT", one + "/status", "json", spec(`"cluster":"` + string(theirs.name) + `"`)},
		{"PATCH", ofOwn, "merge-patch+json", `{"spec":{"directlyDeletable":true}}`},
		{"PATCH", ofOwn, "merge-patch+json", `{"metadata":{"annotations":{"kcp.io/path":"root","core.kcp.io/max-total-objects":"0"}}}`},
		{"PATCH", ofOwn + "/status", "merge-patch+json", `{"status":{"phase":"Deleting"}}`},
		{"DELETE", ofOwn, "json", ""},
		{"DELETE", strings.TrimSuffix(ofOwn, "/cluster"), "json", ""},
		{"DELETE", ofOwn, "json", `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Orphan"}`},
		{"POST", strings.TrimSuffix(ofOwn, "/cluster"), "json", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"other"}}`},
		{"PATCH", strings.TrimSuffix(ofOwn, "cluster") + "other?fieldManager=m", "apply-patch+yaml", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"other"}}`},
		{"DELETE", own.path("/api/v1/namespaces/default"), "json", ""},
		{"DELETE", "/clusters/root/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", "json", ""},
		{"DELETE", "/clusters/root/api/v1/namespaces/default", "json", ""},
	}
	for _, r := range refused {
		got := v.send(r.method, r.target, r.body, "Content-Type", "application/"+r.kind)
		if got.ok() || got.broken() {
			t.Errorf("%s %s %s: %d %.400s", r.method, r.target, r.body, got.code, got.body)
		}
	}
	// The server restores its own fields in a LogicalCluster.
	for _, r := range []struct{ target, kind, body string }{
		{ofOwn, "merge-patch+json", `{"metadata":{"finalizers":null}}`},
		{ofOwn + "?fieldManager=m&force=true", "apply-patch+yaml", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"},"spec":{"owner":null}}`},
	} {
		got := v.send("PATCH", r.target, r.body, "Content-Type", "application/"+r.kind)
		if !got.ok() || !strings.Contains(string(got.body), "core.kcp.io/logicalcluster-deletion") || !strings.Contains(string(got.body), `"owner":{"apiVersion":"tenancy.kcp.io/v1alpha1"`) {
			t.Errorf("%s %s: %d %.800s", r.target, r.body, got.code, got.body)
		}
	}
	for _, less := range []struct{ method, kind, body string }{ // like manifests without the fields that the system sets
		{"PATCH", "merge-patch+json", `{"spec":null}`},
		{"PATCH", "merge-patch+json", `{"spec":{"cluster":null,"URL":null}}`},
		{"PATCH", "json-patch+json", `[{"op":"remove","path":"/spec/cluster"}]`},
		{"PATCH", "merge-patch+json", `{"metadata":{"labels":null,"annotations":null,"finalizers":null}}`},
		{"PUT", "json", meta(`"name":"own","resourceVersion":"%s"`)},
	} {
		body := strings.Replace(less.body, "%s", text(parsed(t, v.send("GET", one, "")), "metadata", "resourceVersion"), 1)
		if got := v.send(less.method, one, body, "Content-Type", "application/"+less.kind); !got.ok() {
			t.Errorf("%s %s: %d %.400s", less.method, less.body, got.code, got.body)
		}
	}
	if now := parsed(t, v.send("GET", one, "")); text(now, "spec", "cluster") != string(own.name) || text(now, "status", "phase") != "Ready" {
		t.Errorf("it is now %v", now)
	}
}

// Apply can create a Workspace.
func TestAppliedWorkspaces(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	a.allow("alice")
	v := a.alice()
	target := a.path("/apis/tenancy.kcp.io/v1alpha1/workspaces/applied?fieldManager=m")
	body := `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"applied"}}`
	got := v.send("PATCH", target, body, "Content-Type", "application/apply-patch+yaml")
	if got.code != http.StatusCreated {
		t.Fatalf("%d %s", got.code, got.body)
	}
	if w := parsed(t, got); text(w, "status", "phase") != "Ready" || text(w, "spec", "cluster") == "" {
		t.Errorf("it is %v", w)
	}
	if got := v.send("GET", a.path(":applied/api/v1/namespaces"), ""); !got.ok() {
		t.Errorf("in it: %d %s", got.code, got.body)
	}
	if got := v.send("PATCH", target, body, "Content-Type", "application/apply-patch+yaml"); got.code != http.StatusOK {
		t.Errorf("again: %d %s", got.code, got.body)
	}
}

// Selectors, resource versions and continue tokens of one cluster give no access to others.
func TestListsStayInTheirCluster(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	v := a.owner()
	b.content("zzz")
	next := func(start string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":-1,"start":"` + start + `"}`))
	}
	queries := []string{
		"fieldSelector=kcp.io/cluster%3D" + string(b.name), "fieldSelector=metadata.name%3Dtreasure", "fieldSelector=metadata.namespace%3Ddefault,metadata.name%3Dtreasure",
		"fieldSelector=kcp.io/cluster!%3D" + string(a.name), "fieldSelector=metadata.annotations%3Dx", "labelSelector=treasure", "labelSelector=treasure%3Dyes", "labelSelector=*",
		"labelSelector=treasure+notin+(no)", "fieldSelector=%3D", "resourceVersion=1&resourceVersionMatch=Exact", "resourceVersion=0", "resourceVersion=0&resourceVersionMatch=NotOlderThan",
		"resourceVersion=-1", "resourceVersion=x", "resourceVersion=18446744073709551616", "limit=1", "limit=-1", "limit=9223372036854775807", "limit=x",
		"continue=x", "continue=" + next("../"+string(b.name)+"/default/treasure"), "continue=" + next("/../"+string(b.name)+"/"), "continue=" + next(string(b.name)), "continue=" + next(""),
		"continue=" + next("\\u0000") + "&limit=500", "continue=" + next("default/\\u0000"), "continue=" + next("//"), "continue=" + next(strings.Repeat("z", 10000)), "continue=" + next("-"), "continue=" + next("zz\\uffff"),
		"timeoutSeconds=-1", "timeoutSeconds=x", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&watch=1&timeoutSeconds=1", "includeObject=Object", "kcp.io/cluster=" + string(b.name), "cluster=*", "clusterName=" + string(b.name), "pretty=1", "watch=1&resourceVersion=1&timeoutSeconds=1",
		"watch=1&allowWatchBookmarks=1&timeoutSeconds=1&fieldSelector=metadata.namespace%3D" + string(b.name),
	}
	check := func(target, accept string) {
		got := v.send("GET", target, "", "Accept", accept)
		if got.broken() && got.code != http.StatusGatewayTimeout || got.ok() && (strings.Contains(got.body, string(b.name)) || strings.Contains(got.body, "zzz")) {
			t.Errorf("%.300s: %d %.300s", target, got.code, got.body)
		}
	}
	for _, r := range []string{"/api/v1/configmaps", "/api/v1/namespaces/default/secrets", "/api/v1/events", "/apis/tenancy.kcp.io/v1alpha1/workspaces"} {
		for _, q := range queries {
			check(a.path(r+"?"+q), "application/json")
		}
	}
	for _, accept := range []string{
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v1", "application/vnd.kubernetes.protobuf", "application/cbor", "application/yaml",
		"*/*", "text/html", "application/json;stream=watch", "application/json;as=Table;g=x;v=y", ";;;", "application/json;q=x",
	} {
		check(a.path("/api/v1/configmaps?"+queries[0]), accept)
		check(a.path("/api/v1/configmaps?labelSelector=treasure"), accept)
		check(a.path("/apis/tenancy.kcp.io/v1alpha1/workspaces?limit=1"), accept)
	}
}

// A continue token continues the same list in another cluster, with the rights of the user
// there.
func TestContinueElsewhere(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	v := a.owner()
	a.content("aaa")
	for _, r := range []string{"/api/v1/configmaps", "/api/v1/namespaces/default/configmaps", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"} {
		first := must(b.kube.CoreV1().RESTClient().Get().AbsPath(r).Param("limit", "1").DoRaw(t.Context()))(t)
		list := &unstructured.UnstructuredList{}
		if err := list.UnmarshalJSON(first); err != nil {
			t.Fatal(err)
		}
		token := list.GetContinue()
		if token == "" {
			continue
		}
		got := v.send("GET", a.path(r+"?limit=500&continue="+token), "")
		if got.broken() || strings.Contains(got.body, string(b.name)) {
			t.Errorf("%s: %d %s", r, got.code, got.body)
		}
	}
}
