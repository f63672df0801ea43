package server_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nested returns text with n levels of nesting.
func nested(open, in, shut string, n int) string {
	return strings.Repeat(open, n) + in + strings.Repeat(shut, n)
}

// bodies returns malformed request bodies for a kind.
func bodies(kind string) map[string]string {
	meta := func(m string) string { return `{` + kind + `,"metadata":` + m + `}` }
	all := map[string]string{
		"nothing": "", "null": "null", "array": "[]", "number": "1", "text": `"x"`, "open": "{", "zero": "\x00", "not UTF-8": "{\"a\":\"\xff\xfe\"}", "two": "{}{}", "comma": "{,}",
		"null metadata": meta("null"), "array metadata": meta("[]"), "text metadata": meta(`"x"`), "no name": meta("{}"), "number name": meta(`{"name":1}`), "object name": meta(`{"name":{}}`),
		"null name": meta(`{"name":null}`), "dots": meta(`{"name":".."}`), "slash": meta(`{"name":"a/b"}`), "percent": meta(`{"name":"a%2fb"}`), "zero name": meta(`{"name":"a\u0000b"}`),
		"other case": `{` + kind + `,"Metadata":{"name":"x"},"metadata":{"name":"y"}}`, "twice": `{` + kind + `,"metadata":{"name":"x"},"metadata":{"name":"y"}}`,
		"long generateName": meta(`{"generateName":"` + strings.Repeat("g", 100000) + `"}`), "odd generateName": meta(`{"generateName":"../"}`), "other namespace": meta(`{"name":"x","namespace":"../default"}`),
		"null annotations": meta(`{"name":"null-annotations","annotations":null,"labels":null,"finalizers":null,"ownerReferences":null,"managedFields":null}`),
		"null entries":     meta(`{"name":"null-entries","annotations":{"a":null},"labels":{"a":null},"finalizers":[null],"ownerReferences":[null],"managedFields":[null]}`),
		"odd finalizers":   meta(`{"name":"x","finalizers":["","a/b/c","../x","kubernetes.io/\u0000","orphan","foregroundDeletion"]}`),
		"odd managed":      meta(`{"name":"x","managedFields":[{"manager":"m","operation":"Apply","apiVersion":"x/y/z","fieldsType":"FieldsV1","fieldsV1":{"f:":{"k:{":{}},"v:":1}}]}`),
		"negative":         meta(`{"name":"x","generation":-1,"deletionGracePeriodSeconds":-9223372036854775808,"creationTimestamp":"0000-00-00T00:00:00Z","deletionTimestamp":"x"}`),
		"huge number":      meta(`{"name":"x","generation":1e400}`), "resource version": meta(`{"name":"x","resourceVersion":"-1"}`), "many annotations": meta(`{"name":"x","annotations":{"a":"` + strings.Repeat("x", 300<<10) + `"}}`),
		"deep array": meta(nested("[", "", "]", 20000)), "deep object": meta(nested(`{"a":`, "1", "}", 20000)), "deep spec": `{` + kind + `,"metadata":{"name":"x"},"spec":` + nested(`{"a":`, "1", "}", 20000) + `}`,
		"spec null": `{` + kind + `,"metadata":{"name":"x"},"spec":null,"status":null,"data":null,"type":null}`, "spec text": `{` + kind + `,"metadata":{"name":"x"},"spec":"x","status":[],"data":1}`,
		"spec odd": `{` + kind + `,"metadata":{"name":"x"},"spec":{"type":[],"cluster":{},"URL":1,"mount":null,"location":null},"status":{"phase":{},"conditions":{}}}`,
		"large":    meta(`{"name":"x","annotations":{"a":"` + strings.Repeat("x", 4<<20) + `"}}`), "yaml bomb": bomb(), "yaml": "a: &a [*a]\n", "yaml tag": "!!python/object:os.system {}\n", "yaml merge": "<<: *x\n",
		"protobuf": "k8s\x00", "protobuf garbage": "k8s\x00\x0a\xff\xff\xff\xff\x0f", "protobuf lengths": "k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "protobuf empty": "k8s\x00\x0a\x00\x12\x00\x1a\x00\x22\x00",
		"cbor": "\xd9\xd9\xf7\xa0", "cbor lengths": "\xd9\xd9\xf7\xbb\xff\xff\xff\xff\xff\xff\xff\xff", "cbor deep": "\xd9\xd9\xf7" + strings.Repeat("\x81", 100000), "cbor open": "\xd9\xd9\xf7\xbf",
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(bytes.Repeat([]byte(" "), 10<<20))
	_ = w.Close()
	all["gzip"] = packed.String()
	return all
}

func bomb() string {
	b := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		b += fmt.Sprintf("a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	return b
}

// The server answers malformed bodies with client errors and keeps serving.
func TestMalformedBodies(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	a.allow("alice")
	v := a.alice()
	for path, kind := range map[string]string{
		"/api/v1/namespaces/default/configmaps":           `"apiVersion":"v1","kind":"ConfigMap"`,
		"/api/v1/namespaces":                              `"apiVersion":"v1","kind":"Namespace"`,
		"/apis/tenancy.kcp.io/v1alpha1/workspaces":        `"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace"`,
		"/apis/rbac.authorization.k8s.io/v1/clusterroles": `"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole"`,
	} {
		for name, body := range bodies(kind) {
			for _, content := range []string{"json", "yaml", "vnd.kubernetes.protobuf", "cbor", "json;stream=watch", "x-unknown"} {
				if leftOut() {
					continue
				}
				got := v.send("POST", a.path(path), body, "Content-Type", "application/"+content)
				if got.broken() {
					t.Errorf("%s as %s to %s: %d %.300s", name, content, path, got.code, got.body)
				}
			}
			for _, patch := range []string{"json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml", "apply-patch+cbor"} {
				for _, at := range []string{"/default", "/none", "/" + strings.Repeat("n", 300)} {
					if leftOut() {
						continue
					}
					if got := v.send("PATCH", a.path(path+at+"?fieldManager=m&force=true"), body, "Content-Type", "application/"+patch); got.broken() {
						t.Errorf("%s as %s to %s%.20s: %d %.300s", name, patch, path, at, got.code, got.body)
					}
				}
			}
			if got := v.send("DELETE", a.path(path+"/none"), body, "Content-Type", "application/json"); got.broken() {
				t.Errorf("%s as options to %s: %d %.300s", name, path, got.code, got.body)
			}
		}
	}
	for _, header := range [][]string{{"Content-Encoding", "gzip"}, {"Content-Length", "0"}, {"Accept-Encoding", "br, gzip;q=x"}, {"Accept", strings.Repeat("a/b,", 5000)}, {"X-Big", strings.Repeat("x", 500<<10)}} {
		if got, err := v.try("POST", a.path("/api/v1/namespaces/default/configmaps"), "{}", header...); err == nil && got.broken() {
			t.Errorf("%.50q: %d %s", header, got.code, got.body)
		}
	}
	if _, err := b.kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// The work of a patch is limited.
func TestGreedyPatches(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	v := a.owner()
	a.content("m")
	grow := `[{"op":"add","path":"/data","value":{"a":"` + strings.Repeat("x", 100<<10) + `"}}`
	for i := range 30 {
		grow += fmt.Sprintf(`,{"op":"copy","from":"/data","path":"/data/c%d"}`, i)
	}
	for name, patch := range map[string]string{
		"copies": grow + "]", "many": "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 20000) + `{"op":"test","path":"/kind","value":"ConfigMap"}]`,
		"far": `[{"op":"add","path":"/metadata/finalizers/99999999999","value":"x"}]`, "root": `[{"op":"replace","path":"","value":null}]`, "metadata": `[{"op":"remove","path":"/metadata"}]`,
		"rename": `[{"op":"replace","path":"/metadata/name","value":"n"}]`, "namespace": `[{"op":"replace","path":"/metadata/namespace","value":"kube-system"}]`, "uid": `[{"op":"replace","path":"/metadata/uid","value":"u"}]`,
		"kind": `[{"op":"replace","path":"/kind","value":"Secret"}]`, "nulls": `[null]`, "op": `[{"op":"x"}]`, "no path": `[{"op":"add"}]`,
	} {
		if got := v.send("PATCH", a.path("/api/v1/namespaces/default/configmaps/m"), patch, "Content-Type", "application/json-patch+json"); got.code < 400 || got.broken() {
			t.Errorf("%s: %d %.300s", name, got.code, got.body)
		}
	}
}

// Invalid owners, and owners with names like paths, have no effect.
func TestOddOwners(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	v := a.owner()
	treasure := must(b.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "treasure", metav1.GetOptions{}))(t)
	for i, owner := range []string{
		`"apiVersion":"v1","kind":"ConfigMap","name":"treasure","uid":"` + string(treasure.UID) + `"`,
		`"apiVersion":"v1","kind":"ConfigMap","name":"../../../../` + string(b.name) + `/default/treasure","uid":"` + string(treasure.UID) + `"`,
		`"apiVersion":"v1","kind":"ConfigMap","name":"../../` + string(b.name) + `/default/treasure","uid":"x"`,
		`"apiVersion":"../v1","kind":"..","name":"..","uid":".."`, `"apiVersion":"v1","kind":"Namespace","name":"..","uid":"x"`, `"apiVersion":"v1","kind":"Namespace","name":"a\u0000/b","uid":"x/y"`,
		`"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","name":"cluster","uid":"x","blockOwnerDeletion":true,"controller":true`,
	} {
		name := fmt.Sprintf("owned%d", i)
		got := v.send("POST", a.path("/api/v1/namespaces/default/configmaps"), `{"metadata":{"name":"`+name+`","ownerReferences":[{`+owner+`}]}}`, "Content-Type", "application/json")
		if got.broken() {
			t.Errorf("%s: %d %s", owner, got.code, got.body)
		}
		if !got.ok() {
			continue
		}
		for _, policy := range []string{"Foreground", "Orphan"} {
			got = v.send("DELETE", a.path("/api/v1/namespaces/default/configmaps/"+name), `{"propagationPolicy":"`+policy+`"}`, "Content-Type", "application/json")
			if got.broken() && got.code != http.StatusConflict {
				t.Errorf("%s: %d %s", owner, got.code, got.body)
			}
		}
		a.await(core("configmaps"), "default", name, gone)
	}
}
