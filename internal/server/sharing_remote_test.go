package server_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

var farSlices = schema.GroupVersionResource{Group: "far.example.com", Version: "v1", Resource: "endpointslices"}

// farEndpoint creates or changes the object with the endpoint of a server.
func (c *tenant) farEndpoint(url string, ca []byte) {
	c.t.Helper()
	status := fmt.Sprintf(`{"endpoints":[{"url":"%s"}],"caBundle":"%s"}`, url, base64.StdEncoding.EncodeToString(ca))
	if _, err := c.any.Resource(farSlices).Get(c.t.Context(), "far", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		c.create(farSlices, decoded(`{apiVersion: far.example.com/v1, kind: EndpointSlice, metadata: {name: far}, status: %s}`, status))
		return
	}
	c.merge(farSlices, "", "far", `{"status":`+status+`}`)
}

// farFlavors exports flavors whose objects are on a server.
func (c *tenant) farFlavors(far *edge, base string) {
	c.t.Helper()
	definition := edgeDefinition()
	definition.Name, definition.Spec.Group, definition.Spec.Scope = "endpointslices.far.example.com", "far.example.com", "Cluster"
	definition.Spec.Names.Plural, definition.Spec.Names.Kind = "endpointslices", "EndpointSlice"
	c.define(definition)
	c.farEndpoint(far.URL+base, far.ca())
	c.flavorExport("{apiGroup: far.example.com, kind: EndpointSlice, name: far}", "0")
}

// TestAServerOutsideHasTheObjects shows a resource that a server of the provider serves: what it
// gets of a request, and that neither it nor a consumer can use that against others.
func TestAServerOutsideHasTheObjects(t *testing.T) {
	t.Parallel()
	s := newMountServer(t)
	p, consumer := s.tenant(t), s.tenant(t)
	far := newEdge(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]
		switch {
		case req.URL.Query().Get("watch") != "":
			_, _ = io.WriteString(w, `{"type":"ADDED","object":{"apiVersion":"example.com/v1","kind":"Flavor","metadata":{"name":"far","resourceVersion":"7"}}}`+"\n")
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		case name == "redirect":
			http.Redirect(w, req, s.url+"/clusters/root/api/v1/secrets", http.StatusFound)
		case name == "metadata":
			http.Redirect(w, req, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
		case name == "hangup":
			panic(http.ErrAbortHandler)
		case name == "headers":
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		case name == "cookie":
			w.Header().Set("Set-Cookie", "session=1")
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<script>")
		default:
			_, _ = io.WriteString(w, `{"apiVersion":"example.com/v1","kind":"Flavor","metadata":{"name":"far"}}`)
		}
	})
	p.farFlavors(far, "/base/")
	consumer.create(apiBindings, bindingTo("flavors", p.name, "flavors"))
	owner, path := consumer.owner(), "/clusters/"+string(consumer.name)+"/apis/example.com/v1/flavors"

	if got := owner.send("POST", path, `{"kind":"Flavor"}`, "X-Remote-User", "admin", "X-Remote-Group", "system:masters", "X_Remote_Group", "a", "Cookie", "c"); got.code != http.StatusOK || !strings.Contains(got.body, `"far"`) {
		t.Fatalf("a request: %d %s", got.code, got.body)
	}
	seen := <-far.seen
	if want := "/base/clusters/" + string(consumer.name) + "/apis/example.com/v1/flavors"; seen.URL.Path != want || seen.Method != "POST" {
		t.Errorf("the server got %s %s", seen.Method, seen.URL.Path)
	}
	if got := seen.Header["X-Remote-User"]; len(got) != 1 || !strings.HasPrefix(got[0], "system:kcp:serviceaccount:"+string(consumer.name)+":") {
		t.Errorf("the user is %v", got)
	}
	for _, name := range []string{"Authorization", "Cookie", "X_remote_group", "X_Remote_Group"} {
		if got := seen.Header[name]; got != nil {
			t.Errorf("the server got %s: %v", name, got)
		}
	}
	if got := strings.Join(seen.Header["X-Remote-Group"], " "); strings.Contains(got, "system:masters") || len(seen.TLS.PeerCertificates) == 0 {
		t.Errorf("the groups are %q, with %d certificates", got, len(seen.TLS.PeerCertificates))
	}
	for name, code := range map[string]int{"redirect": 502, "metadata": 502, "hangup": 502, "headers": 502, "cookie": 200} {
		got := owner.send("GET", path+"/"+name, "")
		if got.code != code || got.header.Get("Location")+got.header.Get("Set-Cookie") != "" || code == 200 && got.header.Get("Content-Security-Policy") != "sandbox" {
			t.Errorf("%s: %d %v %s", name, got.code, got.header, got.body)
		}
	}
	for len(far.seen) > 0 { // some were tried again
		<-far.seen
	}
	if got := consumer.nobody().send("GET", path, ""); got.code != http.StatusForbidden {
		t.Errorf("a user without rights: %d", got.code)
	}
	if len(far.seen) > 0 {
		t.Errorf("the server got %v", <-far.seen)
	}

	resources := must(consumer.kube.Discovery().ServerResourcesForGroupVersion("example.com/v1"))(t)
	if len(resources.APIResources) != 2 || len(resources.APIResources[0].Verbs) != 8 {
		t.Errorf("discovery has %v", resources.APIResources)
	}
	in := consumer.any.Resource(flavors)
	w := must(in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7"}))(t) // of the server outside
	expectFlavor(t, w, watch.Added, "far")
	for name, url := range map[string]string{
		"this server": s.url, "metadata": "https://169.254.169.254/latest", "untrusted": "https://localhost" + far.URL[strings.LastIndexByte(far.URL, ':'):], "no https": "http://127.0.0.1:1", "no URL": "::",
	} {
		p.farEndpoint(url, s.ca)
		if got := owner.send("GET", path, ""); got.code != http.StatusBadGateway {
			t.Errorf("%s: %d %s", name, got.code, got.body)
		}
	}
	ends(w)
	for patch, code := range map[string]int{`{"status":null}`: 503, `{"status":{"endpoints":7}}`: 503, `{"status":{"endpoints":[{"url":"https://a","shards":{"selector":{"matchLabels":{"name":"other"}}}}]}}`: 503} {
		p.merge(farSlices, "", "far", patch)
		if got := owner.send("GET", path, ""); got.code != code {
			t.Errorf("%s: %d %s", patch, got.code, got.body)
		}
	}
	if err := p.any.Resource(farSlices).Delete(t.Context(), "far", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := owner.send("GET", path, ""); got.code != http.StatusServiceUnavailable || strings.Contains(got.body, string(p.name)) {
		t.Errorf("without the endpoint: %d %s", got.code, got.body)
	}
}

// TestAServerOutsideMisbehaves shows what consumers get from a server of a provider that never
// answers, or whose answers are malformed, cut off or very large, and that it holds up nothing else.
func TestAServerOutsideMisbehaves(t *testing.T) {
	t.Parallel()
	s := newMountServer(t)
	p, consumer, other := s.tenant(t), s.tenant(t), s.tenant(t)
	const huge = 64 << 20
	far := newEdge(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:] {
		case "silent":
			<-req.Context().Done()
		case "half":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		case "malformed":
			_, _ = io.WriteString(w, `{"apiVersion":7,"metadata":[`)
		case "huge":
			for range huge >> 10 {
				if _, err := io.WriteString(w, strings.Repeat(" ", 1<<10)); err != nil {
					return
				}
			}
		}
	})
	p.farFlavors(far, "")
	consumer.create(apiBindings, bindingTo("flavors", p.name, "flavors"))
	owner, path := consumer.owner(), "/clusters/"+string(consumer.name)+"/apis/example.com/v1/flavors/"

	const many = 20
	answers := make(chan string, many)
	for range many {
		go func() {
			got, err := owner.try("GET", path+"silent?timeout=20s", "")
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- strconv.Itoa(got.code)
		}()
	}
	for range many { // all are at the server
		<-far.seen
	}
	for _, c := range []*tenant{p, consumer, other} {
		must(c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("meanwhile", nil), metav1.CreateOptions{}))(t)
	}
	if got := owner.send("GET", path+"malformed", ""); got.code != http.StatusOK || got.body != `{"apiVersion":7,"metadata":[` {
		t.Errorf("malformed: %d %s", got.code, got.body)
	}
	if _, err := consumer.any.Resource(flavors).Get(t.Context(), "malformed", metav1.GetOptions{}); err == nil {
		t.Error("a client reads a malformed object")
	}
	if got, err := owner.try("GET", path+"half", ""); err == nil {
		t.Errorf("half an answer comes as %d %q", got.code, got.body)
	}
	resp := must(owner.open(t.Context(), "GET", path+"huge", nil))(t)
	if n, err := io.Copy(io.Discard, resp.Body); n != huge || err != nil { // it is not buffered
		t.Errorf("%d bytes come, %v", n, err)
	}
	_ = resp.Body.Close()
	for range many {
		// The time may end while the error is being written, which ends the stream.
		if got := <-answers; got != strconv.Itoa(http.StatusGatewayTimeout) && !strings.Contains(got, "stream error") {
			t.Errorf("a server that never answers: %s", got)
		}
	}
}
