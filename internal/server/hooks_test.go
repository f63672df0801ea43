package server_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// A reviewer is a server of webhooks. The path of a request chooses the function that answers.
type reviewer struct {
	*httptest.Server

	mu      sync.Mutex
	answers map[string]func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse
	seen    map[string][]*admissionv1.AdmissionRequest // by path
}

func newReviewer(t *testing.T) *reviewer {
	t.Helper()
	r := &reviewer{seen: map[string][]*admissionv1.AdmissionRequest{}, answers: map[string]func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse{}}
	r.Server = httptest.NewUnstartedServer(r)
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

// ServeHTTP implements [http.Handler].
func (r *reviewer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.seen[req.URL.Path] = append(r.seen[req.URL.Path], review.Request)
	answer := r.answers[strings.Split(req.URL.Path, "/")[1]]
	r.mu.Unlock()
	review.Response = answer(review.Request)
	if review.Response == nil {
		<-req.Context().Done()
		return
	}
	review.Response.UID = review.Request.UID
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// answer sets the function for the paths that begin with a word.
func (r *reviewer) answer(word string, f func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[word] = f
}

// reviews returns the requests for a path so far.
func (r *reviewer) reviews(path string) []*admissionv1.AdmissionRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[path]
}

// client returns the configuration of the webhook with a path.
func (r *reviewer) client(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{
		URL: new(r.URL + path), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}),
	}
}

// matching returns a rule of webhooks and policies.
func matching(group, resource string, operations ...admissionregistrationv1.OperationType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: operations, Rule: admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}
}

// hooked is a server with a reviewer.
type hooked struct {
	server *running
	hook   *reviewer
}

func newHooked(t *testing.T) *hooked {
	t.Helper()
	hook := newReviewer(t)
	hook.answer("deny", func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "not " + r.Name}}
	})
	hook.answer("allow", func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	hook.answer("label", func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		kind := admissionv1.PatchTypeJSONPatch
		return &admissionv1.AdmissionResponse{Allowed: true, PatchType: &kind, Patch: []byte(`[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`)}
	})
	hook.answer("hang", func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse { return nil })
	return &hooked{startConfigured(t, func(c *server.Config) { c.EgressAllow = loopback() }), hook}
}

// tenant returns a new logical cluster, of which ann is an administrator.
func (h *hooked) tenant(t *testing.T) *tenant {
	t.Helper()
	return h.server.tenant(t)
}

// validates creates a validating webhook in the tenant's cluster.
func (h *hooked) validates(c *tenant, path string, change func(*admissionregistrationv1.ValidatingWebhook), rules ...admissionregistrationv1.RuleWithOperations) *admissionregistrationv1.ValidatingWebhookConfiguration {
	c.t.Helper()
	none := admissionregistrationv1.SideEffectClassNone
	w := admissionregistrationv1.ValidatingWebhook{
		Name: "a.example.com", ClientConfig: h.hook.client(path), Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
	}
	if change != nil {
		change(&w)
	}
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(strings.Trim(path, "/"), "/", ".")}, Webhooks: []admissionregistrationv1.ValidatingWebhook{w},
	}
	return must(c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(c.t.Context(), config, metav1.CreateOptions{}))(c.t)
}

// mutates creates a mutating webhook in the tenant's cluster.
func (h *hooked) mutates(c *tenant, path string, change func(*admissionregistrationv1.MutatingWebhook), rules ...admissionregistrationv1.RuleWithOperations) {
	c.t.Helper()
	none := admissionregistrationv1.SideEffectClassNone
	w := admissionregistrationv1.MutatingWebhook{
		Name: "a.example.com", ClientConfig: h.hook.client(path), Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
	}
	if change != nil {
		change(&w)
	}
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(strings.Trim(path, "/"), "/", ".")}, Webhooks: []admissionregistrationv1.MutatingWebhook{w},
	}
	must(c.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(c.t.Context(), config, metav1.CreateOptions{}))(c.t)
}

// write creates a config map in namespace default.
func (c *tenant) write(name string, o metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return c.kube.CoreV1().ConfigMaps("default").Create(c.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, o)
}

func wantRefusal(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	h := newHooked(t)
	for name, test := range map[string]func(*testing.T, *hooked){
		"refuses": testWebhookRefuses, "changes": testWebhookChanges, "reinvoked": testWebhookReinvoked, "dry run": testWebhookDryRun,
		"selects": testWebhookSelects, "fails": testWebhookFails, "addresses": testWebhookAddresses, "authorities": testWebhookAuthorities,
		"lock out": testWebhookLockOut, "garbage": testWebhookGarbage, "privileges": testWebhookPrivileges, "provider": testWebhookProvider,
		"hangs": testWebhookHangs, "provider hangs": testWebhookProviderHangs, "limits": testWebhookLimits, "purge": testWebhookPurge,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, h) })
	}
}

// A webhook refuses the requests of its own cluster, as soon as it is created and until it is
// deleted.
func testWebhookRefuses(t *testing.T, h *hooked) {
	c, other := h.tenant(t), h.tenant(t)
	must(c.write("before", metav1.CreateOptions{}))(t)
	h.validates(c, "/deny/"+string(c.name), nil, matching("", "configmaps", admissionregistrationv1.Create))
	_, err := c.write("a", metav1.CreateOptions{})
	wantRefusal(t, err, `admission webhook "a.example.com" denied the request: not a`)
	must(other.write("a", metav1.CreateOptions{}))(t)
	reviews := h.hook.reviews("/deny/" + string(c.name))
	if len(reviews) != 1 {
		t.Fatalf("%d reviews", len(reviews))
	}
	var o unstructured.Unstructured
	if err := json.Unmarshal(reviews[0].Object.Raw, &o); err != nil || cluster.Of(&o) != c.name {
		t.Errorf("the object in the review is of cluster %q: %v", cluster.Of(&o), err)
	}
	configs := c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if err := configs.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	must(c.write("a", metav1.CreateOptions{}))(t)
}
