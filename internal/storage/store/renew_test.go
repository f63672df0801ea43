package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// opened starts a store with config maps, whose feed has read all data.
func opened(t testing.TB, dir, version string, encryption value.ResourceTransformers) (*Store, storage.Interface) {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir, Version: version, NoSync: true, Encryption: encryption})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	return s, cm
}

// stored returns the stored values of a resource by their keys below its prefix.
func stored(t testing.TB, s *Store, r keys.Resource) map[string]string {
	t.Helper()
	prefix := s.prefix + r.Prefix() + "/"
	resp, err := s.RawClient().Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, kv := range resp.Kvs {
		all[strings.TrimPrefix(string(kv.Key), prefix)] = string(kv.Value)
	}
	return all
}

// age stores objects in the encoding of an older program, which is read but not written.
func age(t testing.TB, s *Store, c cluster.Name, names ...string) {
	t.Helper()
	for _, name := range names {
		cm := configMap("ns", name, "old")
		cm.APIVersion, cm.Kind = "v1", "ConfigMap"
		b, err := json.MarshalIndent(cm, "", " ")
		if err == nil {
			_, err = s.RawClient().Put(t.Context(), s.prefix+keys.NativeResource(configMaps).Key(c, "ns", name).Path(), string(b))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	newest, err := s.RawClient().Get(t.Context(), "x")
	if err == nil {
		err = s.Feed().WaitFor(t.Context(), newest.Header.Revision)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("x", i))
	}
	return names
}

// oldValues counts the config maps in such an encoding.
func oldValues(t testing.TB, s *Store) (n int) {
	t.Helper()
	for _, v := range stored(t, s, keys.NativeResource(configMaps)) {
		if strings.Contains(v, "\n ") {
			n++
		}
	}
	return n
}

func oldest(t testing.TB, s *Store) string {
	t.Helper()
	resp, err := s.RawClient().Get(t.Context(), s.formatKey())
	var f struct {
		Oldest string `json:"oldestKubernetes"`
	}
	if err == nil {
		err = json.Unmarshal(resp.Kvs[0].Value, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f.Oldest
}

// After an upgrade all data is rewritten, with any number of interruptions. Only then a
// program that cannot read the older version may start.
func TestRenewAfterAnUpgrade(t *testing.T) {
	const n = 300
	dir := t.TempDir()
	s, _ := opened(t, dir, "1.35", nil)
	create(t, s, "c1")
	age(t, s, "c1", numbered(n)...)
	s.Close()

	for cuts := 0; ; cuts++ {
		s, _ := opened(t, dir, "1.36", nil)
		before := oldValues(t, s)
		if o := oldest(t, s); o != "1.35" {
			t.Fatalf("with %d old values the oldest version is %q", before, o)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if cuts < 3 { // interrupted after some writes
			changes := s.RawClient().Watch(ctx, s.prefix+keys.NativeResource(configMaps).Prefix(), clientv3.WithPrefix())
			go func() {
				for range 20 {
					<-changes
				}
				cancel()
			}()
		}
		_, err := s.Renew(ctx)
		cancel()
		after := oldValues(t, s)
		if cuts < 3 {
			if err == nil || after >= before {
				t.Fatalf("cut: %v, %d old values after %d", err, after, before)
			}
			s.Close()
			refused(t, dir, "1.37", "1.35", "1.37")
			continue
		}
		if err != nil || after != 0 || oldest(t, s) != "" {
			t.Fatalf("%v, %d old values, oldest %q", err, after, oldest(t, s))
		}
		for key := range stored(t, s, keys.NativeResource(configMaps)) { // each was written once
			resp, err := s.RawClient().Get(t.Context(), s.prefix+keys.NativeResource(configMaps).Prefix()+"/"+key)
			if err != nil || resp.Kvs[0].Version != 2 {
				t.Errorf("%s is at version %d, %v", key, resp.Kvs[0].Version, err)
			}
		}
		written := s.guard.latest.Load()
		if again, err := s.Renew(t.Context()); again != 0 || err != nil || s.guard.latest.Load() != written {
			t.Errorf("with nothing to do: again in %v, %v, written: %v", again, err, s.guard.latest.Load() != written)
		}
		s.Close()
		break
	}
	opened(t, dir, "1.37", nil)
}

// Renew keeps concurrent writes and the expiry of objects. It skips values that cannot be
// decoded and continues with others.
func TestRenewBesideOthers(t *testing.T) {
	s, cm := opened(t, t.TempDir(), "1.36", nil)
	create(t, s, "c1", "bad", "gone")
	names := numbered(200)
	age(t, s, "c1", names...)
	age(t, s, "gone", "orphan")
	lease, err := s.RawClient().Grant(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	prefix := s.prefix + keys.NativeResource(configMaps).Prefix()
	for key, v := range map[string]string{"/bad/ns/x": "{", "/bad/ns/y": `{"apiVersion":"v9","kind":"ConfigMap"}`, "/bad": "no key"} {
		if _, err := s.RawClient().Put(t.Context(), prefix+key, v); err != nil {
			t.Fatal(err)
		}
	}
	leased := `{ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "ns", "name": "leased"} }`
	if _, err := s.RawClient().Put(t.Context(), prefix+"/c1/ns/leased", leased, clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), nil, Fence{Cluster: "gone", From: Active, State: Gone}); err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	others.Go(func() {
		for _, name := range names {
			err := cm.GuaranteedUpdate(in("c1"), cmRoot+"/ns/"+name, &corev1.ConfigMap{}, false, nil,
				func(o runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
					n := o.(*corev1.ConfigMap).DeepCopy()
					n.Data["by"] = "others"
					return n, nil, nil
				}, nil)
			if err != nil {
				t.Error(err)
			}
		}
	})
	_, err = s.Renew(t.Context())
	others.Wait()
	if err != nil {
		t.Fatal(err)
	}
	all := stored(t, s, keys.NativeResource(configMaps))
	for _, name := range names {
		if v := all["c1/ns/"+name]; strings.Contains(v, "\n ") || !strings.Contains(v, `"by":"others"`) || !strings.Contains(v, `"v":"old"`) {
			t.Errorf("%s is now %s", name, v)
		}
	}
	if all["bad/ns/x"] != "{" || all["bad/ns/y"] == "" {
		t.Errorf("what cannot be decoded is now %q and %q", all["bad/ns/x"], all["bad/ns/y"])
	}
	resp, err := s.RawClient().Get(t.Context(), prefix+"/c1/ns/leased")
	if err != nil || string(resp.Kvs[0].Value) == leased || resp.Kvs[0].Lease != int64(lease.ID) {
		t.Errorf("what expires is now %s with lease %x, %v", resp.Kvs[0].Value, resp.Kvs[0].Lease, err)
	}
}

// Data that Renew cannot rewrite keeps its version in the format.
func TestRenewWhatIsFrozenOrNotServed(t *testing.T) {
	dir := t.TempDir()
	s, _ := opened(t, dir, "1.35", nil)
	create(t, s, "c1")
	age(t, s, "c1", "x")
	unserved := keys.Resource{Root: keys.Native, Resource: "pods"}.Key("c1", "ns", "p")
	if _, err := s.RawClient().Put(t.Context(), s.prefix+unserved.Path(), "{}"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), nil, Fence{Cluster: "c1", From: Active, State: Frozen}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s, _ = opened(t, dir, "1.36", nil)
	if _, err := s.Renew(t.Context()); err == nil || oldest(t, s) != "1.35" {
		t.Errorf("in a frozen cluster: %v, oldest %q", err, oldest(t, s))
	}
	if _, err := s.Commit(t.Context(), nil, Fence{Cluster: "c1", From: Frozen, State: Active}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context()); err != nil || oldValues(t, s) != 0 || oldest(t, s) != "1.35" {
		t.Errorf("with pods that are not served: %v, %d old values, oldest %q", err, oldValues(t, s), oldest(t, s))
	}
}

// revision returns the current revision of etcd.
func revision(t *testing.T, s *Store) int64 {
	t.Helper()
	_, at, err := s.Revision(t.Context(), keys.SystemKey("c1", "no", "key"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// After a change of keys, all data is encrypted with the new key, including custom resources.
// Then the old key is not needed.
func TestRenewEncryption(t *testing.T) {
	for name, kind := range map[string]struct {
		resource keys.Resource
		root     string
		of       func(testing.TB, *Store) storage.Interface
		object   func(name string) runtime.Object
	}{
		"native": {keys.NativeResource(configMaps), cmRoot, configMapsOf, func(name string) runtime.Object { return configMap("ns", name, "v") }},
		"custom": {keys.CustomResource(widgets, ""), storetest.WidgetsRoot, widgetsOf, func(name string) runtime.Object { return widget("ns", name, "v") }},
	} {
		t.Run(name, func(t *testing.T) {
			dir, names := t.TempDir(), numbered(20)
			before := map[string]string{} // the values before the last step
			var s *Store
			reopen := func(e value.ResourceTransformers) storage.Interface {
				t.Helper()
				var err error
				if s, err = Open(t.Context(), Options{Dir: dir, Version: "1.36", NoSync: true, Encryption: e}); err != nil {
					t.Fatal(err)
				}
				api := kind.of(t, s)
				storetest.StartFeeds(t, s)
				return api
			}
			renew := func() time.Duration {
				t.Helper()
				again, err := s.Renew(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return again
			}
			api := reopen(nil)
			create(t, s, "c1")
			for _, name := range names {
				if err := api.Create(in("c1"), kind.root+"/ns/"+name, kind.object(name), nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			for _, step := range []struct {
				providers []string
				mark      string // prefix of values with the right encryption
			}{
				{[]string{storetest.AESGCM("a"), storetest.Plain}, "k8s:enc:aesgcm:v1:a:"},
				{[]string{storetest.AESGCM("b", "a")}, "k8s:enc:aesgcm:v1:b:"},
				{[]string{storetest.Plain, storetest.AESGCM("b")}, "{"},
				{nil, "{"},
			} {
				var e value.ResourceTransformers
				if step.providers != nil {
					e = storetest.Encrypting(t, step.providers...)
				}
				reopen(e)
				if again := renew(); (again > 0) != (e != nil) {
					t.Errorf("%v: again in %v", step.providers, again)
				}
				all := stored(t, s, kind.resource)
				for key, v := range all {
					if !strings.HasPrefix(v, step.mark) {
						t.Errorf("%v: %s is %.40q", step.providers, key, v)
					}
				}
				for key, value := range before { // a process that does not know the new key writes
					if step.mark != "k8s:enc:aesgcm:v1:b:" {
						break
					}
					if _, err := s.RawClient().Put(t.Context(), s.prefix+kind.resource.Prefix()+"/"+key, value); err != nil {
						t.Fatal(err)
					}
					renew()
					if now := stored(t, s, kind.resource)[key]; !strings.HasPrefix(now, step.mark) {
						t.Errorf("%v: %s is %.40q", step.providers, key, now)
					}
				}
				renew() // finds no more values
				before = stored(t, s, kind.resource)
				written := revision(t, s)
				if renew(); len(all) != len(names) || revision(t, s) != written {
					t.Errorf("%v: %d values, rewritten: %v", step.providers, len(all), revision(t, s) != written)
				}
				s.Close()
			}
			api = reopen(nil)
			defer s.Close()
			list := storetest.EmptyWidgets()
			if name == "native" {
				list = storetest.EmptyConfigMaps()
			}
			if err := api.GetList(in("c1"), kind.root, everything(""), list); err != nil || meta.LenList(list) != len(names) {
				t.Errorf("listed %d, %v", meta.LenList(list), err)
			}
		})
	}
}
