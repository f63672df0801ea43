package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  resources: [{group: "", resources: [configmaps]}]
- level: Metadata
`

// recorded starts a server that records every request in a file and at a webhook.
func recorded(t *testing.T) (*operated, func() []auditv1.Event, *collector) {
	t.Helper()
	dir := t.TempDir()
	hook := &collector{}
	sink := httptest.NewServer(hook)
	t.Cleanup(sink.Close)
	o := server.DefaultOperation()
	o.Audit.PolicyFile, o.Audit.LogOptions.Path = filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	write(t, o.Audit.PolicyFile, []byte(auditPolicy))
	o.Audit.WebhookOptions.ConfigFile = filepath.Join(dir, "webhook.kubeconfig")
	write(t, o.Audit.WebhookOptions.ConfigFile, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"`+sink.URL+`"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`))
	o.Audit.WebhookOptions.BatchOptions.Mode = "blocking"
	s := operate(t, t.TempDir(), o)
	return s, func() []auditv1.Event {
		var all []auditv1.Event
		for line := range strings.Lines(string(must(os.ReadFile(o.Audit.LogOptions.Path))(t))) {
			if !strings.HasSuffix(line, "\n") {
				break // a line that is still being written
			}
			var e auditv1.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		return all
	}, hook
}

// collector collects audit events by webhook.
type collector struct {
	mu  sync.Mutex
	all []auditv1.Event
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	var list auditv1.EventList
	if json.NewDecoder(req.Body).Decode(&list) == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, list.Items...)
	}
}

// Audit events contain the logical cluster and its path, the requested URL, and the
// authorization decision.
func TestAudit(t *testing.T) {
	t.Parallel()
	s, events, hook := recorded(t)
	made := s.workspace(t, "audited")
	other := s.workspace(t, "other")

	for at, data := range map[string]string{"root:audited": "body-of-audited", "root:other": "body-of-other"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Annotations: map[string]string{cluster.Annotation: "root", "kcp.io/path": "root"}}, Data: map[string]string{"d": data}}
		if _, err := s.client(t, at, "").CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/clusters/root%3Aaudited/api/v1/namespaces/default/configmaps/cm?x=y", "/clusters/" + string(made) + "//api/v1/namespaces/default/configmaps", "/clusters/root:audited:missing/api"} {
		s.do(t, http.MethodGet, path, nil)
	}
	alice := s.client(t, "root:audited", "alices-token")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets"}}}
	if _, err := s.client(t, "root:audited", "").AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	if _, err := s.client(t, "root:audited", "nobodys").CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Fatal(err)
	}
	of := map[string]string{auditCluster: string(made), auditWorkspace: string(made), "kcp.io/path": "root:audited"}
	allowed := map[string]string{
		"authorization.k8s.io/decision": "allow", "request.auth.kcp.io/01-requiredgroups-decision": "Allowed", "request.auth.kcp.io/02-content-decision": "Allowed",
		"request.auth.kcp.io/03-systemcrd-decision": "NoOpinion", "request.auth.kcp.io/04-maxpermissionpolicy-decision": "NoOpinion", "request.auth.kcp.io/05-bootstrap-decision": "Allowed",
	}
	all := events()
	for _, want := range []struct {
		verb, uri   string
		code        int32
		annotations map[string]string
	}{
		{"create", "/clusters/root:audited/api/v1/namespaces/default/configmaps", 201, of},
		{"create", "/clusters/root:audited/api/v1/namespaces/default/configmaps", 201, allowed},
		{"create", "/clusters/root:other/api/v1/namespaces/default/configmaps", 201, map[string]string{auditCluster: string(other), "kcp.io/path": "root:other"}},
		{"get", "/clusters/root%3Aaudited/api/v1/namespaces/default/configmaps/cm?x=y", 200, of},
		{"list", "/clusters/" + string(made) + "//api/v1/namespaces/default/configmaps", 404, of},
		{"create", "/clusters/root:audited/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 201, of},
		{"create", "/clusters/root:audited/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 201, allowed},
		{"list", "/clusters/root:audited/api/v1/namespaces/default/secrets", 403, of},
		{"list", "/clusters/root:audited/api/v1/namespaces/default/secrets", 403, map[string]string{"authorization.k8s.io/decision": "forbid", "request.auth.kcp.io/02-content-decision": "NoOpinion"}},
		{"list", "/clusters/root:audited/api/v1/namespaces/default/pods", 401, of},
		{"get", "/clusters/root:audited:missing/api", 404, map[string]string{"kcp.io/path": "root:audited:missing", auditCluster: ""}},
	} {
		if !recordedAs(all, want.verb, want.uri, want.code, want.annotations) {
			t.Errorf("no event of %s %s with %d and %v", want.verb, want.uri, want.code, want.annotations)
			for _, e := range all {
				if e.RequestURI == want.uri {
					t.Logf("there is %s with %v and %v", e.Verb, e.ResponseStatus, e.Annotations)
				}
			}
		}
	}
	hook.mu.Lock()
	defer hook.mu.Unlock()
	for _, of := range [][]auditv1.Event{all, hook.all} {
		bodies := 0
		for _, e := range of {
			text := must(json.Marshal(e))(t)
			if e.RequestObject != nil && e.ObjectRef.Resource == "configmaps" && strings.Contains(string(text), "body-of-") {
				bodies++
			}
			if c := e.Annotations[auditCluster]; c != string(other) && strings.Contains(string(text), "body-of-other") || c != string(made) && strings.Contains(string(text), "body-of-audited") {
				t.Errorf("an event of cluster %q has the body of another: %s", c, text)
			}
		}
		if bodies != 2 {
			t.Errorf("%d bodies of requests were recorded, want 2", bodies)
		}
	}
}

const (
	auditCluster   = "kcp.io/cluster"
	auditWorkspace = "tenancy.kcp.io/workspace"
)

func recordedAs(all []auditv1.Event, verb, uri string, code int32, annotations map[string]string) bool {
	for _, e := range all {
		if e.Verb != verb || e.RequestURI != uri || e.ResponseStatus == nil || e.ResponseStatus.Code != code {
			continue
		}
		same := true
		for k, v := range annotations {
			same = same && e.Annotations[k] == v
		}
		if same {
			return true
		}
	}
	return false
}

// workspace creates a workspace below root and returns its cluster.
func (s *operated) workspace(t *testing.T, name string) cluster.Name {
	t.Helper()
	w := &unstructured.Unstructured{Object: map[string]any{}}
	w.SetAPIVersion(tenancyapi.GroupVersion.String())
	w.SetKind("Workspace")
	w.SetName(name)
	client := must(dynamic.NewForConfig(s.InProcess("root", server.System())))(t)
	made := must(client.Resource(tenancyapi.GroupVersion.WithResource("workspaces")).Create(t.Context(), w, metav1.CreateOptions{}))(t)
	return cluster.Name(text(made, "spec", "cluster"))
}
