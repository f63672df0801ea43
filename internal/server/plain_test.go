package server_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// newest matches revisions in responses, which concurrent writes can change.
var newest = regexp.MustCompile(`("continue":"|current: )[^"]+()|("resourceVersion":")[0-9]+("})`)

// ages are the ages of objects in tables, which differ between two requests.
var ages = regexp.MustCompile(`("cells":\["[^"]*",)"[0-9]+s"`)

// Responses from stored bytes equal those of upstream's handler, which serves requests with
// the parameter pretty=false.
func TestPlainReads(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	const schema = `{type: object, properties: {spec: {type: object, properties: {
		size: {type: integer, default: 3}, price: {type: number}, text: {type: string}, any: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}`
	d := c.newKind(crd(t, "widgets", schemaOf(schema, "subresources: {status: {}}")))
	v := c.owner()
	const all = "/apis/example.com/v1/widgets"
	const here = "/apis/example.com/v1/namespaces/default/widgets"
	both := func(when, path string, header ...string) {
		t.Helper()
		mark := "?"
		if strings.Contains(path, "?") {
			mark = "&"
		}
		got, want := v.send("GET", c.path(path), "", header...), v.send("GET", c.path(path+mark+"pretty=false"), "", header...)
		of := func(a answer) string {
			for _, of := range []string{"Audit-Id", "Date", "Content-Length"} {
				a.header.Del(of)
			}
			return fmt.Sprintln(a.code, a.header, ages.ReplaceAllString(newest.ReplaceAllString(a.body, "$1$3(newest)$2$4"), "$1"))
		}
		if diff := cmp.Diff(of(want), of(got)); diff != "" {
			t.Errorf("%s: %s: +is -upstream's\n%s", when, path, diff)
		}
	}
	everything := func(when string) {
		t.Helper()
		for _, path := range []string{here, all, here + "/one", here + "/none", here + "?limit=1", here + "?labelSelector=of=two", here + "?labelSelector=%3D%3D", here + "?resourceVersion=x",
			here + "?limit=1&resourceVersion=1&resourceVersionMatch=Exact", here + "?continue=x", here + "/one?resourceVersion=0", here + "/one?resourceVersion=999999999999",
			here + "?limit=x", here + "?fieldSelector=metadata.name%3Done", "/apis/example.com/v1/namespaces/other/widgets", "/apis/example.com/v1/widgets/one", "/apis/example.com/v2/widgets"} {
			both(when, path)
		}
		for _, accept := range []string{"*/*", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/vnd.kubernetes.protobuf,application/json",
			"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf"} {
			both(when+", "+accept, here, "Accept", accept)
		}
		if a := v.send("GET", c.path(here), "", "Accept", "application/yaml"); a.code == 200 && a.header.Get("Content-Type") != "application/yaml" {
			t.Errorf("%s: YAML is %v", when, a.header)
		}
		if a := v.send("GET", c.path(here), "", "User-Agent", "curl/8"); a.code == 200 && !strings.HasPrefix(a.body, "{\n") {
			t.Errorf("%s: curl gets %s", when, a.body)
		}
	}
	everything("without objects")
	c.instance(d, "one", `spec: {price: 1.50, text: "<&>\u2028\u00e9", any: {z: [1, 2.0, -1e30, null], a: {}}}`)
	c.instance(d, "two", "metadata: {labels: {of: two}, annotations: {a: b}}")
	everything("written")
	everything("read again")
	if _, err := c.redefine(d.Name, fmt.Sprintf("spec: {versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: %s}}]}", strings.ReplaceAll(strings.ReplaceAll(schema, "default: 3", "default: 4"), "text:", "texts:"))); err != nil {
		t.Fatal(err)
	}
	everything("pruned by another schema")
	var list metav1.PartialObjectMetadataList
	if a := v.send("GET", c.path(all), ""); json.Unmarshal([]byte(a.body), &list) != nil {
		t.Fatalf("got %d %s", a.code, a.body)
	}
	c.instance(d, "three", "metadata: {labels: {of: two}}")
	must(c.of(d).Patch(t.Context(), "three", types.MergePatchType, []byte(`{"spec":{"size":5},"metadata":{"labels":{"of":"three"}}}`), metav1.PatchOptions{}))(t)
	if err := c.of(d).Delete(t.Context(), "three", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{"", "&labelSelector=of=two", "&resourceVersion=" + list.ResourceVersion, "&labelSelector=of=two&resourceVersion=" + list.ResourceVersion, "&resourceVersion=x"} {
		both("watch", here+"?watch=1&timeoutSeconds=1"+query)
	}
	if got := v.send("GET", c.path(here+"/one"), ""); strings.Contains(got.body, `"text"`) {
		t.Errorf("not pruned: %s", got.body)
	}
	key := "/registry/c/example.com/widgets/-/" + string(c.name) + "/default/one"
	etcd := c.server.Store().RawClient()
	if n := must(etcd.Get(t.Context(), key, clientv3.WithCountOnly()))(t).Count; n != 1 {
		t.Fatalf("there is no %s", key)
	}
	for _, value := range []string{`{"kind":"Widget","metadata":{"name":"one","namespace":"default"},"apiVersion":"example.com/v1","spec":{"size":"x"}}`, `{"apiVersion":"example.com/v1","kind":"Widget"`} {
		if _, err := etcd.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
		everything("stored otherwise: " + value)
	}
}

// Large responses are compressed like upstream's.
func TestLargePlainReads(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets"))
	v := c.owner()
	for i := range 3 {
		c.instance(d, "w"+strconv.Itoa(i), "spec: {text: "+strings.Repeat("x", 60_000*(i+1))+"}")
	}
	for path, compressed := range map[string]bool{"/w0": false, "/w2": true, "": true, "?limit=1": false, "?limit=2": true} {
		path = c.path("/apis/example.com/v1/namespaces/default/widgets" + path)
		if a := v.send("GET", path, "", "Accept-Encoding", "gzip"); a.code != 200 || (a.header.Get("Content-Encoding") == "gzip") != compressed {
			t.Errorf("%s: %d %v", path, a.code, a.header)
		}
	}
	var list metav1.PartialObjectMetadataList
	if a := v.send("GET", c.path("/apis/example.com/v1/widgets?limit=2"), ""); json.Unmarshal([]byte(a.body), &list) != nil || len(list.Items) != 2 || list.Continue == "" || *list.RemainingItemCount != 1 {
		t.Errorf("got %d %v", a.code, list.ListMeta)
	}
}
