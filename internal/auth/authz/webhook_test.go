package authz

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

// A reviewer is an authorization webhook.
type reviewer struct {
	*httptest.Server

	mu    sync.Mutex
	asked []authorizationv1.SubjectAccessReviewSpec
}

func newReviewer(t *testing.T, decide func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus) *reviewer {
	r := &reviewer{}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		r.asked = append(r.asked, review.Spec)
		r.mu.Unlock()
		review.Status = decide(review.Spec)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *reviewer) questions() []authorizationv1.SubjectAccessReviewSpec {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// allowIn allows all requests in these clusters, except those of the user "banned".
func allowIn(clusters ...string) func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
	return func(s authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		told := s.Extra[WebhookClusterKey]
		if !slices.Equal(told, s.Extra[WebhookKcpClusterKey]) {
			return authorizationv1.SubjectAccessReviewStatus{Reason: "the keys differ"}
		}
		return authorizationv1.SubjectAccessReviewStatus{Allowed: s.User != "banned" && len(told) == 1 && slices.Contains(clusters, told[0]), Denied: s.User == "banned", Reason: "because"}
	}
}

func (r *reviewer) options(t *testing.T) AuthorizationOptions {
	return AuthorizationOptions{
		WebhookConfigFile: authtest.WebhookFile(t, r.URL, authtest.CAOf(r.Server)), WebhookVersion: "v1",
		WebhookAuthorizedTTL: time.Hour, WebhookUnauthorizedTTL: time.Hour,
	}
}

func withWebhook(t *testing.T, o AuthorizationOptions) *Authorizer {
	m := tenants()
	return newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, AuthorizationOptions: o})
}

// Answers of the webhook for one cluster are never used for another, whatever extra keys a user
// has.
func TestWebhookKnowsTheCluster(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v1beta1"} {
		hook := newReviewer(t, allowIn("aa"))
		o := hook.options(t)
		o.WebhookVersion = version
		z := withWebhook(t, o)
		claims := &user.DefaultInfo{Name: "eve", Groups: []string{user.AllAuthenticated}, Extra: map[string][]string{
			WebhookClusterKey: {"aa"}, "Authorization.Kubernetes.io/Cluster-Name": {"aa"}, "team": {"x"},
			WebhookKcpClusterKey: {"aa"}, "Authorization.Kcp.io/Cluster-Name": {"aa"},
		}}
		marked := markedUser{claims, "aa", 1}
		for range 3 { // from the second time on it is remembered
			for _, u := range []user.Info{authtest.Person("eve"), claims, marked} {
				if d, _, err := z.Authorize(authtest.In("aa"), resource(u, "get", "secrets", "ns")); d != authorizer.DecisionAllow || err != nil {
					t.Errorf("%s in aa: %v, %v", u.GetName(), d, err)
				}
				if d, reason, err := z.Authorize(authtest.In("bb"), resource(u, "get", "secrets", "ns")); d == authorizer.DecisionAllow || reason != Denied || err != nil {
					t.Errorf("%s in bb: %v, %q, %v", u.GetName(), d, reason, err)
				}
			}
		}
		asked := hook.questions()
		if len(asked) != 4 { // with and without extra, in two clusters
			t.Errorf("it was asked %d times: %+v", len(asked), asked)
		}
		for _, s := range asked {
			for key := range s.Extra {
				if key != WebhookClusterKey && key != WebhookKcpClusterKey && key != "team" {
					t.Errorf("it was told %q", key)
				}
			}
		}
	}
}

// The webhook can distinguish service accounts of the same name in different clusters. In its own
// cluster an account has two names.
func TestWebhookTellsServiceAccountsApart(t *testing.T) {
	t.Parallel()
	hook := newReviewer(t, allowIn())
	z := withWebhook(t, hook.options(t))
	for _, c := range []cluster.Name{"aa", "bb"} {
		if _, _, err := z.Authorize(authtest.In(c), resource(authtest.Account("aa", "ns", "robot"), "get", "secrets", "other")); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, s := range hook.questions() {
		names = append(names, s.User+" in "+strings.Join(s.Extra[WebhookClusterKey], ","))
	}
	want := []string{"system:serviceaccount:ns:robot in aa", "system:kcp:serviceaccount:aa:ns:robot in aa", "system:kcp:serviceaccount:aa:ns:robot in bb"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestWebhookOrder(t *testing.T) {
	t.Parallel()
	hook := newReviewer(t, allowIn("aa"))
	last, first := hook.options(t), hook.options(t)
	first.Order = []string{WebhookAuthorizer, AlwaysAllowGroups, RBACAuthorizer, AlwaysAllowPaths}
	only := hook.options(t)
	only.Order = []string{AlwaysAllowGroups, WebhookAuthorizer}
	admin := authtest.Person("banned", auth.AdminGroup)
	masters := authtest.Person("banned", user.SystemPrivilegedGroup)
	const allow, deny, noOpinion = authorizer.DecisionAllow, authorizer.DecisionDeny, authorizer.DecisionNoOpinion
	for name, tt := range map[string]struct {
		o     AuthorizationOptions
		in    cluster.Name
		u     user.Info
		want  authorizer.Decision
		asked bool
	}{
		"RBAC allows, and comes first":     {last, "aa", admin, allow, false},
		"RBAC has no opinion":              {last, "aa", authtest.Person("eve"), allow, true},
		"neither has an opinion":           {last, "bb", authtest.Person("eve"), noOpinion, true},
		"the webhook denies":               {last, "aa", authtest.Person("banned"), deny, true},
		"the webhook denies first":         {first, "aa", admin, deny, true},
		"RBAC is asked after it":           {first, "bb", authtest.Person("boss", auth.AdminGroup), allow, true},
		"without RBAC":                     {only, "bb", authtest.Person("boss", auth.AdminGroup), noOpinion, true},
		"system:masters":                   {last, "aa", masters, allow, false},
		"system:masters, webhook first":    {first, "aa", masters, allow, false},
		"system:masters, all clusters":     {first, cluster.All, masters, allow, false},
		"all clusters":                     {first, cluster.All, authtest.Person("eve"), deny, false},
		"all clusters, webhook only":       {only, cluster.All, authtest.Person("eve"), deny, false},
		"a system cluster":                 {first, "system:admin", authtest.Person("eve"), deny, false},
		"a cluster that is not there":      {first, "zz", authtest.Person("eve"), deny, false},
		"no cluster":                       {first, "", authtest.Person("eve"), noOpinion, true},
		"no cluster, the webhook denies":   {first, "", authtest.Person("banned"), deny, true},
		"no cluster, the webhook last":     {last, "", authtest.Person("eve"), noOpinion, true},
		"no cluster, and the webhook only": {only, "", authtest.Person("eve"), noOpinion, true},
	} {
		before := len(hook.questions())
		d, _, err := withWebhook(t, tt.o).Authorize(authtest.In(tt.in), resource(tt.u, "get", "secrets", "ns"))
		if d != tt.want || err != nil {
			t.Errorf("%s: %v, %v; want %v", name, d, err, tt.want)
		}
		if asked := len(hook.questions()) > before; asked != tt.asked {
			t.Errorf("%s: the webhook was asked: %v", name, asked)
		}
	}
	// The order determines whether open paths are allowed before or after the webhook.
	before := len(hook.questions())
	if d, _, _ := withWebhook(t, last).Authorize(authtest.In("bb"), nonResource(authtest.Nobody(), "get", "/livez")); d != allow || len(hook.questions()) > before {
		t.Errorf("an open path: %v", d)
	}
	if d, _, _ := withWebhook(t, only).Authorize(authtest.In("bb"), nonResource(authtest.Nobody(), "get", "/livez")); d == allow {
		t.Errorf("no paths are open: %v", d)
	}
	early := hook.options(t)
	early.Order = []string{AlwaysAllowGroups, WebhookAuthorizer, AlwaysAllowPaths, RBACAuthorizer}
	for _, c := range []cluster.Name{"", "bb", "zz", cluster.All, "system:admin"} {
		if d, _, _ := withWebhook(t, early).Authorize(authtest.In(c), nonResource(authtest.Nobody(), "get", "/livez")); d != allow {
			t.Errorf("an open path in %q, after a webhook without an opinion: %v", c, d)
		}
	}
	// The webhook decides about requests without a cluster, but not about paths of the process.
	everywhere := withWebhook(t, newReviewer(t, func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
	}).options(t))
	if d, _, _ := everywhere.Authorize(authtest.In(""), nonResource(authtest.Person("eve"), "get", "/version")); d != allow {
		t.Errorf("the version, allowed by the webhook: %v", d)
	}
	if _, _, incomplete, _ := withWebhook(t, last).RulesFor(authtest.In("aa"), authtest.Person("eve"), "ns"); !incomplete {
		t.Error("the rules of a user are said to be all, though a webhook may allow more")
	}
}

// A webhook that cannot be reached allows nothing. The error names the webhook, and the timeout of
// the file applies.
func TestWebhookThatFails(t *testing.T) {
	t.Parallel()
	hung := authtest.HangingServer(t)
	broken := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) }))
	t.Cleanup(broken.Close)
	down := httptest.NewTLSServer(nil)
	down.Close()
	for name, s := range map[string]*httptest.Server{"hangs": hung, "is down": down, "is broken": broken} {
		for policy, want := range map[string][2]authorizer.Decision{
			"Deny":      {authorizer.DecisionDeny, authorizer.DecisionDeny},
			"NoOpinion": {authorizer.DecisionNoOpinion, authorizer.DecisionAllow},
		} {
			file := authtest.WriteFile(t, "authorization.yaml", bytes.Replace(authorizersFile(authtest.WebhookFile(t, s.URL, authtest.CAOf(s)), policy, "Webhook", "RBAC"), []byte("30s"), []byte("200ms"), 1))
			z := withWebhook(t, AuthorizationOptions{ConfigFile: file})
			d, reason, err := z.Authorize(authtest.In("aa"), resource(authtest.Person("eve"), "get", "secrets", "ns"))
			if d != want[0] || reason != Denied || err == nil || !strings.Contains(err.Error(), `webhook "hook"`) || strings.Contains(err.Error(), s.URL) {
				t.Errorf("%s, %s: %v, %q, %v", name, policy, d, reason, err)
			}
			if d, _, _ := z.Authorize(authtest.In("aa"), resource(authtest.Person("boss", auth.AdminGroup), "get", "secrets", "ns")); d != want[1] {
				t.Errorf("%s, %s: RBAC after it: %v", name, policy, d)
			}
			if d, _, err := z.Authorize(authtest.In("aa"), resource(authtest.Person("x", user.SystemPrivilegedGroup), "get", "secrets", "ns")); d != authorizer.DecisionAllow || err != nil {
				t.Errorf("%s, %s: system:masters: %v, %v", name, policy, d, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(authtest.In("aa"), 50*time.Millisecond)
	defer cancel()
	o := AuthorizationOptions{WebhookConfigFile: authtest.WebhookFile(t, hung.URL, authtest.CAOf(hung)), Order: []string{AlwaysAllowGroups, WebhookAuthorizer, RBACAuthorizer}}
	if d, _, err := withWebhook(t, o).Authorize(ctx, resource(authtest.Person("boss", auth.AdminGroup), "get", "secrets", "ns")); d != authorizer.DecisionDeny || err == nil {
		t.Errorf("by flags, a webhook that does not answer: %v, %v", d, err)
	}
}

// authorizersFile is an AuthorizationConfiguration with a webhook and RBAC.
func authorizersFile(kubeconfig, policy string, types ...string) []byte {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"
	for _, kind := range types {
		if kind != "Webhook" {
			text += fmt.Sprintf("- {type: %s, name: %s}\n", kind, strings.ToLower(kind))
			continue
		}
		text += fmt.Sprintf(`- type: Webhook
  name: hook
  webhook:
    timeout: 30s
    authorizedTTL: 1h
    unauthorizedTTL: 1h
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: %s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: "!('authorization.kubernetes.io/cluster-name' in request.extra) || request.extra['authorization.kubernetes.io/cluster-name'] != ['cc']"
`, policy, kubeconfig)
	}
	return []byte(text)
}

func TestAuthorizersByFile(t *testing.T) {
	t.Parallel()
	hook := newReviewer(t, allowIn("aa", "cc"))
	kubeconfig := authtest.WebhookFile(t, hook.URL, authtest.CAOf(hook.Server))
	path := authtest.WriteFile(t, "authorization.yaml", authorizersFile(kubeconfig, "Deny", "RBAC", "Webhook"))
	m := tenants()
	m.at("cc")
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, AuthorizationOptions: AuthorizationOptions{ConfigFile: path}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); z.Run(ctx) }()
	allows := func(c cluster.Name, u user.Info) bool {
		d, _, err := z.Authorize(authtest.In(c), resource(u, "get", "secrets", "ns"))
		if err != nil {
			t.Errorf("%s in %s: %v", u.GetName(), c, err)
		}
		return d == authorizer.DecisionAllow
	}
	if !allows("aa", authtest.Person("eve")) || allows("bb", authtest.Person("eve")) || !allows("bb", authtest.Person("boss", auth.AdminGroup)) {
		t.Error("not as the file says")
	}
	if allows("cc", authtest.Person("eve")) {
		t.Error("the condition on the cluster has no effect")
	}
	if d, _, _ := z.Authorize(authtest.In("bb"), nonResource(authtest.Nobody(), "get", "/livez")); d != authorizer.DecisionAllow {
		t.Error("a path that is always allowed is not")
	}
	authtest.ReplaceFile(t, path, authorizersFile(kubeconfig, "Deny", "RBAC"))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for allows("aa", authtest.Person("eve")) {
		select {
		case <-tick.C:
		case <-time.After(time.Minute):
			t.Fatal("the changed file is not taken over")
		}
	}
	cancel()
	<-ended
	for name, broken := range map[string][]byte{
		"nothing":            nil,
		"no YAML":            []byte("{"),
		"AlwaysAllow":        authorizersFile(kubeconfig, "Deny", "AlwaysAllow"),
		"Node":               authorizersFile(kubeconfig, "Deny", "Node", "RBAC"),
		"nobody":             authorizersFile(kubeconfig, "Deny"),
		"RBAC twice":         authorizersFile(kubeconfig, "Deny", "RBAC", "RBAC"),
		"no such kubeconfig": authorizersFile(kubeconfig+"x", "Deny", "Webhook"),
		"an unknown policy":  authorizersFile(kubeconfig, "Allow", "Webhook"),
	} {
		authtest.ReplaceFile(t, path, broken)
		if changed, err := z.reload(); changed || err == nil {
			t.Errorf("%s is taken over: %v", name, err)
		}
		if err := (AuthorizationOptions{ConfigFile: path}).Validate(); err == nil || !strings.Contains(err.Error(), "--authorization-config") {
			t.Errorf("%s at the start: %v", name, err)
		}
		if allows("aa", authtest.Person("eve")) || !allows("aa", authtest.Person("boss", auth.AdminGroup)) {
			t.Errorf("%s: no longer as before", name)
		}
	}
}

func TestAuthorizationOptionsThatAreWrong(t *testing.T) {
	t.Parallel()
	hook := newReviewer(t, allowIn())
	file := hook.options(t).WebhookConfigFile
	for want, o := range map[string]AuthorizationOptions{
		`unknown authorizer "rbac"`:           {Order: []string{"AlwaysAllowGroups", "rbac"}},
		`"RBAC" twice`:                        {Order: []string{"AlwaysAllowGroups", "RBAC", "RBAC"}},
		"lacks AlwaysAllowGroups":             {Order: []string{"RBAC"}},
		"has no authorizer for users":         {Order: []string{"AlwaysAllowGroups", "Webhook"}},
		"no effect without Webhook":           {Order: []string{"AlwaysAllowGroups", "RBAC"}, WebhookConfigFile: file},
		"--authorization-webhook-config-file": {WebhookConfigFile: file + "x"},
		"v2":                                  {WebhookConfigFile: file, WebhookVersion: "v2"},
		"cannot be negative":                  {WebhookConfigFile: file, WebhookAuthorizedTTL: -1},
		"leave out --authorization-order":     {ConfigFile: file, Order: []string{"RBAC"}},
		"leave out --authorization-order and --authorization-webhook": {ConfigFile: file, WebhookConfigFile: file},
		"--authorization-always-allow-paths":                          {AlwaysAllowPaths: []string{"/a*b"}},
		"no such file":                                                {ConfigFile: file + "x"},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", o, err, want)
		}
	}
	open := AuthorizationOptions{AlwaysAllowPaths: []string{"/openid/*"}}
	z := withWebhook(t, open)
	for path, want := range map[string]authorizer.Decision{"/openid/v1/jwks": authorizer.DecisionAllow, "/livez": authorizer.DecisionNoOpinion} {
		if d, _, _ := z.Authorize(authtest.In("bb"), nonResource(authtest.Nobody(), "get", path)); d != want {
			t.Errorf("%s: %v", path, d)
		}
	}
}
