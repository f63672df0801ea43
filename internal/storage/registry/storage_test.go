package registry

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

const cmRoot = storetest.ConfigMapsRoot

var (
	configMap  = storetest.ConfigMap
	in         = storetest.In
	everything = storetest.Everything
)

// open returns a store with some clusters, and the storage of config maps in etcd.
func open(t *testing.T, clusters ...cluster.Name) (*store.Store, *Storage) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	r, codec := keys.NativeResource(storetest.ConfigMaps()), values.Codec{Codec: storetest.JSON()}
	s.Values().Register(r, codec)
	client := s.Client()
	direct, err := s.Etcd3(client, store.Objects{
		Config: storagebackend.NewDefaultConfig("/", codec).ForResource(r.GroupResource()), Root: cmRoot,
		Codec: codec, New: storetest.EmptyConfigMap, NewList: storetest.EmptyConfigMaps,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		direct.Close()
		_ = client.Close() // reports only that its context ended
	})
	storetest.StartFeeds(t, s)
	for _, c := range clusters {
		if _, err := s.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			t.Fatal(err)
		}
	}
	return s, NewStorage(s, Options{Resource: r, Root: cmRoot}, direct)
}

// Objects of the same name in different clusters are independent.
func TestClustersAreApart(t *testing.T) {
	s, cm := open(t, "c1", "c2")
	for _, c := range []cluster.Name{"c1", "c2"} {
		var out corev1.ConfigMap
		if err := cm.Create(in(c), cmRoot+"/default/same", configMap("default", "same", string(c)), &out, 0); err != nil {
			t.Fatal(err)
		}
		if cluster.Of(&out) != c {
			t.Errorf("created in %s, says %s", c, cluster.Of(&out))
		}
	}
	for _, c := range []cluster.Name{"c1", "c2"} {
		var l corev1.ConfigMapList
		if err := cm.GetList(in(c), cmRoot+"/default", everything(""), &l); err != nil {
			t.Fatal(err)
		}
		if len(l.Items) != 1 || l.Items[0].Data["v"] != string(c) || cluster.Of(&l.Items[0]) != c {
			t.Errorf("%s lists %v", c, l.Items)
		}
	}
	var all corev1.ConfigMapList
	if err := cm.GetList(in(cluster.All), cmRoot, everything(""), &all); err != nil || len(all.Items) != 2 {
		t.Errorf("all clusters list %d, %v", len(all.Items), err)
	}
	if got := s.Feed().Ledger().Of("c1")[keys.NativeResource(storetest.ConfigMaps())]; got.Objects > 1 {
		t.Errorf("ledger counts %v", got)
	}
}

// A request that is limited to a part reads, changes and deletes only objects of the part, and cannot
// move an object into it or out of it.
func TestPart(t *testing.T) {
	_, cm := open(t, "c1")
	labelled := func(name, colour string) *corev1.ConfigMap {
		o := configMap("ns", name, "")
		o.Labels = map[string]string{"colour": colour}
		return o
	}
	key := func(name string) string { return cmRoot + "/ns/" + name }
	for name, colour := range map[string]string{"red": "red", "blue": "blue"} {
		if err := cm.Create(in("c1"), key(name), labelled(name, colour), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	part := WithPart(in("c1"), storetest.ConfigMaps(), membership.NewPart("colour=red"))
	recolour := func(ctx context.Context, name, colour string) error {
		return cm.GuaranteedUpdate(ctx, key(name), &corev1.ConfigMap{}, false, nil, storage.SimpleUpdate(func(runtime.Object) (runtime.Object, error) {
			return labelled(name, colour), nil
		}), nil)
	}
	remove := func(name string) error {
		return cm.Delete(part, key(name), &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{IgnoreStoreReadError: true})
	}
	var all corev1.ConfigMapList
	o := everything("")
	o.Predicate.GetAttrs = storetest.Attrs
	if err := cm.GetList(part, cmRoot, o, &all); err != nil || len(all.Items) != 1 || all.Items[0].Name != "red" {
		t.Errorf("list: %v, %v", all.Items, err)
	}
	if err := cm.Get(part, key("red"), storage.GetOptions{}, &corev1.ConfigMap{}); err != nil {
		t.Errorf("get: %v", err)
	}
	for doing, err := range map[string]error{
		"get":    cm.Get(part, key("blue"), storage.GetOptions{}, &corev1.ConfigMap{}),
		"update": recolour(part, "blue", "red"),
		"delete": remove("blue"),
	} {
		if !storage.IsNotFound(err) {
			t.Errorf("%s of an object outside of the part: %v", doing, err)
		}
	}
	for doing, err := range map[string]error{
		"create":   cm.Create(part, key("new"), labelled("new", "blue"), nil, 0),
		"move out": recolour(part, "red", "blue"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", doing, err)
		}
	}
	none := labelled("none", "x")
	if err := cm.Get(part, key("blue"), storage.GetOptions{IgnoreNotFound: true}, none); err != nil || none.Name != "" {
		t.Errorf("get of an object that may be missing: %v, %v", none, err)
	}
	if err := remove("red"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := recolour(WithPart(in("c1"), keys.NativeResource(storetest.Widgets()).GroupResource(), membership.NewPart("colour=red")), "blue", "green"); err != nil {
		t.Errorf("a part of another resource: %v", err)
	}
}

// A label that is not stored is in every answer, selects as a stored one does, and is never written.
func TestComputedLabel(t *testing.T) {
	s, cm := open(t, "c1")
	label := apisv1alpha2.ClaimedLabelPrefix + "x"
	ctx := WithLabel(in("c1"), storetest.ConfigMaps(), label, "yes")
	has := func(doing string, o *corev1.ConfigMap) {
		t.Helper()
		if o.Labels[label] != "yes" || o.Labels["a"] != "b" {
			t.Errorf("%s: labels %v", doing, o.Labels)
		}
	}
	given := configMap("ns", "x", "")
	given.Labels = map[string]string{"a": "b", label: "forged"}
	var out corev1.ConfigMap
	if err := cm.Create(ctx, cmRoot+"/ns/x", given, &out, 0); err != nil {
		t.Fatal(err)
	}
	has("create", &out)
	out = corev1.ConfigMap{}
	if err := cm.Get(ctx, cmRoot+"/ns/x", storage.GetOptions{}, &out); err != nil {
		t.Fatal(err)
	}
	has("get", &out)
	out = corev1.ConfigMap{}
	if err := cm.GuaranteedUpdate(ctx, cmRoot+"/ns/x", &out, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		has("update", o.(*corev1.ConfigMap))
		o.(*corev1.ConfigMap).Data = map[string]string{"v": "2"}
		return o, nil
	}), nil); err != nil {
		t.Fatal(err)
	}
	has("updated", &out)
	for selector, want := range map[string]int{label + "=yes": 1, label + "=no": 0, "a=b," + label: 1, "a=c," + label: 0, "!" + label: 0} {
		o := everything("")
		var err error
		if o.Predicate.Label, err = labels.Parse(selector); err != nil {
			t.Fatal(err)
		}
		o.Predicate.GetAttrs = storetest.Attrs
		var all corev1.ConfigMapList
		if err := cm.GetList(ctx, cmRoot, o, &all); err != nil || len(all.Items) != want {
			t.Errorf("list by %s: %d, want %d: %v", selector, len(all.Items), want, err)
		}
	}
	stored, _, err := s.Read(t.Context(), keys.NativeResource(storetest.ConfigMaps()).Key("c1", "ns", "x"))
	if err != nil {
		t.Fatal(err)
	}
	if l := stored.(*corev1.ConfigMap).Labels; len(l) != 1 {
		t.Errorf("stored labels: %v", l)
	}
}
