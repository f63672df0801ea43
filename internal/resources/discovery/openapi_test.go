package discovery

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi3"
	"k8s.io/kube-openapi/pkg/handler3"
	explain "k8s.io/kubectl/pkg/explain/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
)

func TestOpenAPIOfClustersSideBySide(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"own":    shapeOf(own(t)...),
		"shared": shapeOf(content(t, define("coordination.k8s.io", "clocks", "Clock", "v1", "v1alpha1")), content(t, define("coordination.k8s.io", "bells", "Bell", "v1"))),
		"core":   shapeOf(content(t, define("", "things", "Thing", "v1"))),
	})
	const (
		leases     = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
		clocks     = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/clocks/{name}"
		oldClocks  = "/apis/coordination.k8s.io/v1alpha1/namespaces/{namespace}/clocks/{name}/status"
		bells      = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/bells/{name}/scale"
		workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces/{name}"
		things     = "/api/v1/namespaces/{namespace}/things/{name}"
		configMaps = "/api/v1/namespaces/{namespace}/configmaps/{name}"
	)
	all := []string{leases, clocks, oldClocks, bells, workspaces, things, configMaps}
	for name, want := range map[cluster.Name][]string{
		"plain":  {leases, configMaps},
		"own":    {leases, configMaps, workspaces},
		"shared": {leases, configMaps, clocks, oldClocks, bells},
		"core":   {leases, configMaps, things},
	} {
		slices.Sort(want)
		client := w.client(t, name)
		swagger, err := client.OpenAPISchema()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range swagger.GetPaths().GetPath() {
			if slices.Contains(all, p.GetName()) {
				got = append(got, p.GetName())
			}
		}
		slices.Sort(got)
		equal(t, string(name)+", version 2", got, want)

		root := openapi3.NewRoot(client.OpenAPIV3())
		versions, err := root.GroupVersions()
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, gv := range versions {
			s, err := root.GVSpec(gv)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, gv, err)
			}
			for path := range s.Paths.Paths {
				if slices.Contains(all, path) {
					got = append(got, path)
				}
			}
		}
		slices.Sort(got)
		equal(t, string(name)+", version 3", got, want)
	}
}

// Merging keeps the parts of the native document of a shared group other than kinds.
func TestSharedDocumentKeepsTheNativeOne(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"shared": shapeOf(content(t, define("coordination.k8s.io", "clocks", "Clock", "v1"))),
	})
	gv := schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}
	native, err := openapi3.NewRoot(w.client(t, "plain").OpenAPIV3()).GVSpecAsMap(gv)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := openapi3.NewRoot(w.client(t, "shared").OpenAPIV3()).GVSpecAsMap(gv)
	if err != nil {
		t.Fatal(err)
	}
	// Without the definitions that only custom resources use, both are equal.
	custom := 0
	prune := func(merged, native any) {
		for name := range merged.(map[string]any) {
			if _, found := native.(map[string]any)[name]; !found {
				custom++
				delete(merged.(map[string]any), name)
			}
		}
	}
	prune(merged["paths"], native["paths"])
	prune(merged["components"].(map[string]any)["schemas"], native["components"].(map[string]any)["schemas"])
	if custom == 0 {
		t.Error("nothing was merged")
	}
	equal(t, "what is native", merged, native)
}

func TestExplain(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(append(own(t), content(t, define("coordination.k8s.io", "clocks", "Clock", "v1")))...)})
	for _, c := range []struct {
		resource schema.GroupVersionResource
		field    string
		want     string
	}{
		{schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}, "spec", "KIND:       Workspace"},
		{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "clocks"}, "spec", "how many of clocks"},
		{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "spec", "holderIdentity"},
		{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "data", "must consist of alphanumeric"},
	} {
		var out bytes.Buffer
		err := explain.PrintModelDescription([]string{c.field}, &out, w.client(t, "a").OpenAPIV3(), c.resource, false, "plaintext")
		if err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("explain %s: %v, got %s, want %q in it", c.resource.Resource, err, out.String(), c.want)
		}
	}
}

func TestOpenAPIV2IsCachedAndEncoded(t *testing.T) {
	t.Parallel()
	contents := own(t)
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"a": shapeOf(contents...), "b": shapeOf(reversed(contents)...), "c": shapeOf(contents[0]),
	})
	a := w.get(t, "a", "/openapi/v2")
	equal(t, "content type", a.Header().Get("Content-Type"), "application/json")
	etag := a.Header().Get("Etag")
	for name, want := range map[cluster.Name]int{
		"a": http.StatusNotModified, "b": http.StatusNotModified, "c": http.StatusOK, "plain": http.StatusOK,
	} {
		equal(t, string(name), w.get(t, name, "/openapi/v2", "If-None-Match", etag).Code, want)
	}
	encoded := w.get(t, "a", "/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	var document openapi_v2.Document
	if err := proto.Unmarshal(encoded.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	packed := w.get(t, "a", "/openapi/v2", "Accept-Encoding", "gzip")
	equal(t, "encoding", packed.Header().Get("Content-Encoding"), "gzip")
	equal(t, "HEAD", w.do(t, http.MethodHead, "a", "/openapi/v2").Code, http.StatusOK)
	equal(t, "POST", w.do(t, http.MethodPost, "a", "/openapi/v2").Code, http.StatusMethodNotAllowed)
	equal(t, "as an image", w.get(t, "a", "/openapi/v2", "Accept", "image/png").Code, http.StatusNotAcceptable)
}

// Kinds of one shape must not appear in another's, nor in the native document,
// through definitions that they share.
func TestOpenAPIV2LeavesTheNativeDocumentAlone(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"a": shapeOf(own(t)...), "b": shapeOf(content(t, define("example.com", "widgets", "Widget", "v1"))),
	})
	marshal := func() string {
		text, err := json.Marshal(w.openAPI.v2().document)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := marshal()
	var wg sync.WaitGroup
	for _, name := range []cluster.Name{"a", "b"} {
		wg.Go(func() {
			if r := w.get(t, name, "/openapi/v2"); r.Code != http.StatusOK {
				t.Errorf("%s: %d %s", name, r.Code, r.Body)
			}
		})
	}
	wg.Wait()
	if before != marshal() {
		t.Error("the native document changed")
	}
}

func urls(t *testing.T, w *world, name cluster.Name) map[string]string {
	t.Helper()
	var list handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(w.get(t, name, "/openapi/v3").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for path, d := range list.Paths {
		out[path] = d.ServerRelativeURL
	}
	return out
}

func TestOpenAPIV3IsCachedAndEncoded(t *testing.T) {
	t.Parallel()
	contents := own(t)
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"a": shapeOf(contents...), "b": shapeOf(reversed(contents)...), "c": shapeOf(contents[0]),
	})
	etag := w.get(t, "a", "/openapi/v3").Header().Get("Etag")
	for name, want := range map[cluster.Name]int{
		"a": http.StatusNotModified, "b": http.StatusNotModified, "c": http.StatusOK, "plain": http.StatusOK,
	} {
		equal(t, string(name), w.get(t, name, "/openapi/v3", "If-None-Match", etag).Code, want)
	}
	a, c := urls(t, w, "a"), urls(t, w, "c")
	equal(t, "native document", a["api/v1"], urls(t, w, "plain")["api/v1"])
	for path := range c {
		equal(t, path, c[path], a[path])
	}
	for _, path := range []string{"apis/tenancy.kcp.io/v1alpha1", "api/v1"} {
		r := w.get(t, "a", a[path], "Accept", openapi.ContentTypeOpenAPIV3PB)
		equal(t, path, r.Code, http.StatusOK)
		equal(t, path, r.Header().Get("Cache-Control"), "public, immutable")
		equal(t, path, r.Header().Get("Vary"), "Accept")
		var document openapi_v3.Document
		if err := proto.Unmarshal(r.Body.Bytes(), &document); err != nil {
			t.Fatal(err)
		}
		if len(document.GetPaths().GetPath()) == 0 {
			t.Errorf("%s has no paths", path)
		}
		plain := w.get(t, "a", "/openapi/v3/"+path)
		equal(t, path+" without hash", plain.Header().Get("Cache-Control"), "")
		equal(t, path, w.get(t, "a", "/openapi/v3/"+path, "If-None-Match", plain.Header().Get("Etag")).Code, http.StatusNotModified)
		equal(t, "HEAD "+path, w.do(t, http.MethodHead, "a", "/openapi/v3/"+path).Code, http.StatusOK)
	}
	equal(t, "POST", w.do(t, http.MethodPost, "a", "/openapi/v3/apis/tenancy.kcp.io/v1alpha1").Code, http.StatusMethodNotAllowed)
}

// A client with an old hash is sent to the new one in the same cluster.
func TestOldHashLeadsToTheSameCluster(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(own(t)...)})
	for name, path := range map[cluster.Name]string{"a": "apis/tenancy.kcp.io/v1alpha1", "plain": "api/v1"} {
		asked := w.url + "/clusters/" + string(name) + "/openapi/v3/" + path + "?hash=OLD"
		r := w.get(t, name, "/openapi/v3/"+path+"?hash=OLD")
		equal(t, "code", r.Code, http.StatusMovedPermanently)
		base, err := url.Parse(asked)
		if err != nil {
			t.Fatal(err)
		}
		location, err := base.Parse(r.Header().Get("Location"))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "location", location.String(), w.url+"/clusters/"+string(name)+urls(t, w, name)[path])
	}
}

// A missing document is 404 in all clusters.
func TestNoDocument(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(own(t)...)})
	for _, name := range []cluster.Name{"a", "plain"} {
		for path, want := range map[string]int{
			"api/v1": http.StatusOK, "api/v2": http.StatusNotFound, "apis/none.example.com/v1": http.StatusNotFound,
			"apis/tenancy.kcp.io/v9": http.StatusNotFound, "apis/tenancy.kcp.io/v9?hash=OLD": http.StatusNotFound, "": http.StatusNotFound,
		} {
			equal(t, string(name)+" "+path, w.get(t, name, "/openapi/v3/"+path).Code, want)
		}
	}
}

// An error in a schema affects only the documents that contain it.
func TestShapeThatCannotBeDescribed(t *testing.T) {
	t.Parallel()
	crd := define("broken.example.com", "widgets", "Widget", "v1")
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Default = &apiextensionsv1.JSON{Raw: []byte("1e999")} // no number of Go
	broken := content(t, crd)
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(append(own(t), broken)...)})
	for path, want := range map[string]int{
		"/openapi/v2":                            http.StatusInternalServerError,
		"/openapi/v3/apis/broken.example.com/v1": http.StatusInternalServerError,
		"/openapi/v3":                            http.StatusOK, "/openapi/v3/apis/tenancy.kcp.io/v1alpha1": http.StatusOK,
		"/openapi/v3/api/v1": http.StatusOK, "/apis": http.StatusOK, "/api/v1": http.StatusOK,
		"/apis/broken.example.com/v1": http.StatusOK,
	} {
		r := w.get(t, "a", path)
		equal(t, path, r.Code, want)
		if want != http.StatusOK && !strings.Contains(r.Body.String(), "widgets.broken.example.com") {
			t.Errorf("%s does not say what is wrong: %s", path, r.Body)
		}
	}
	if got := urls(t, w, "a")["apis/broken.example.com/v1"]; got != "/openapi/v3/apis/broken.example.com/v1" {
		t.Errorf("got %q in the list", got)
	}
}
