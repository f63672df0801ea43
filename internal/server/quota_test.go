package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// quotaOf returns a ResourceQuota with limits in pairs of name and number.
func quotaOf(name string, hard ...string) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for i := 0; i < len(hard); i += 2 {
		q.Spec.Hard[corev1.ResourceName(hard[i])] = resource.MustParse(hard[i+1])
	}
	return q
}

func (c *tenant) quota(namespace string, q *corev1.ResourceQuota) *corev1.ResourceQuota {
	c.t.Helper()
	return must(c.kube.CoreV1().ResourceQuotas(namespace).Create(c.t.Context(), q, metav1.CreateOptions{}))(c.t)
}

// used waits until the status of a ResourceQuota says that a resource is used so often.
func (c *tenant) used(namespace, quota, resource, number string) {
	c.t.Helper()
	c.await(core("resourcequotas"), namespace, quota, func(o *unstructured.Unstructured) bool {
		return o != nil && text(o, "status", "used", resource) == number
	})
}

// room is a namespace whose own objects are there.
func (c *tenant) room(name string) {
	c.t.Helper()
	c.namespace(name)
	c.await(core("configmaps"), name, "kube-root-ca.crt", there)
	c.await(core("serviceaccounts"), name, "default", there)
}

// creates creates config maps with many writers and returns the number of successes. Only a
// refusal by a quota may prevent one.
func creates(t *testing.T, writers, each int, prefix, namespace string, client func(writer int) kubernetes.Interface) int {
	t.Helper()
	var made atomic.Int64
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				err := configMapIn(client(w), namespace, fmt.Sprint(prefix, w, "-", i))
				for apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) {
					err = configMapIn(client(w), namespace, fmt.Sprint(prefix, w, "-", i))
				}
				switch {
				case err == nil:
					made.Add(1)
				case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota"):
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	return int(made.Load())
}

// A quota is exact while many clients create objects, holds at once, and its status follows.
func TestQuota(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.room("ns")
	c.room("other")
	c.quota("ns", quotaOf("q", "count/configmaps", "11", "secrets", "1", "pods", "7"))
	own := func(int) kubernetes.Interface { return c.kube }
	if made := creates(t, 16, 4, "x", "ns", own); made != 10 {
		t.Errorf("%d config maps besides that of the namespace, want 10", made)
	}
	c.used("ns", "q", "count/configmaps", "11")
	c.used("ns", "q", "pods", "0")
	err := configMapIn(c.kube, "ns", "more")
	if want := `configmaps "more" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=11, limited: count/configmaps=11`; err == nil || err.Error() != want {
		t.Errorf("over quota: %v", err)
	}
	if _, err := c.kube.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap("more", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
		t.Errorf("a dry run over quota: %v", err)
	}
	if err := configMapIn(c.kube, "other", "x"); err != nil {
		t.Errorf("in another namespace: %v", err)
	}
	for i := range 5 { // what fails does not count
		err := configMapIn(c.kube, "ns", "kube-root-ca.crt")
		if err == nil {
			t.Fatalf("%d: created twice", i)
		}
	}
	if err := c.kube.CoreV1().ConfigMaps("ns").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("configmaps"), "ns", "kube-root-ca.crt", there) // it comes back
	c.used("ns", "q", "count/configmaps", "1")
	if made := creates(t, 16, 4, "y", "ns", own); made != 10 {
		t.Errorf("after a deletion %d config maps, want 10", made)
	}
	patch := []byte(`{"spec":{"hard":{"count/configmaps":"12"}}}`)
	if _, err := c.kube.CoreV1().ResourceQuotas("ns").Patch(t.Context(), "q", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if made := creates(t, 4, 2, "z", "ns", own); made != 1 {
		t.Errorf("after one more was allowed %d were created", made)
	}
	if err := c.kube.CoreV1().ResourceQuotas("ns").Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := configMapIn(c.kube, "ns", "free"); err != nil {
		t.Errorf("without the quota: %v", err)
	}
}

// Quotas have no effect on what they do not count: scopes are of pods, and events are not counted.
func TestQuotaOfNothing(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.room("ns")
	scoped := quotaOf("scoped", "count/configmaps", "0")
	scoped.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	scoped.Spec.Hard["pods"] = resource.MustParse("1")
	c.quota("ns", scoped)
	c.quota("ns", quotaOf("events", "count/events", "0"))
	if err := configMapIn(c.kube, "ns", "x"); err != nil {
		t.Error(err)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: "ns"}}
	if _, err := c.kube.CoreV1().Events("ns").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	c.used("ns", "scoped", "count/configmaps", "0")
}

// A quota of the whole cluster counts all namespaces, and objects without one.
func TestQuotaOfAWholeCluster(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("mine")
	c.namespace("admin")
	c.room("ns")
	q := quotaOf("whole", "count/workspaces.tenancy.kcp.io", "3", "count/secrets", "2", "count/leases.coordination.k8s.io", "0")
	q.Annotations = map[string]string{"experimental.quota.kcp.io/cluster-scoped": "true"}
	c.quota("admin", q)
	other := quotaOf("not-whole", "count/workspaces.tenancy.kcp.io", "0")
	other.Annotations = q.Annotations
	c.quota("ns", other)

	var made atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			_, err := c.any.Resource(workspaces).Create(t.Context(), workspace(fmt.Sprint("w", i)), metav1.CreateOptions{})
			switch {
			case err == nil:
				made.Add(1)
			case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: whole, requested: count/workspaces.tenancy.kcp.io=1"):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 3 {
		t.Errorf("%d workspaces, want 3", made.Load())
	}
	c.used("admin", "whole", "count/workspaces.tenancy.kcp.io", "3")
	secret := func(namespace, name string) error {
		_, err := c.kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	for _, namespace := range []string{"ns", "default"} {
		if err := secret(namespace, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := secret("kube-system", "x"); !apierrors.IsForbidden(err) {
		t.Errorf("a third secret: %v", err)
	}
	if err := secret("kube-system", "y"); !apierrors.IsForbidden(err) {
		t.Errorf("a third secret: %v", err)
	}
}

// A tenant cannot make creations costly with quotas.
func TestQuotasAreBounded(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.namespace("ns")
	var hard []string
	for i := range 257 {
		hard = append(hard, fmt.Sprintf("count/things%d.example.com", i), "1")
	}
	if _, err := c.kube.CoreV1().ResourceQuotas("ns").Create(t.Context(), quotaOf("long", hard...), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a quota with many limits: %v", err)
	}
	for i := range 32 {
		c.quota("ns", quotaOf(fmt.Sprint("q", i), "count/secrets", "5"))
	}
	if _, err := c.kube.CoreV1().ResourceQuotas("ns").Create(t.Context(), quotaOf("more"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("one more quota: %v", err)
	}
}

// A quota of amounts has no effect in a workspace, and a warning says so.
func TestIdleQuotasWarn(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	for want, q := range map[string]*corev1.ResourceQuota{
		"requests.storage, services.loadbalancers: no effect in a workspace": quotaOf("amounts", "services.loadbalancers", "1", "secrets", "5", "requests.storage", "1Gi"),
		"": quotaOf("numbers", "secrets", "5", "count/events", "5", "count/deployments.apps", "5"),
	} {
		got := ""
		for _, w := range c.kube.CoreV1().RESTClient().Post().Namespace("default").Resource("resourcequotas").Body(q).Do(t.Context()).Warnings() {
			got += w.Text
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: warning %q, want %q", q.Name, got, want)
		}
	}
}

// Several servers admit exactly as many objects as a quota allows, and a third one goes on.
func quotaAtSeveralServers(t *testing.T, e *equals) {
	c := string(e.workspace(e.all[0], "root", "limited"))
	kube := func(w int) kubernetes.Interface { return e.kube(e.all[w%len(e.all)], c, server.System()) }
	_, err := kube(0).CoreV1().ResourceQuotas("default").Create(t.Context(), quotaOf("q", "count/configmaps", "31"), metav1.CreateOptions{})
	e.ok(err)
	e.ok(namespaceIn(kube(0), "wide"))
	_, err = kube(0).CoreV1().ResourceQuotas("wide").Create(t.Context(), quotaOf("q", "count/configmaps", "560"), metav1.CreateOptions{})
	e.ok(err)
	eventually(t, "the wide namespace is complete", func() bool {
		_, err := kube(0).CoreV1().ConfigMaps("wide").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil
	})
	for _, s := range e.all { // informers of a stock server lag as well
		e.ok(s.Store().Feed().CatchUp(context.Background()))
	}
	if made := creates(t, 12, 5, "x", "default", kube); made != 30 {
		t.Errorf("%d config maps besides that of the namespace, want 30", made)
	}
	// At first this limit is so far away that no server holds the quota.
	if made := creates(t, 12, 48, "x", "wide", kube); made != 559 {
		t.Errorf("%d config maps besides that of the wide namespace, want 559", made)
	}
	e.ok(kube(1).CoreV1().ConfigMaps("default").Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}))
	third := must(e.start())(t)
	t.Cleanup(third.Close)
	e.all = append(e.all, third)
	list := func() int {
		return len(must(kube(2).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}))(t).Items)
	}
	creates(t, 6, 5, "y", "default", kube)
	if n := list(); n != 31 {
		t.Errorf("%d config maps, want 31", n)
	}
	e.ok(e.dynamic(third, "root").Resource(workspaces).Delete(t.Context(), "limited", metav1.DeleteOptions{}))
	root := &tenant{t: t, server: &running{Server: third}, name: "root", any: e.dynamic(third, "root")}
	root.await(workspaces, "", "limited", gone)
	e.nothing("/registry/", "/", c)
}

// Kinds of definitions and of exports are counted like built-in ones.
func TestQuotaOfCustomResources(t *testing.T) {
	t.Parallel()
	provider, consumer, own := exporter(t), newTenant(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("widgets", provider.name, "widgets"))
	own.define(widgetDefinition())
	for _, c := range []*tenant{consumer, own} {
		c.quota("default", quotaOf("q", "count/widgets.example.com", "3"))
		var made atomic.Int64
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				_, err := c.any.Resource(widgets).Namespace("default").Create(t.Context(), newWidget(fmt.Sprint("w", i)), metav1.CreateOptions{})
				if err == nil {
					made.Add(1)
				} else if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q, requested: count/widgets.example.com=1") {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if made.Load() != 3 {
			t.Errorf("%d widgets, want 3", made.Load())
		}
		c.used("default", "q", "count/widgets.example.com", "3")
		if err := c.any.Resource(widgets).Namespace("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		c.used("default", "q", "count/widgets.example.com", "0")
	}
}

// Quotas hold and are counted again after a restart. Without quotas nothing is counted.
func TestQuotaAfterARestart(t *testing.T) {
	t.Parallel()
	dir, name := t.TempDir(), cluster.NewName()
	c, stop := restartable(t, dir, name)
	c.quota("default", quotaOf("q", "count/secrets", "2"))
	secret := func(name string) error {
		_, err := c.kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	for _, name := range []string{"a", "b"} {
		if err := secret(name); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	c, _ = restartable(t, dir, name)
	if err := secret("c"); !apierrors.IsForbidden(err) {
		t.Errorf("a third secret: %v", err)
	}
	if err := c.kube.CoreV1().Secrets("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.used("default", "q", "count/secrets", "1")
	if err := secret("c"); err != nil {
		t.Error(err)
	}
	if !c.server.Quotas().Counted(name) {
		t.Error("nothing is counted in the cluster with a quota")
	}
	other := c.server.tenant(t)
	if err := configMapIn(other.kube, "default", "x"); err != nil || other.server.Quotas().Counted(other.name) {
		t.Errorf("objects are counted in a cluster without quotas, %v", err)
	}
	if err := c.kube.CoreV1().ResourceQuotas("default").Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.settled()
	if c.server.Quotas().Counted(name) {
		t.Error("objects are counted after the quota was deleted")
	}
}
