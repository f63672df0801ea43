package controllers

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// namespaceWorld is a store with its followers, without a loop.
type namespaceWorld struct {
	t          *testing.T
	store      *store.Store
	workspaces *tenancy.Workspaces
	wakes      *wakes
	last       int64 // revision
}

func openNamespaceWorld(t *testing.T, dir string) *namespaceWorld {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	codec := scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	for _, resource := range []string{"namespaces", "serviceaccounts", "configmaps"} {
		s.Values().Register(keys.NativeResource(schema.GroupResource{Resource: resource}), values.Codec{Codec: codec})
	}
	w := &tenancy.Workspaces{Store: s, BaseURL: "https://example.com", RootCA: tenancy.NewRootCA("certificates")}
	f := &incompleteNamespaces{Inbox: trigger.New(func() []control.Key { return nil }), intact: w.IsIntact}
	s.Feed().Follow(f)
	if err := s.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &namespaceWorld{t: t, store: s, workspaces: w, wakes: wakesOf(f.Inbox)}
}

// write changes one object without its side effects.
func (w *namespaceWorld) write(c cluster.Name, r keys.Resource, o runtime.Object, m *metav1.ObjectMeta, del bool) {
	w.t.Helper()
	_, rev, err := w.store.Read(w.t.Context(), keys.Key{Resource: r, Cluster: c, Namespace: m.Namespace, Name: m.Name})
	if err == nil {
		w.last, err = w.store.Commit(w.t.Context(), []store.Write{{Resource: r, Cluster: c, Object: o, Expect: rev, Delete: del}})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *namespaceWorld) namespace(c cluster.Name, name string) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.write(c, namespaces, ns, &ns.ObjectMeta, false)
}

// found returns the namespaces that were found since the last call.
func (w *namespaceWorld) found() []string {
	w.t.Helper()
	if err := w.store.Feed().WaitFor(w.t.Context(), w.last); err != nil {
		w.t.Fatal(err)
	}
	return w.wakes.take()
}

func TestOnlyNamespacesThatLackSomethingAreLookedAt(t *testing.T) {
	dir := t.TempDir()
	w := openNamespaceWorld(t, dir)
	for _, c := range []cluster.Name{"one", "two"} {
		if err := w.workspaces.MakeCluster(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	ca := keys.Resource{Root: keys.Native, Resource: "configmaps"}
	root := func(namespace, text string) *corev1.ConfigMap {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: tenancy.RootCAConfigMap}, Data: map[string]string{"ca.crt": text}}
		m.Annotations = map[string]string{"kubernetes.io/description": "x"}
		return m
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	steps := []struct {
		name string
		do   func()
		want []string
	}{
		{"a cluster is created complete", func() { w.namespace("one", "x") }, []string{"one|x"}}, // created before
		{"it changes", func() { w.namespace("one", "x") }, []string{"one|x"}},
		{"it is filled", func() {
			if err := w.workspaces.FillNamespace(t.Context(), "one", "x"); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"the account goes", func() { w.write("one", serviceAccounts, account, &account.ObjectMeta, true) }, []string{"one|default"}},
		{"the certificates change", func() { m := root("x", "other"); w.write("one", ca, m, &m.ObjectMeta, false) }, []string{"one|x"}},
		{"they are right again", func() { m := root("x", "certificates"); w.write("one", ca, m, &m.ObjectMeta, false) }, nil},
		{"something else changes", func() {
			m := root("x", "other")
			m.Name = "mine"
			w.write("one", ca, m, &m.ObjectMeta, false)
		}, nil},
		{"they cannot be read", func() {
			_, err := w.store.RawClient().Put(t.Context(), "/registry/n/core/configmaps/-/one/x/"+tenancy.RootCAConfigMap, "{")
			if err != nil {
				t.Fatal(err)
			}
			w.namespace("two", "y") // so that the feed delivers the change
		}, []string{"one|x", "two|y"}},
		{"they are made again", func() {
			for c, ns := range map[cluster.Name]string{"one": "x", "two": "y"} {
				if err := w.workspaces.FillNamespace(t.Context(), c, ns); err != nil {
					t.Error(err)
				}
			}
			w.namespace("one", "x")
		}, []string{"one|x"}},
		{"the certificates of the other cluster go", func() { m := root("default", ""); w.write("two", ca, m, &m.ObjectMeta, true) }, []string{"two|default"}},
	}
	for _, step := range steps {
		step.do()
		if got := w.found(); !slices.Equal(got, step.want) {
			t.Errorf("%s: found %v, want %v", step.name, got, step.want)
		}
	}
	w.store.Close()

	// After a restart the same namespaces are found.
	w = openNamespaceWorld(t, dir)
	defer w.store.Close()
	if got, want := w.found(), []string{"one|default", "two|default"}; !slices.Equal(got, want) {
		t.Errorf("after a restart: found %v, want %v", got, want)
	}
}

// Followers run in every process, and loops in one. The keys that a process without loops
// keeps are limited.
func TestIdleFollowersForget(t *testing.T) {
	tokens := newTokenSecrets()
	tokens.Done()
	for i := range 2 * trigger.MaxWaiting {
		k := control.Key{Cluster: "one", Namespace: "x", Name: fmt.Sprint(i)}
		tokens.set(k, "account")
		tokens.set(k, "") // it was deleted
	}
	if n := len(tokens.gone); n > trigger.MaxWaiting {
		t.Errorf("%d secrets are kept", n)
	}
	tokens.Subscribe(func(control.Key) {})
	before := len(tokens.gone)
	for i := range trigger.MaxWaiting {
		k := control.Key{Cluster: "two", Namespace: "x", Name: fmt.Sprint(i)}
		tokens.set(k, "account")
		tokens.set(k, "")
	}
	if n := len(tokens.gone); n != before+trigger.MaxWaiting {
		t.Errorf("the running loop does not get %d of %d secrets", before+trigger.MaxWaiting-n, before+trigger.MaxWaiting)
	}
}
