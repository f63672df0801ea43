package limits

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}

// Two processes that create at the same time do not exceed a limit, and reach it. After a deletion
// by one of them, the other can create.
func TestSeveralReachALimit(t *testing.T) {
	const most = 5
	members := etcdtest.Start(t, etcdtest.Options{})
	configMaps := keys.NativeResource(storetest.ConfigMaps())
	var all []*store.Store
	for range 2 {
		s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", Etcd: etcd.Config{Servers: members.Servers()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		s.Values().Register(configMaps, values.Codec{Codec: storetest.JSON()})
		New(s).SetBounds(func(c cluster.Name) []quota.Bound { return []quota.Bound{{Cluster: c, Objects: most}} },
			func(c cluster.Name) ([]cluster.Name, bool) { return []cluster.Name{c}, true })
		all = append(all, s)
	}
	storetest.StartFeeds(t, all...)
	if _, err := all[0].Commit(t.Context(), nil, store.Fence{Cluster: "c1", State: store.Active}); err != nil {
		t.Fatal(err)
	}
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"}) // the server's own writes have no limits
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{IsResourceRequest: true, Verb: "create"})
	create := func(s *store.Store, name string) (int64, error) {
		return s.Commit(ctx, []store.Write{{Resource: configMaps, Cluster: "c1", Object: storetest.ConfigMap("ns", name, "")}})
	}
	var created, refused atomic.Int64
	var last sync.Map // revision by name
	var running sync.WaitGroup
	for i := range 4 * most {
		running.Go(func() {
			name := fmt.Sprint("x", i)
			switch rev, err := create(all[i%2], name); {
			case err == nil:
				created.Add(1)
				last.Store(name, rev)
			case apierrors.IsForbidden(err):
				refused.Add(1)
			default:
				t.Errorf("create %s: %v", name, err)
			}
		})
	}
	running.Wait()
	if created.Load() != most || refused.Load() != 3*most {
		t.Errorf("%d were created and %d refused, and the limit is %d", created.Load(), refused.Load(), most)
	}
	last.Range(func(name, rev any) bool {
		_, err := all[0].Commit(t.Context(), []store.Write{{Resource: configMaps, Cluster: "c1", Object: storetest.ConfigMap("ns", name.(string), ""), Expect: rev.(int64), Delete: true}})
		if err != nil {
			t.Error(err)
		}
		return false
	})
	if _, err := create(all[1], "again"); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
	if _, err := create(all[0], "more"); !apierrors.IsForbidden(err) {
		t.Errorf("at the limit again: %v", err)
	}
}

// The names in a ResourceQuota, and what they count.
func TestCountedNames(t *testing.T) {
	for name, want := range map[corev1.ResourceName]schema.GroupResource{
		"configmaps":                          {Resource: "configmaps"},
		"count/configmaps":                    {Resource: "configmaps"},
		"count/widgets.example.com":           {Group: "example.com", Resource: "widgets"},
		"count/events":                        {},
		"count/events.events.k8s.io":          {},
		"count/events.example.com":            {Group: "example.com", Resource: "events"},
		"count/":                              {},
		"requests.cpu":                        {},
		"widgets.example.com":                 {},
		"services.loadbalancers":              {},
		corev1.ResourceReplicationControllers: {Resource: "replicationcontrollers"},
	} {
		got, counts := counted(name)
		if counts != (want != schema.GroupResource{}) || counts && got != want {
			t.Errorf("%s counts %v (%v), want %v", name, got, counts, want)
		}
	}
}

// A quota counts the whole cluster only in the namespace for it, and nothing if it has a scope.
func TestQuotaOf(t *testing.T) {
	of := func(namespace, whole string, scopes ...core.ResourceQuotaScope) *core.ResourceQuota {
		return &core.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "q", Annotations: map[string]string{WholeClusterAnnotation: whole}},
			Spec:       core.ResourceQuotaSpec{Hard: core.ResourceList{"count/configmaps": resource.MustParse("1k")}, Scopes: scopes},
		}
	}
	for _, tt := range []struct {
		of            *core.ResourceQuota
		whole, counts bool
		in            string
	}{
		{of("default", ""), false, true, "default"},
		{of("default", "true"), false, true, "default"},
		{of(WholeClusterNamespace, "true"), true, true, ""},
		{of(WholeClusterNamespace, "false"), false, true, WholeClusterNamespace},
		{of("default", "", core.ResourceQuotaScopeTerminating), false, false, "default"},
	} {
		q, err := quotaOf(tt.of)
		if err != nil {
			t.Fatal(err)
		}
		h := q.Hard[0]
		if q.Whole != tt.whole || h.Counts != tt.counts || h.Namespace != tt.in || h.Most != 1000 || h.limit != "1k" {
			t.Errorf("%s/%v %v: %+v", tt.of.Namespace, tt.of.Annotations, tt.of.Spec.Scopes, q)
		}
		if got := q.Counts(storetest.ConfigMaps()); got != tt.counts {
			t.Errorf("%s counts config maps: %v", tt.of.Namespace, got)
		}
	}
	if _, err := quotaOf(&core.Pod{}); err == nil {
		t.Error("a pod is taken for a quota")
	}
}
