package server_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	coreapi "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// startMetering starts a server that writes usage often.
func startMetering(t *testing.T, dir string) *running {
	t.Helper()
	s := must(server.New(t.Context(), server.Config{Dir: dir, NoSync: true, ExternalURL: "https://kcp", UsageEvery: 20 * time.Millisecond}))(t)
	return &running{Server: s, dir: dir, url: "https://kcp"}
}

func system(c *tenant) person { return person{c.t, c.server, server.System().(*user.DefaultInfo)} }

func usagePath(c *tenant, export string) string {
	return "/clusters/" + string(c.name) + "/apis/apis.kcp.io/v1alpha2/apiexports/" + export + "/usage"
}

// usage returns the usage of an export of a cluster, page by page.
func (p person) usage(of *tenant, export, limit string) *apisv1alpha2.APIExportUsage {
	p.t.Helper()
	all := &apisv1alpha2.APIExportUsage{}
	for next := ""; ; {
		page := &apisv1alpha2.APIExportUsage{}
		if code, body := p.get(usagePath(of, export)+"?limit="+limit+"&continue="+next, page); code != http.StatusOK {
			p.t.Fatalf("%d %s", code, body)
		}
		all.Consumers = append(all.Consumers, page.Consumers...)
		if next = page.Continue; next == "" {
			return all
		}
	}
}

// awaitUsage waits until a consumer has some usage of the resource of an export.
func (c *tenant) awaitUsage(export string, of cluster.Name, wanted func(apisv1alpha2.ConsumerUsage, apisv1alpha2.ResourceUsage) bool) apisv1alpha2.ResourceUsage {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last []apisv1alpha2.ConsumerUsage
	for {
		last = system(c).usage(c, export, "").Consumers
		for _, u := range last {
			if u.Cluster == string(of) && wanted(u, u.Resources[0]) {
				return u.Resources[0]
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("the usage is %+v", last)
		}
	}
}

func consumersOf(u *apisv1alpha2.APIExportUsage) (names []string) {
	for _, c := range u.Consumers {
		names = append(names, c.Cluster)
	}
	return names
}

func sortedNames(all ...*tenant) (names []string) {
	for _, c := range all {
		names = append(names, string(c.name))
	}
	slices.Sort(names)
	return names
}

// TestUsageOfAnExport shows what the provider of an export reads about its consumers: what they
// store and have stored, also after they have left and after a restart.
func TestUsageOfAnExport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startMetering(t, dir)
	defer func() { s.Close() }()
	root := at(t, s, cluster.Root, server.System())
	p, other := root.workspace("provider"), root.workspace("other")
	for _, of := range []*tenant{p, other} {
		of.create(apiSchemas, widgetSchema("v1", "color"))
		of.create(apiExports, widgetExport("widgets", "v1"))
	}
	twin := widgetExport("twin", "v1")
	twin.Object["spec"].(map[string]any)["identity"] = map[string]any{"secretRef": map[string]any{"namespace": "kcp-system", "name": "widgets"}}
	p.create(apiExports, twin)
	a, b, c, d := root.workspace("a"), root.workspace("b"), root.workspace("c"), root.workspace("d")
	a.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	b.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	c.create(apiBindings, bindingTo("widgets", other.name, "widgets"))
	d.create(apiBindings, bindingTo("widgets", p.name, "twin"))
	for _, of := range []*tenant{a, b, c, d} {
		of.create(sharedWidgets, newWidget("w"))
	}
	a.create(sharedWidgets, newWidget("w2"))

	for _, limit := range []string{"1", ""} {
		if got, want := consumersOf(system(p).usage(p, "widgets", limit)), sortedNames(a, b); !slices.Equal(got, want) {
			t.Errorf("the consumers are %v, want %v", got, want)
		}
	}
	if got := consumersOf(system(p).usage(p, "twin", "")); !slices.Equal(got, sortedNames(d)) {
		t.Errorf("the consumers of an export with the same identity are %v, want %v", got, d.name)
	}
	of := &apisv1alpha2.APIExportUsage{}
	if code, body := system(p).get(usagePath(p, "widgets")+"?consumer=root:a", of); code != http.StatusOK || !slices.Equal(consumersOf(of), sortedNames(a)) || of.Kind != "APIExportUsage" {
		t.Errorf("one consumer: %d %s", code, body)
	}
	ann := a.person("ann")
	a.bind("ann", "cluster-admin", ann.subject())
	must(must(dynamic.NewForConfig(s.InProcess(string(a.name), ann.info)))(t).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}))(t)
	if code, body := ann.get("/clusters/"+string(a.name)+"/apis/example.com/v9/widgets", nil); code != http.StatusNotFound {
		t.Errorf("a version that is not served: %d %s", code, body)
	}
	used := p.awaitUsage("widgets", a.name, func(u apisv1alpha2.ConsumerUsage, r apisv1alpha2.ResourceUsage) bool {
		return r.ObjectSeconds > 0 && len(r.Versions) > 0 && u.Bound && u.Path == "root:a"
	})
	if used.Objects != 2 || used.Bytes == 0 || used.ByteSeconds < used.ObjectSeconds || len(used.Versions) != 1 || used.Versions[0].Version != "v1" || used.Since == nil || used.Until != nil {
		t.Errorf("the usage is %+v", used)
	}
	alone := p.awaitUsage("widgets", b.name, func(_ apisv1alpha2.ConsumerUsage, r apisv1alpha2.ResourceUsage) bool { return r.ObjectSeconds > 0 })
	if len(alone.Versions) > 0 {
		t.Errorf("requests of the server itself count: %v", alone.Versions)
	}

	if err := a.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	root.deleteWorkspace("b")
	ended := func(u apisv1alpha2.ConsumerUsage, r apisv1alpha2.ResourceUsage) bool {
		return !u.Bound && r.Until != nil && strings.HasPrefix(u.Path, "root:")
	}
	final := p.awaitUsage("widgets", a.name, ended)
	if final.Objects != 0 || final.Bytes != 0 || final.ObjectSeconds < used.ObjectSeconds || final.ByteSeconds < used.ByteSeconds || len(final.Versions) > 0 {
		t.Errorf("the final usage is %+v after %+v", final, used)
	}
	if gone := p.awaitUsage("widgets", b.name, ended); gone.ObjectSeconds < alone.ObjectSeconds {
		t.Errorf("the usage of a deleted workspace is %+v after %+v", gone, alone)
	}
	lives := p.awaitUsage("twin", d.name, func(_ apisv1alpha2.ConsumerUsage, r apisv1alpha2.ResourceUsage) bool { return r.ObjectSeconds > 0 })

	s.Close()
	s = startMetering(t, dir)
	p = at(t, s, p.name, server.System())
	if again := p.awaitUsage("widgets", a.name, ended); fmt.Sprint(again) != fmt.Sprint(final) {
		t.Errorf("after a restart the usage is %+v, not %+v", again, final)
	}
	p.awaitUsage("twin", d.name, func(_ apisv1alpha2.ConsumerUsage, r apisv1alpha2.ResourceUsage) bool {
		if r.ObjectSeconds < lives.ObjectSeconds || !r.Since.Equal(lives.Since) {
			t.Errorf("after a restart the usage is %+v, before %+v", r, lives)
		}
		return r.ObjectSeconds > lives.ObjectSeconds
	})
}

// TestWhoReadsUsage shows that only the rights to get apiexports/usage give access to it, in the
// cluster of the export alone.
func TestWhoReadsUsage(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	bill, ed, pat, mallory := p.person("bill"), p.person("ed"), p.person("pat"), consumer.person("mallory")
	p.allows("bill", rbacv1.UserKind, bill.info.Name, []string{"get"}, "apiexports/usage")
	p.allows("ed", rbacv1.UserKind, ed.info.Name, []string{"get", "list", "update"}, "apiexports")
	p.allows("provide", rbacv1.UserKind, pat.info.Name, []string{rbacv1.VerbAll}, "apiexports/content")
	consumer.bind("mallory", "cluster-admin", mallory.subject())
	if got := consumersOf(bill.usage(p, "widgets", "")); !slices.Equal(got, sortedNames(consumer)) {
		t.Errorf("bill reads %v", got)
	}
	view := "/services/apiexport/" + string(p.name) + "/widgets/clusters/"
	inView := "/apis/apis.kcp.io/v1alpha2/apiexports/widgets/usage"
	for what, c := range map[string]struct {
		person
		path string
		code int
	}{
		"no rights":                     {mallory, usagePath(p, "widgets"), http.StatusForbidden},
		"rights to the export":          {ed, usagePath(p, "widgets"), http.StatusForbidden},
		"no such export":                {bill, usagePath(p, "nothing"), http.StatusNotFound},
		"in the cluster of a consumer":  {mallory, usagePath(consumer, "widgets"), http.StatusNotFound},
		"an older version":              {bill, strings.Replace(usagePath(p, "widgets"), "v1alpha2", "v1alpha1", 1), http.StatusNotFound},
		"a bad limit":                   {bill, usagePath(p, "widgets") + "?limit=x", http.StatusBadRequest},
		"a bad token":                   {bill, usagePath(p, "widgets") + "?continue=*", http.StatusBadRequest},
		"in the view":                   {pat, view + string(consumer.name) + inView, http.StatusNotFound},
		"in the view, of all consumers": {pat, view + "*" + inView, http.StatusNotFound},
	} {
		if code, body := c.get(c.path, nil); code != c.code {
			t.Errorf("%s: %d %s, want %d", what, code, body, c.code)
		}
	}
	if code, body := system(p).get("/clusters/*"+inView, nil); code < 400 || code >= 500 {
		t.Errorf("in all clusters: %d %s", code, body)
	}
	for version, want := range map[string]bool{"v1alpha1": false, "v1alpha2": true} {
		all := must(p.kube.Discovery().ServerResourcesForGroupVersion("apis.kcp.io/" + version))(t)
		if got := slices.ContainsFunc(all.APIResources, func(r metav1.APIResource) bool {
			return r.Name == "apiexports/usage" && r.Kind == "APIExportUsage" && slices.Equal(r.Verbs, []string{"get"}) && !r.Namespaced
		}); got != want {
			t.Errorf("apiexports/usage in the discovery of %s: %t", version, got)
		}
	}
	_, resources, err := p.kube.Discovery().ServerGroupsAndResources() // aggregated
	if err != nil || !slices.ContainsFunc(resources, func(l *metav1.APIResourceList) bool {
		return slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Name == "apiexports/usage" })
	}) {
		t.Errorf("the aggregated discovery has no apiexports/usage: %v", err)
	}
}

// TestUsageIsTakenOver shows that another process continues the figures when the one that writes
// them ends, and that both report the same, and requests to either.
func TestUsageIsTakenOver(t *testing.T) {
	t.Parallel()
	outside := etcdtest.Start(t, etcdtest.Options{})
	start := func() *running {
		dir := t.TempDir()
		s := must(server.New(t.Context(), server.Config{
			Dir: dir, Etcd: etcd.Config{Servers: outside.Servers()}, ExternalURL: "https://kcp", UsageEvery: 20 * time.Millisecond,
		}))(t)
		t.Cleanup(s.Close)
		return &running{Server: s, dir: dir, url: "https://kcp"}
	}
	one, two := start(), start()
	root := at(t, one, cluster.Root, server.System())
	p, consumer := root.workspace("provider"), root.workspace("consumer")
	p.create(apiSchemas, widgetSchema("v1", "color"))
	p.create(apiExports, widgetExport("widgets", "v1"))
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	consumer.create(sharedWidgets, newWidget("w"))
	ann := consumer.person("ann")
	consumer.bind("ann", "cluster-admin", ann.subject())
	must(must(dynamic.NewForConfig(two.InProcess(string(consumer.name), ann.info)))(t).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}))(t)
	used := func(_ apisv1alpha2.ConsumerUsage, r apisv1alpha2.ResourceUsage) bool {
		return r.ObjectSeconds > 0 && len(r.Versions) > 0 && r.Requests["list"] > 0
	}
	before := p.awaitUsage("widgets", consumer.name, used)
	other := at(t, two, p.name, server.System())
	other.awaitUsage("widgets", consumer.name, used)
	one.Close()
	other.awaitUsage("widgets", consumer.name, func(_ apisv1alpha2.ConsumerUsage, r apisv1alpha2.ResourceUsage) bool {
		if r.ObjectSeconds < before.ObjectSeconds || !r.Since.Equal(before.Since) {
			t.Errorf("the usage is %+v, before %+v", r, before)
		}
		return r.ObjectSeconds > before.ObjectSeconds
	})
	if before.Requests["list"] != 1 || before.Requests["create"] != 0 {
		t.Errorf("ann has listed once, and the server itself does not count: %v", before.Requests)
	}
	watch := must(must(dynamic.NewForConfig(two.InProcess(string(consumer.name), ann.info)))(t).Resource(sharedWidgets).Watch(t.Context(), metav1.ListOptions{}))(t)
	watching := func() (now coreapi.StoredResource) {
		u := at(t, two, consumer.name, ann.info).usage()
		i := slices.IndexFunc(u.Resources, func(r coreapi.StoredResource) bool { return r.Resource == sharedWidgets.Resource })
		return u.Resources[i]
	}
	eventually(t, "the watch is counted", func() bool {
		now := watching()
		return now.Watches == 1 && now.Requests["watch"] == 1 && now.Requests["list"] == 1 && now.Objects == 1
	})
	watch.Stop()
	eventually(t, "the watch has ended", func() bool { return watching().Watches == 0 })
}
