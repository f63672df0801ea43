package server_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/unforked/kcp/internal/upstream"
)

// A series is a metric with its label values.
type series struct {
	metric string
	labels map[string]string
}

func (s series) String() string { return fmt.Sprint(s.metric, s.labels) }

// allSeries returns all series of the process.
func allSeries(t *testing.T) []series {
	t.Helper()
	var all []series
	for _, f := range must(legacyregistry.DefaultGatherer.Gather())(t) {
		for _, m := range f.GetMetric() {
			s := series{f.GetName(), map[string]string{}}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			all = append(all, s)
		}
	}
	return all
}

// use makes requests of all kinds for a new definition.
func (c *tenant) use(name string) {
	c.t.Helper()
	d := crd(c.t, name, fmt.Sprintf("{metadata: {name: %[1]s.%[1]s.com}, spec: {group: %[1]s.com, names: {shortNames: [x%[1]s]}}}", name),
		fmt.Sprintf("spec: {versions: [{name: v%d, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}", len(name)))
	c.newKind(d)
	ctx, v := c.t.Context(), c.visitor("owner", c.token("owner"))
	o := c.instance(d, "o")
	w := must(c.of(d).Watch(ctx, metav1.ListOptions{ResourceVersion: o.GetResourceVersion()}))(c.t)
	must(c.of(d).Patch(ctx, "o", types.MergePatchType, []byte(`{"a":1}`), metav1.PatchOptions{}))(c.t)
	next(c.t, w)
	w.Stop()
	must(c.of(d).Patch(ctx, "o", types.MergePatchType, []byte(`{"status":{"a":1}}`), metav1.PatchOptions{}, "status"))(c.t)
	must(c.of(d).Apply(ctx, "o", instance(d, "o"), metav1.ApplyOptions{FieldManager: "m", Force: true}))(c.t)
	must(c.of(d).List(ctx, metav1.ListOptions{ResourceVersion: "0"}))(c.t)
	for _, path := range []string{"/namespaces/default/" + name + "/o/nothing" + name, "/namespaces/default/" + name + "/none", "/nothing" + name, ""} {
		v.send("GET", c.path("/apis/"+d.Spec.Group+"/"+d.Spec.Versions[0].Name+path), "")
	}
	v.send("GET", c.path("/apis/"+name+".org/v"+name+"/"+name), "")
	if err := c.of(d).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		c.t.Error(err)
	}
	c.undefine(d.Name)
	c.await(definitions, "", d.Name, gone)
}

// The number of series does not depend on the resources that tenants define. Built-in
// resources have their own series.
func TestMetricsOfCustomResources(t *testing.T) {
	c := newTenant(t)
	c.owner()
	for i := range 3 {
		c.use(fmt.Sprintf("metered%dzz", i))
	}
	before := allSeries(t)
	const definitions = 50
	for i := range definitions {
		c.use(fmt.Sprintf("metered%dzy", i))
	}
	after := allSeries(t)
	known := map[string]bool{}
	for _, s := range before {
		known[s.String()] = true
	}
	bounded := upstream.BoundedMetrics()
	fresh := slices.DeleteFunc(slices.Clone(after), func(s series) bool {
		return known[s.String()] || slices.Contains(bounded["resource"], s.metric) // these label values are bounded
	})
	if len(fresh) > definitions/2 { // other tests in this process add series, too
		t.Errorf("%d series more: %v", len(fresh), fresh)
	}
	for _, s := range after {
		if strings.Contains(s.String(), "metered") {
			t.Errorf("a tenant's resource is in %s", s)
		}
	}
	all := must(must(discovery.NewDiscoveryClientForConfig(c.config()))(t).ServerPreferredResources())(t)
	for _, g := range all {
		for _, r := range g.APIResources {
			if slices.Contains(r.Verbs, "list") {
				must(c.kube.CoreV1().RESTClient().Get().AbsPath(map[bool]string{true: "/api/v1", false: "/apis/" + g.GroupVersion}[g.GroupVersion == "v1"] + "/" + r.Name).Do(t.Context()).Raw())(t)
			}
		}
	}
	counted := map[string]bool{}
	for _, s := range allSeries(t) {
		if s.metric == "apiserver_request_total" {
			counted[strings.TrimPrefix(s.labels["group"]+"/"+s.labels["version"], "/")+" "+s.labels["resource"]] = true
		}
	}
	for _, g := range all {
		for _, r := range g.APIResources {
			if slices.Contains(r.Verbs, "list") && !counted[g.GroupVersion+" "+r.Name] {
				t.Errorf("%s in %s is not told apart: add it to the values in internal/upstream/metrics.go", r.Name, g.GroupVersion)
			}
		}
	}
}

// Every metric of the libraries with a label that tenants can choose is bounded.
func TestBoundedMetrics(t *testing.T) {
	newTenant(t) // starts the server, which registers the metrics
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		legacyregistry.Registerer().(*prometheus.Registry).Describe(descriptions)
	}()
	form := regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{([^}]*)\}`)
	chosen := []string{"group", "version", "resource", "subresource", "crd_name", "policy", "policy_binding"}
	bounded := upstream.BoundedMetrics()
	for d := range descriptions {
		m := form.FindStringSubmatch(d.String())
		for label := range strings.SplitSeq(m[2], ",") {
			if slices.Contains(chosen, label) && !slices.Contains(bounded[label], m[1]) {
				t.Errorf("%s has a label %s: add it to the metrics in internal/upstream/metrics.go", m[1], label)
			}
		}
	}
}
