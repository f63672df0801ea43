package server_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// get gets a path of the view, and returns the status and body.
func (v *viewer) get(at string) (int, string) {
	v.t.Helper()
	config := v.config("")
	req := must(http.NewRequestWithContext(v.t.Context(), http.MethodGet, config.Host+at, nil))(v.t)
	resp := must((&http.Client{Transport: config.Transport}).Do(req))(v.t)
	defer resp.Body.Close()
	return resp.StatusCode, string(must(io.ReadAll(resp.Body))(v.t))
}

const lcs = "/apis/core.kcp.io/v1alpha1/logicalclusters"

// Users who may not use an initializer cannot learn whether it exists or which workspaces
// wait for it.
func TestNobodyLearnsOfInitializersOfOthers(t *testing.T) {
	t.Parallel()
	home, mine := newTenant(t), newTenant(t)
	w := home.workspace("w")
	mallory := as("mallory")
	mine.allow("mallory")
	ids := []string{string(home.name) + ":web", string(home.name) + ":nothing", string(cluster.NewName()) + ":web", "root:universal", "system:apibindings"}
	w.become("Initializing", map[string][]string{"initializers": {ids[0]}})
	for _, at := range []string{
		"*" + lcs, "*" + lcs + "?watch=true", string(w.name) + lcs, string(w.name) + lcs + "/cluster", string(w.name) + "/api/v1/configmaps",
		"*/apis", "*/openapi/v3", string(w.name) + "/api", string(cluster.NewName()) + lcs + "/cluster",
	} {
		var answers []string
		for _, id := range ids {
			for _, view := range []*viewer{home.initializing(id, mallory), home.terminating(id, mallory)} {
				status, text := view.get(at)
				if status != http.StatusForbidden || strings.Contains(text, string(w.name)) && !strings.Contains(at, string(w.name)) {
					t.Errorf("%s %s: %d %s", id, at, status, text)
				}
				kind := id[strings.LastIndex(id, ":")+1:]
				answers = append(answers, strings.NewReplacer(`\"`+kind+`\"`, "TYPE", `"`+kind+`"`, "TYPE", "initialize", "VERB", "terminate", "VERB").Replace(text))
			}
		}
		if len(slices.Compact(answers)) != 1 {
			t.Errorf("at %s answers differ: %q", at, answers)
		}
	}
	for _, path := range []string{"x", "", "x:y:z:", ":", "a::b", "..", "%2e%2e"} {
		if status, text := home.initializing(path, mallory).get("*" + lcs); status == http.StatusOK || status >= http.StatusInternalServerError {
			t.Errorf("initializer %q: %d %s", path, status, text)
		}
	}
}

// The owner of a type sees the workspaces that wait for its initializer, and no others.
func TestAViewHasNothingElse(t *testing.T) {
	t.Parallel()
	home, others := newTenant(t), newTenant(t)
	home.allow("mallory")
	id := string(home.name) + ":web"
	hidden := others.workspace("hidden")
	hidden.become("Initializing", map[string][]string{"initializers": {"root:universal"}})
	var shown []cluster.Name
	for _, name := range []string{"a", "b", "c"} {
		w := others.workspace(name)
		w.become("Initializing", map[string][]string{"initializers": {id}})
		shown = append(shown, w.name)
	}
	v := others.initializing(id, as("mallory"))

	// The response for another cluster equals that for a missing one.
	for _, path := range []string{lcs + "/cluster", "/api/v1/configmaps", "/api", "/apis", "/openapi/v3", lcs + "/cluster/status", lcs} {
		answer := func(c string) string {
			status, text := v.get(c + path)
			return strings.ReplaceAll(http.StatusText(status)+text, c, "")
		}
		gone := answer(string(cluster.NewName()))
		for _, c := range []string{string(hidden.name), string(others.name), "root", string(others.name) + ":hidden", "system:admin"} {
			if got := answer(c); got != gone && path != lcs {
				t.Errorf("%s%s: %s, not %s", c, path, got, gone)
			}
			if path == lcs && strings.Contains(answer(c), "uid") {
				t.Errorf("%s is listed: %s", c, answer(c))
			}
		}
	}
	// Neither selectors nor pages show the hidden cluster.
	for _, selector := range []string{"", "tenancy.kcp.io/phase=Initializing", "!x", "x notin (y)", "tenancy.kcp.io/phase!=Ready"} {
		var got []string
		next := ""
		for {
			page := must(v.clusters("*").List(t.Context(), metav1.ListOptions{LabelSelector: selector, Limit: 1, Continue: next}))(t)
			if page.GetRemainingItemCount() != nil {
				t.Errorf("%d more are told of", *page.GetRemainingItemCount())
			}
			got = append(got, names(page)...)
			if next = page.GetContinue(); next == "" {
				break
			}
			if token := must(base64.RawURLEncoding.DecodeString(next))(t); strings.Contains(string(token), string(hidden.name)) {
				t.Errorf("the token says %s", token)
			}
		}
		slices.Sort(got)
		want := make([]string, len(shown))
		for i, c := range shown {
			want[i] = string(c)
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("with %q: %v, not %v", selector, got, want)
		}
	}
	if _, err := v.clusters("*").List(t.Context(), metav1.ListOptions{LabelSelector: "a in (b"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a selector that is none: %v", err)
	}
}

// All clusters of a view together accept no writes and serve no endpoints of the server.
func TestWhatAViewRefuses(t *testing.T) {
	t.Parallel()
	home := newTenant(t)
	home.allow("mallory")
	id := string(home.name) + ":web"
	w := home.workspace("w")
	w.become("Initializing", map[string][]string{"initializers": {id}})
	v := home.initializing(id, as("mallory"))
	for at, want := range map[string]int{
		"*/api/v1/configmaps": 404, "*/apis/tenancy.kcp.io/v1alpha1/workspaces": 404, "*" + lcs + "/cluster": 405, "*" + lcs + "/cluster/status": 405,
		"*" + lcs + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan": 422,
		"*/metrics": 404, "*/debug/pprof/": 404, "*/readyz": 404, "*/": 404, "*/clusters/root/api/v1/secrets": 404, "*/services/initializingworkspaces/" + id + "/clusters/*" + lcs: 404,
		string(w.name) + "/metrics": 404, string(w.name) + "/debug/pprof/": 404, string(w.name) + "/configz": 404, string(w.name) + "/clusters/root/api/v1/secrets": 404,
		string(w.name) + "/readyz": 404, string(w.name) + "/api/v1/namespaces/default/configmaps": 200, "": 404, "*/version": 200, string(w.name) + "/version": 200,
		"*/../../../clusters/root" + lcs: 400, "*/openapi/v3": 200, "*/api": 200, "*/apis": 200, "*/apis/core.kcp.io": 200, "*/apis/core.kcp.io/v1alpha1": 200,
		"*/apis/tenancy.kcp.io/v1alpha1": 404, "*/openapi/v2": 404, "*/openapi/v3/apis/core.kcp.io/v1alpha1": 200,
	} {
		if got, text := v.get(at); got != want {
			t.Errorf("%s: %d, not %d: %s", at, got, want, text)
		}
	}
	for _, name := range []string{"", "nothing/", "apiexport/a/b/", "initializingworkspaces", "initializingworkspaces/" + id, "initializingworkspaces/" + id + "/clusters"} {
		other := &viewer{t, home.server, "/services/" + name, server.System()}
		if got, text := other.get(""); got != 404 {
			t.Errorf("/services/%s: %d %s", name, got, text)
		}
	}
	for name, why := range map[string]string{
		"migratingworkspaces": "a single shard", "cache/shards/root": "a single shard",
	} { // all users get the reason, instead of a 403
		other := &viewer{t, home.server, "/services/" + name + "/clusters/", as("mallory")}
		if got, text := other.get("*/api"); got != 404 || !strings.Contains(text, why) {
			t.Errorf("/services/%s: %d %s", name, got, text)
		}
	}
	all := v.clusters("*")
	for name, err := range map[string]error{
		"delete": all.Delete(t.Context(), "cluster", metav1.DeleteOptions{}), "delete all": all.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		"patch": func() error {
			_, err := all.Patch(t.Context(), "cluster", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")
			return err
		}(),
	} {
		if !apierrors.IsMethodNotSupported(err) {
			t.Errorf("%s of all: %v", name, err)
		}
	}
	// When an initializer acts as a creator, system groups of the creator are dropped. The
	// system created w.
	review := must(v.kube(w.name).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{}))(t)
	if u := review.Status.UserInfo; slices.Contains(u.Groups, "system:masters") {
		t.Errorf("it acts as %v", u)
	}
}

// Only the server puts users into the groups of initializers.
func TestNobodyComesAsAnInitializer(t *testing.T) {
	t.Parallel()
	home := newTenant(t)
	id := string(home.name) + ":web"
	group := "system:kcp:initializer:" + id
	w := home.workspace("w")
	w.become("Initializing", map[string][]string{"initializers": {id}})
	w.allow("alice")
	impersonate := func(config *rest.Config, u rest.ImpersonationConfig) kubernetes.Interface {
		config = rest.CopyConfig(config)
		config.Impersonate = u
		return must(kubernetes.NewForConfig(config))(t)
	}
	alice := w.server.InProcess(string(w.name), as("alice"))
	for _, group := range []string{group, "system:kcp:terminator:root:x", "system:kcp:initializer:", auth.Agents} {
		_, err := impersonate(alice, rest.ImpersonationConfig{UserName: "bob", Groups: []string{group}}).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only members of this group may impersonate it") {
			t.Errorf("alice takes on %s: %v", group, err)
		}
	}
	// Such groups in a token are dropped.
	liar := must(kubernetes.NewForConfig(w.withToken("liars-token")))(t)
	if _, err := liar.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a liar enters: %v", err)
	}
	r := must(w.kube.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "liars-token"}}, metav1.CreateOptions{}))(t)
	if u := r.Status.User; u.Username != "liar" || !slices.Contains(u.Groups, "honest") || slices.ContainsFunc(u.Groups, func(g string) bool { return strings.HasPrefix(g, "system:kcp:") }) {
		t.Errorf("the liar is %v", r.Status)
	}

	// Users who may impersonate in their own cluster cannot do so through a view in others.
	home.allow("ina")
	v := home.initializing(id, as("ina"))
	config := v.config(string(w.name))
	if _, err := impersonate(config, rest.ImpersonationConfig{UserName: "alice"}).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot impersonate") {
		t.Errorf("through a view as alice: %v", err)
	}
	must(v.kube(w.name).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}))(t)
}
