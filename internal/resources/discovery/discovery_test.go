package discovery

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
)

const (
	acceptV2       = aggregatedJSON
	acceptProtobuf = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	acceptV2beta1  = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

// named returns the names in each list, by group and version.
func named(lists []*metav1.APIResourceList) map[string][]string {
	out := map[string][]string{}
	for _, l := range lists {
		for _, r := range l.APIResources {
			out[l.GroupVersion] = append(out[l.GroupVersion], r.Name)
		}
	}
	return out
}

func groupNames(groups []*metav1.APIGroup) []string {
	var out []string
	for _, g := range groups {
		out = append(out, g.Name)
	}
	return out
}

func TestDiscoveryOfClustersSideBySide(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"own":     shapeOf(own(t)...),
		"widgets": shapeOf(content(t, define("example.com", "widgets", "Widget", "v1beta1", "v2", "v1alpha1")), content(t, define("a.example.com", "gadgets", "Gadget", "v1"))),
		"shared":  shapeOf(content(t, define("coordination.k8s.io", "clocks", "Clock", "v1", "v1alpha1"))),
		"core":    shapeOf(content(t, define("", "things", "Thing", "v1"))),
	})
	leases := []string{"leases"}
	for name, want := range map[cluster.Name]struct {
		groups    []string
		resources map[string][]string
	}{
		"plain": {[]string{"", "coordination.k8s.io"}, map[string][]string{
			"v1": {"configmaps"}, "coordination.k8s.io/v1": leases,
		}},
		"own": {[]string{"", "coordination.k8s.io", "core.kcp.io", "tenancy.kcp.io"}, map[string][]string{
			"v1": {"configmaps"}, "coordination.k8s.io/v1": leases,
			"core.kcp.io/v1alpha1":    {"logicalclusters", "logicalclusters/status"},
			"tenancy.kcp.io/v1alpha1": {"workspaceauthenticationconfigurations", "workspaces", "workspaces/status", "workspacetypes", "workspacetypes/status"},
		}},
		"widgets": {[]string{"", "coordination.k8s.io", "a.example.com", "example.com"}, map[string][]string{
			"v1": {"configmaps"}, "coordination.k8s.io/v1": leases,
			"a.example.com/v1":     {"gadgets", "gadgets/status", "gadgets/scale"},
			"example.com/v2":       {"widgets", "widgets/status", "widgets/scale"},
			"example.com/v1beta1":  {"widgets", "widgets/status", "widgets/scale"},
			"example.com/v1alpha1": {"widgets", "widgets/status", "widgets/scale"},
		}},
		"shared": {[]string{"", "coordination.k8s.io"}, map[string][]string{
			"v1":                           {"configmaps"},
			"coordination.k8s.io/v1":       {"clocks", "clocks/status", "clocks/scale", "leases"},
			"coordination.k8s.io/v1alpha1": {"clocks", "clocks/status", "clocks/scale"},
		}},
		"core": {[]string{"", "coordination.k8s.io"}, map[string][]string{
			"v1": {"configmaps", "things", "things/status", "things/scale"}, "coordination.k8s.io/v1": leases,
		}},
	} {
		client := w.client(t, name)
		for form, c := range map[string]discovery.DiscoveryInterface{"aggregated": client, "older": client.WithLegacy()} {
			groups, lists, err := c.ServerGroupsAndResources()
			if err != nil {
				t.Fatalf("%s, %s: %v", name, form, err)
			}
			equal(t, string(name)+", "+form+", groups", groupNames(groups), want.groups)
			got := named(lists)
			for _, names := range got {
				slices.Sort(names)
			}
			for _, names := range want.resources {
				slices.Sort(names)
			}
			equal(t, string(name)+", "+form+", resources", got, want.resources)
		}
	}
}

// Both forms of discovery have the same data about each resource.
func TestDiscoveryOfOneResource(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"a": shapeOf(content(t, define("example.com", "widgets", "Widget", "v1beta1", "v2"))),
	})
	all := metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	some := metav1.Verbs{"get", "patch", "update"}
	want := []metav1.APIResource{
		{
			Name: "widgets", SingularName: "widget", Namespaced: true, Kind: "Widget", Verbs: all,
			ShortNames: []string{"wi"}, Categories: []string{"all"},
			StorageVersionHash: "3KMbXL6XZiI=", // of example.com/v1beta1/Widget, however it is read
		},
		{Name: "widgets/status", Namespaced: true, Kind: "Widget", Verbs: some},
		{Name: "widgets/scale", Namespaced: true, Group: "autoscaling", Version: "v1", Kind: "Scale", Verbs: some},
	}
	list, err := w.client(t, "a").ServerResourcesForGroupVersion("example.com/v2")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "resources", list.APIResources, want)

	_, lists, err := w.client(t, "a").ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	want[0].Group, want[0].Version = "example.com", "v2"
	want[0].StorageVersionHash = "" // which the aggregated form does not have
	want[1].Group, want[1].Version = "example.com", "v2"
	want[1].SingularName, want[2].SingularName = "widget", "widget" // which that client fills in
	for _, l := range lists {
		if l.GroupVersion == "example.com/v2" {
			equal(t, "aggregated resources", l.APIResources, want)
		}
	}
}

func TestPreferredVersions(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(
		content(t, define("example.com", "widgets", "Widget", "v1alpha1", "v1", "v1beta1")),
		content(t, define("example.com", "gadgets", "Gadget", "v10", "v2")),
		content(t, define("coordination.k8s.io", "clocks", "Clock", "v1beta1")),
	)})
	for path, want := range map[string][]string{
		"/apis/example.com":         {"v10", "v2", "v1", "v1beta1", "v1alpha1"},
		"/apis/coordination.k8s.io": {"v1", "v1beta1"},
	} {
		var group metav1.APIGroup
		if err := json.Unmarshal(w.get(t, "a", path).Body.Bytes(), &group); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range group.Versions {
			got = append(got, v.Version)
		}
		equal(t, path, got, want)
		equal(t, path+", preferred", group.PreferredVersion.Version, want[0])
		equal(t, path+", kind", group.Kind, "APIGroup")
	}
	for form, c := range map[string]discovery.DiscoveryInterface{
		"aggregated": w.client(t, "a"), "older": w.client(t, "a").WithLegacy(),
	} {
		groups, err := c.ServerGroups()
		if err != nil {
			t.Fatal(err)
		}
		last := groups.Groups[len(groups.Groups)-1]
		equal(t, form, []string{last.Name, last.PreferredVersion.Version}, []string{"example.com", "v10"})
	}
}

// The list of groups keeps the form of the native one, with the addresses of
// the server. Its apiVersion, too, is that of Kubernetes' aggregator.
func TestGroupListLooksNative(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(own(t)...)})
	var plain, got metav1.APIGroupList
	for name, list := range map[cluster.Name]*metav1.APIGroupList{"a": &got, "plain": &plain} {
		if err := json.Unmarshal(w.get(t, name, "/apis").Body.Bytes(), list); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "type", got.TypeMeta, metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"})
	equal(t, "native groups", got.Groups[:len(plain.Groups)], plain.Groups)
	if len(plain.Groups[0].ServerAddressByClientCIDRs) == 0 {
		t.Fatal("the native server gives no addresses")
	}
	equal(t, "addresses", got.Groups[len(plain.Groups)].ServerAddressByClientCIDRs, plain.Groups[0].ServerAddressByClientCIDRs)
	equal(t, "with a slash", w.get(t, "a", "/apis/").Body.String(), w.get(t, "a", "/apis").Body.String())
}

func TestAggregatedDiscoveryIsCached(t *testing.T) {
	t.Parallel()
	contents := own(t)
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"a": shapeOf(contents...), "b": shapeOf(reversed(contents)...), "c": shapeOf(contents[0]),
	})
	for _, accept := range []string{acceptV2, acceptV2 + ",application/json", acceptProtobuf} {
		a := w.get(t, "a", "/apis", "Accept", accept)
		equal(t, "code", a.Code, http.StatusOK)
		equal(t, "content type", a.Header().Get("Content-Type"), w.get(t, "plain", "/apis", "Accept", accept).Header().Get("Content-Type"))
		etag := a.Header().Get("ETag")
		for name, want := range map[cluster.Name]int{
			"a": http.StatusNotModified, "b": http.StatusNotModified, "c": http.StatusOK, "plain": http.StatusOK,
		} {
			equal(t, string(name), w.get(t, name, "/apis", "Accept", accept, "If-None-Match", etag).Code, want)
		}
		// The core group is the same in all clusters.
		etag = w.get(t, "plain", "/api", "Accept", accept).Header().Get("ETag")
		equal(t, "/api", w.get(t, "a", "/api", "Accept", accept, "If-None-Match", etag).Code, http.StatusNotModified)
	}
	// Formats that the native server does not support are not supported.
	for _, name := range []cluster.Name{"plain", "a"} {
		equal(t, "beta in "+string(name), w.get(t, name, "/apis", "Accept", acceptV2beta1).Code, http.StatusNotAcceptable)
		equal(t, "beta or older in "+string(name), w.get(t, name, "/apis", "Accept", acceptV2beta1+",application/json").Code, http.StatusOK)
	}
}

func TestMethodsAndPathsOfDiscovery(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{
		"a": shapeOf(own(t)...), cluster.All: shapeOf(own(t)...),
	})
	for _, path := range []string{"/apis", "/apis/tenancy.kcp.io", "/apis/tenancy.kcp.io/v1alpha1", "/apis/coordination.k8s.io"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead} {
			equal(t, method+" "+path, w.do(t, method, "a", path).Code, http.StatusMethodNotAllowed)
		}
		equal(t, "GET "+path, w.get(t, "a", path).Code, http.StatusOK)
		equal(t, "GET "+path+" in all clusters", w.get(t, cluster.All, path).Code, http.StatusOK)
		equal(t, "GET "+path+" as an image", w.get(t, "a", path, "Accept", "image/png").Code, http.StatusNotAcceptable)
	}
	for _, path := range []string{
		"/apis/tenancy.kcp.io/v1", "/apis/kcp.io", "/apis/tenancy.kcp.io/v1alpha1/workspaces", "/apisx", "/openapi", "/openapi/v4",
	} {
		equal(t, "GET "+path, w.get(t, "a", path).Code, http.StatusNotFound)
	}
	for path, want := range map[string]bool{
		"/api": true, "/api/": true, "/api/v1": true, "/api/v1/": true, "/apis": true, "/apis/": true, "/apis/g": true,
		"/apis/g/v": true, "/apis/g/v/": true, "/openapi/v2": true, "/openapi/v3/apis/g/v": true,
		"/": false, "": false, "/apix": false, "/apisx": false, "/healthz": false, "/openapi": false,
		"/api/v1/namespaces": false, "/apis/g/v/r": false, "/apis/g/v/r/": false,
	} {
		equal(t, "describes "+path, describes(path), want)
	}
}

// Native resources are served even if a cluster defines resources of the same name.
func TestNativeResourcesWin(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(
		content(t, define("coordination.k8s.io", "leases", "Lease", "v1")), own(t)[0],
	)})
	for _, path := range []string{"/apis/coordination.k8s.io/v1", "/apis/coordination.k8s.io"} {
		equal(t, path, w.get(t, "a", path).Body.String(), w.get(t, "plain", path).Body.String())
	}
	_, lists, err := w.client(t, "a").ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "leases", named(lists)["coordination.k8s.io/v1"], []string{"leases"})
	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/coordination.k8s.io/v1"} {
		var got, want struct{ Paths map[string]any }
		for name, into := range map[cluster.Name]any{"a": &got, "plain": &want} {
			r := w.get(t, name, path)
			if err := json.Unmarshal(r.Body.Bytes(), into); err != nil || r.Code != http.StatusOK {
				t.Fatalf("%s%s: %v, %d %s", name, path, err, r.Code, r.Body)
			}
		}
		const lease = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
		equal(t, path, got.Paths[lease].(map[string]any)["get"], want.Paths[lease].(map[string]any)["get"])
	}
}

func TestNothingIsMadeOfWhatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	c := content(t, define("example.com", "widgets", "Widget", "v1"))
	c.Definition.Status.Conditions = append(c.Definition.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue,
	})
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(c)})
	list, err := w.client(t, "a").ServerResourcesForGroupVersion("example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "verbs", list.APIResources[0].Verbs, metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"})
}

// Versions that are not served are not in discovery.
func TestVersionsNotServed(t *testing.T) {
	t.Parallel()
	crd := define("example.com", "widgets", "Widget", "v1", "v2")
	crd.Spec.Versions[0].Served = false
	none := define("example.org", "gadgets", "Gadget", "v1")
	none.Spec.Versions[0].Served = false
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(content(t, crd), content(t, none)), "none": shapeOf(content(t, none))})
	_, lists, err := w.client(t, "a").ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	got := named(lists)
	delete(got, "v1")
	delete(got, "coordination.k8s.io/v1")
	equal(t, "resources", got, map[string][]string{"example.com/v2": {"widgets", "widgets/status", "widgets/scale"}})
	for _, path := range []string{"/apis/example.com/v1", "/apis/example.org", "/apis/example.org/v1"} {
		equal(t, path, w.get(t, "a", path).Code, http.StatusNotFound)
	}
	for _, path := range []string{"/apis", "/api", "/openapi/v3"} {
		equal(t, path, w.get(t, "none", path).Body.String(), w.get(t, "plain", path).Body.String())
	}
}

// A view has no core group: its lists are empty, and not null.
func TestViewWithoutCoreGroup(t *testing.T) {
	t.Parallel()
	c := own(t)[0]
	h, err := startWorld(t, nil).Viewed(t.Context(), catalog.NewShape(catalog.Served{Content: c}), Verbs{c.GroupResource(): {"get", "list"}})
	if err != nil {
		t.Fatal(err)
	}
	for accept, want := range map[string]string{acceptV2: `"items":[]`, "application/json": `"versions":[]`} {
		r := httptest.NewRequest(http.MethodGet, "/api", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", accept, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/apis", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var list metav1.APIGroupList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || list.APIVersion != "v1" || len(list.Groups) != 1 {
		t.Errorf("%v, %+v", err, list)
	}
}
