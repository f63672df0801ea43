package conformance

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
)

// judge reports the tests that should have passed in a workspace, and logs how many passed and
// why the others did not.
func (s suites) judge(t *testing.T, got *suite) {
	t.Helper()
	reasons := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(got.results)) {
		reason, ok := verdict(name, s.want.results[name], got.results[name])
		if ok {
			reasons[reason]++
			continue
		}
		t.Errorf("%s: %s is a bug (%s): %s", got.name, name, got.results[name].State, reason)
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		t.Logf("%s: %4d %s", got.name, reasons[reason], reason)
	}
}

// verdict returns the reason for the result of a test in a workspace, and whether it is good.
// want is the result at the stock server; nil if that is not known, and then it must pass.
func verdict(name string, want, got *spec) (reason string, ok bool) {
	stock := "passed"
	if want != nil {
		stock = want.State
	}
	switch {
	case got.State == "passed" && stock == "passed":
		return "passed", true
	case got.State == "passed":
		return "passed, not at the stock server", true
	case got.State == "skipped" && (want == nil || stock == "skipped"), got.State == "pending":
		return got.State + ", as at the stock server", true
	}
	text := got.Failure.Message
	if strings.HasPrefix(text, "Unable to create template ") { // says no more; the log has the answers
		text += "\n" + got.CapturedGinkgoWriterOutput
	}
	if missing := missingKind(text); missing != "" {
		return "workspaces have no " + missing, true
	}
	if stock != "passed" {
		if strings.Contains(want.Failure.Message, noPods) {
			return "needs a pod, at the stock server too", true
		}
		return "did not pass at the stock server without pods either", true
	}
	for _, e := range exceptions {
		if strings.Contains(name, e.test) && strings.Contains(text, e.text) {
			return e.why, true
		}
	}
	return text, false
}

// missingKind returns the kind that a test missed, as its failure says, if it is one that
// workspaces do not have.
func missingKind(text string) string {
	for _, says := range []string{
		`this (?:one|workspace) serves no ([a-z0-9.]*[a-z0-9])`, // the server itself
		`no matches for kind "([^"]+)"`,                         // kubectl
		`the server doesn't have a resource type "([^"]+)"`,     // kubectl
		// Tests of discovery.
		`Fail to access: /apis/([^:]+): the server could not find the requested`,
		`expected (flowcontrol) API group/version, got`,
		`([a-z]+\.v[0-9a-z]+\.[a-z.0-9]+) should always be present`,
		`Expected ([a-z.0-9]*/v[0-9a-z]+, Resource=[a-z]+) to be present`,
		`Expected gvr ([a-z.0-9]* v[0-9a-z]+ [a-z]+) to exist in discovery`,
	} {
		if m := regexp.MustCompile(says).FindStringSubmatch(text); m != nil && isNative(m[1]) && !isServed(m[1]) {
			return m[1]
		}
	}
	return ""
}

// isServed reports whether a text names a kind of Kubernetes that workspaces have, its resource,
// or its group.
func isServed(text string) bool {
	if text == "leasecandidates.coordination.k8s.io" {
		return false // a beta kind, which servers have only by a feature gate
	}
	return slices.ContainsFunc(namesIn(text), func(word string) bool {
		first, _, _ := strings.Cut(word, ".")
		return slices.Contains(servedKinds, first) || slices.ContainsFunc(servedGroups, func(g string) bool { return strings.Contains(word, g) })
	})
}

// isNative reports whether a text names a kind of Kubernetes, its resource, or its group.
func isNative(text string) bool {
	for kind := range scheme.Scheme.AllKnownTypes() {
		many, one := meta.UnsafeGuessKindToResource(kind)
		for _, word := range namesIn(text) {
			first, _, _ := strings.Cut(word, ".")
			if slices.Contains([]string{kind.Kind, many.Resource, one.Resource}, first) || kind.Group != "" && strings.HasPrefix(kind.Group, word) {
				return true
			}
		}
	}
	return strings.Contains(text, "apiregistration.k8s.io") || text == "componentstatuses"
}

func namesIn(text string) []string {
	return regexp.MustCompile(`[A-Za-z0-9.]+`).FindAllString(text, -1)
}

var (
	servedKinds = []string{
		"namespaces", "configmaps", "secrets", "events", "serviceaccounts", "resourcequotas", "certificatesigningrequests",
		"Namespace", "ConfigMap", "Secret", "Event", "ServiceAccount", "ResourceQuota", "CertificateSigningRequest",
	}
	servedGroups = []string{
		"admissionregistration.k8s.io", "apiextensions.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "coordination.k8s.io",
		"events.k8s.io", "rbac.authorization.k8s.io",
	}
)

// exceptions are tests that pass at a stock server without pods and cannot pass in a workspace
// for a reason that their failures do not name.
var exceptions = []struct{ test, text, why string }{
	{
		// kubectl proxy drops the path of the server's URL without --append-server-path, which
		// TestProxy uses.
		"Kubectl client Proxy server should support proxy with --port 0", "Expected at least one supported apiversion",
		"kubectl proxy needs --append-server-path for URLs with a path",
	},
	{
		// The policy names Deployments, for which a server without them has no schema. TestPolicyTypes
		// has the same for config maps and custom resources.
		"ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should type check validation expressions", "<[]v1.ExpressionWarning | len:0",
		"checks types of Deployments, which workspaces do not have",
	},
	{
		// /healthz, /livez and /readyz list the parts of this server. The test names those of
		// kube-apiserver, among them the aggregator, the repair of Services and PriorityClasses.
		"health handlers should contain necessary checks", "[+]poststarthook/start-service-ip-repair-controllers",
		"names the internal parts of kube-apiserver",
	},
}

// The sorting itself: what a missing kind excuses, and what it does not.
func TestVerdicts(t *testing.T) {
	passed, failed := &spec{State: "passed"}, func(text string) *spec {
		s := &spec{State: "failed"}
		s.Failure.Message = text
		return s
	}
	for _, test := range []struct {
		want, got *spec
		reason    string
		ok        bool
	}{
		{passed, passed, "passed", true},
		{failed("x"), passed, "passed, not at the stock server", true},
		{passed, failed("this one serves no pods; more"), "workspaces have no pods", true},
		{passed, failed("this workspace serves no deployments.apps; more"), "workspaces have no deployments.apps", true},
		{passed, failed(`error: no matches for kind "Deployment" in version "apps/v1"`), "workspaces have no Deployment", true},
		{passed, failed("this one serves no configmaps; more"), "this one serves no configmaps; more", false},
		{passed, failed("this workspace serves no leases.coordination.k8s.io; more"), "this workspace serves no leases.coordination.k8s.io; more", false},
		{passed, failed("Expected /v1, Resource=configmaps to be present"), "Expected /v1, Resource=configmaps to be present", false},
		{passed, failed("Expected /v1, Resource=services to be present"), "workspaces have no /v1, Resource=services", true},
		{passed, failed(`the server doesn't have a resource type "ksvc-7"`), `the server doesn't have a resource type "ksvc-7"`, false},
		{passed, failed("timed out"), "timed out", false},
		{passed, &spec{State: "skipped"}, "", false},
		{failed("pods: " + noPods), failed("timed out"), "needs a pod, at the stock server too", true},
		{failed("timed out"), failed("timed out"), "did not pass at the stock server without pods either", true},
		{nil, failed("timed out"), "timed out", false},
	} {
		reason, ok := verdict("a test", test.want, test.got)
		if reason != test.reason || ok != test.ok {
			t.Errorf("at the stock server %v, in a workspace %v: got %q, %t; want %q, %t", test.want, test.got, reason, ok, test.reason, test.ok)
		}
	}
	for i, e := range exceptions {
		if e.test == "" || e.text == "" || e.why == "" {
			t.Error(fmt.Errorf("exception %d is not complete", i))
		}
	}
}

// TestMissingResults finds the tests that a run did not reach.
func TestMissingResults(t *testing.T) {
	a, b := &spec{State: "passed"}, &spec{State: "failed"}
	s := suites{want: &suite{name: "stock", results: map[string]*spec{"a": a, "b": b}}, got: []*suite{
		{name: "one", results: map[string]*spec{"a": a, "b": b}}, {name: "two", results: map[string]*spec{"b": b, "c": a}}}}
	want := []string{"two: a did not run", "stock: c did not run", "one: c did not run"}
	if got := s.missing(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.got = s.got[:1]
	if got := s.missing(); len(got) > 0 {
		t.Errorf("all ran, and %q are missing", got)
	}
}
