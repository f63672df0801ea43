package provider_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/unforked/kcp"
	kcpclient "github.com/unforked/kcp/client"
	"github.com/unforked/kcp/kcptest"
	"github.com/unforked/kcp/provider"
)

// exporter returns a new logical cluster with the export.
func exporter(t testing.TB) *kcptest.Cluster {
	c := kcptest.New(t)
	c.Apply(widgetExport)
	return c
}

// bound returns a new logical cluster that binds the export.
func bound(t testing.TB, p *kcptest.Cluster) *kcptest.Cluster {
	c := kcptest.New(t)
	c.Apply(binding(p.Name))
	return c
}

func unbind(t *testing.T, c *kcptest.Cluster) {
	t.Helper()
	if err := c.Dynamic.Resource(bindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Wait(bindings, "", "widgets", func(o *unstructured.Unstructured) bool { return o == nil })
}

func finished(o *unstructured.Unstructured) bool {
	if o == nil {
		return false
	}
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	return phase == "Done"
}

// TestTenantsComeAndGo starts without a tenant, so without a URL. It does so with one source of
// events for all tenants, and with one for each.
func TestTenantsComeAndGo(t *testing.T) {
	for name, eachTenant := range map[string]bool{"one source": false, "a source for each": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			comeAndGo(t, eachTenant)
		})
	}
}

func comeAndGo(t *testing.T, eachTenant bool) {
	p, r := exporter(t), newRecord()
	running := runWith(t, p.Config, r, nil, eachTenant)

	a := bound(t, p)
	a.Apply(widget("w", "1"))
	a.Wait(widgets, "default", "w", finished)
	b := bound(t, p)
	b.Apply(widget("w", "2") + "\n---\n" + widget("x", "1"))
	b.Wait(widgets, "default", "x", finished)
	r.awaitEngaged(t, a.Name, b.Name)

	// Objects of the same name stay apart.
	one, err := running.provider.Get(t.Context(), multicluster.ClusterName(b.Name))
	if err != nil {
		t.Fatal(err)
	}
	var w Widget
	if err := one.GetClient().Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "w"}, &w); err != nil || w.Spec.Size != 2 {
		t.Errorf("it is %v, %v", w, err)
	}
	for _, c := range []struct {
		options []client.ListOption
		want    []string
	}{
		{nil, []string{"w", "x"}},
		{[]client.ListOption{client.InNamespace("default")}, []string{"w", "x"}},
		{[]client.ListOption{client.InNamespace("other")}, nil},
		{[]client.ListOption{client.MatchingFields{"size": "1"}}, []string{"x"}},
		{[]client.ListOption{client.MatchingFields{"size": "2"}, client.InNamespace("default")}, []string{"w"}},
	} {
		var list WidgetList
		if err := one.GetClient().List(t.Context(), &list, c.options...); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range list.Items {
			got = append(got, o.Name)
		}
		if !slices.Equal(sorted(got), c.want) {
			t.Errorf("%v has %v, not %v", c.options, got, c.want)
		}
	}

	left := r.cluster(a.Name)
	unbind(t, a)
	r.awaitEngaged(t, b.Name)
	if _, err := running.provider.Get(t.Context(), multicluster.ClusterName(a.Name)); !errors.Is(err, multicluster.ErrClusterNotFound) {
		t.Errorf("a tenant that left: %v", err)
	}
	if err := left.GetClient().Delete(t.Context(), &Widget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "w"}}); !errors.Is(err, provider.ErrDisengaged) {
		t.Errorf("a late write: %v", err)
	}

	unbind(t, b) // the last: the URL is gone
	r.awaitEngaged(t)
	a.Apply(binding(p.Name))
	a.Apply(widget("again", "1"))
	a.Wait(widgets, "default", "again", finished)
	if r.times(a.Name) != 2 || r.times(b.Name) != 1 {
		t.Errorf("engaged %d and %d times", r.times(a.Name), r.times(b.Name))
	}
	running.stop()
	a.Apply(widget("meanwhile", "1"))
	runWith(t, p.Config, r, nil, eachTenant)
	a.Wait(widgets, "default", "meanwhile", finished)
	r.awaitEngaged(t, a.Name)
	r.check(t)
}

// TestNothingStaysOfTenants shows that tenants that have left leave no goroutines behind.
func TestNothingStaysOfTenants(t *testing.T) {
	p, r := exporter(t), newRecord()
	run(t, p.Config, r, nil)
	keeps := bound(t, p) // the view stays
	r.awaitEngaged(t, keeps.Name)
	cycle := func(count int) {
		names := []string{keeps.Name}
		var tenants []*kcptest.Cluster
		for range count {
			c := bound(t, p)
			tenants, names = append(tenants, c), append(names, c.Name)
		}
		r.awaitEngaged(t, names...)
		for _, c := range tenants {
			unbind(t, c)
		}
		r.awaitEngaged(t, keeps.Name)
	}
	cycle(2)
	before := runtime.NumGoroutine()
	cycle(40)
	until(t, "the goroutines of 40 tenants end", func() bool { return runtime.NumGoroutine() < before+20 })
}

// TestSeveralShards follows two URLs. Tenants of one shard come while the other is down.
func TestSeveralShards(t *testing.T) {
	t.Parallel()
	shard := func() (*kcptest.Universe, *kcptest.Cluster) {
		tokens := filepath.Join(t.TempDir(), "tokens.csv")
		if err := os.WriteFile(tokens, []byte("ann-token,ann,1,system:masters\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		u := &kcptest.Universe{Server: &kcp.Server{Listen: "127.0.0.1:0", TokenFile: tokens}}
		t.Cleanup(func() {
			if err := u.Close(); err != nil {
				t.Error(err)
			}
		})
		c := u.New(t)
		c.Apply(widgetExport)
		return u, c
	}
	first, p := shard()
	second, q := shard()
	view := func(u *kcptest.Universe, c *kcptest.Cluster) string {
		return u.Server.URL() + "/services/apiexport/" + c.Name + "/widgets"
	}
	tenant := func(u *kcptest.Universe, of *kcptest.Cluster) *kcptest.Cluster {
		c := u.New(t)
		c.Apply(binding(of.Name))
		return c
	}
	a, b := tenant(first, p), tenant(second, q)
	r := newRecord()
	ann := &rest.Config{Host: first.Server.URL() + "/clusters/" + p.Name, BearerToken: "ann-token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	running := run(t, ann, r, nil)
	r.awaitEngaged(t, a.Name) // the slice has the first URL
	running.provider.Follow(t.Context(), []string{view(first, p), view(second, q)})
	r.awaitEngaged(t, a.Name, b.Name)
	for _, c := range []*kcptest.Cluster{a, b} {
		c.Apply(widget("w", "1"))
		c.Wait(widgets, "default", "w", finished)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	late := tenant(first, p)
	late.Apply(widget("w", "1"))
	late.Wait(widgets, "default", "w", finished)
	r.awaitEngaged(t, a.Name, b.Name, late.Name) // an outage is no reason to disengage
	running.provider.Follow(t.Context(), []string{view(first, p)})
	r.awaitEngaged(t, a.Name, late.Name)
	r.check(t)
}

// TestADeletedExport shows that the tenants of a deleted export are disengaged, until it is
// created again.
func TestADeletedExport(t *testing.T) {
	t.Parallel()
	p, r := exporter(t), newRecord()
	a := bound(t, p)
	a.Apply(widget("w", "1"))
	run(t, p.Config, r, nil)
	a.Wait(widgets, "default", "w", finished)
	if err := p.Dynamic.Resource(exports).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.awaitEngaged(t)
	p.Apply(widgetExport)
	a.Apply(widget("x", "1"))
	a.Wait(widgets, "default", "x", finished)
	r.check(t)
}

// TestHostileTenant shows that neither an object that does not fit its Go type, nor one that
// makes an index function or a predicate panic, nor many objects hold up other tenants.
func TestHostileTenant(t *testing.T) {
	t.Parallel()
	p, r := exporter(t), newRecord()
	hostile, other := bound(t, p), bound(t, p)
	hostile.Apply(widget("text", "large") + "\n---\n" + widget("negative", "-1") + "\n---\n" + widget("poison", "-7"))
	for range 520 { // more than a page
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"generateName": "w-"},
		}}
		if _, err := hostile.Dynamic.Resource(widgets).Namespace("default").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	running := run(t, p.Config, r, nil)
	other.Apply(widget("w", "1"))
	other.Wait(widgets, "default", "w", finished)
	hostile.Wait(widgets, "default", "negative", finished)
	hostile.Apply(widget("later", "{a: 1}"))
	other.Apply(widget("later", "1"))
	other.Wait(widgets, "default", "later", finished)

	// The server refuses large pages of a new process.
	running.stop()
	r = newRecord()
	again := run(t, p.Config, r, nil, func(p *process) { p.pages.Store(40) })
	other.Apply(widget("pages", "1"))
	other.Wait(widgets, "default", "pages", finished)
	var list WidgetList
	if c, err := again.provider.Get(t.Context(), multicluster.ClusterName(hostile.Name)); err != nil {
		t.Error(err)
	} else if err := c.GetClient().List(t.Context(), &list); err != nil || len(list.Items) != 522 {
		t.Errorf("in the cache are %d objects, not 522; %v", len(list.Items), err)
	}

	hostile.Apply(widget("text", "1")) // repaired
	readable := func() bool {
		var w Widget
		err := r.cluster(hostile.Name).GetClient().Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "text"}, &w)
		return err == nil && w.Spec.Size == 1
	}
	until(t, "the repaired object is in the cache", readable)
	// A state that cannot be read does not make the object a deleted one.
	hostile.Apply(widget("text", "large"))
	other.Apply(widget("last", "1"))
	other.Wait(widgets, "default", "last", finished)
	if !readable() {
		t.Error("the last state that could be read is gone")
	}
}

// TestARestartOfTheServer shows that the tenants stay engaged while the server restarts, and
// that changes after it arrive.
func TestARestartOfTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := &kcptest.Universe{Server: &kcp.Server{Dir: dir, Listen: "127.0.0.1:0"}}
	p, a := first.New(t), first.New(t)
	p.Apply(widgetExport)
	a.Apply(binding(p.Name))
	a.Apply(widget("w", "1"))
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRecord()
	run(t, kcpclient.Cluster(cfg, p.Name), r, nil)
	a.Wait(widgets, "default", "w", finished)

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := &kcptest.Universe{Server: &kcp.Server{Dir: dir, Listen: strings.TrimPrefix(first.Server.URL(), "https://")}}
	defer func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := second.New(t)
	b.Apply(binding(p.Name))
	b.Apply(widget("late", "1"))
	old, err := dynamic.NewForConfig(kcpclient.Cluster(cfg, a.Name))
	if err != nil {
		t.Fatal(err)
	}
	inOld := old.Resource(widgets).Namespace("default")
	if _, err := inOld.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "x"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.Wait(widgets, "default", "late", finished)
	until(t, "x is finished", func() bool {
		o, err := inOld.Get(t.Context(), "x", metav1.GetOptions{})
		return err == nil && finished(o)
	})
	if r.times(a.Name) != 1 || r.times(b.Name) != 1 {
		t.Errorf("engaged %d and %d times", r.times(a.Name), r.times(b.Name))
	}
	r.check(t)
}
