package watchcache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// A list in any process contains all writes that any process has acknowledged.
func TestConsistentListsOfSeveral(t *testing.T) {
	members, all := several(t, 3, etcdtest.Options{Members: 3, Steady: true})
	var configs, custom []storage.Interface
	for _, s := range all {
		configs, custom = append(configs, configMapsOf(t, s)), append(custom, widgetsOf(t, s, "v1"))
	}
	storetest.StartFeeds(t, all...)
	create(t, all[0], "c1")
	_ = members
	kinds := []struct {
		apis []storage.Interface
		f    flavour
	}{{configs, natives()}, {custom, customs()}}
	var took []time.Duration
	lists := 100
	if storetest.Nightly() {
		lists = 300
	}
	for i := range lists {
		writer, reader := i%3, (i+1+i/3%2)%3
		for j, k := range kinds { // other kinds and prefixes are written, too
			other := kinds[1-j]
			if err := other.apis[writer].Create(in("c1"), fmt.Sprintf("%s/ns/o%d", other.f.root, i), other.f.object(object{"ns", fmt.Sprint("o", i)}, row{}), nil, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := all[writer].RawClient().Put(t.Context(), "/elsewhere", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			list := k.f.list()
			if err := k.apis[reader].GetList(in("c1"), k.f.root, everything(""), list); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(began))
			if n := meta.LenList(list); n != i+j {
				t.Fatalf("list %d of %s has %d objects, want %d", i, k.f.name, n, i+j)
			}
		}
	}
	slices.Sort(took)
	t.Logf("lists took %v (median), %v (99 %%), %v (longest)", took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	var got corev1.ConfigMapList
	if err := configs[0].GetList(in("c1"), cmRoot, everything(""), &got); err != nil || len(got.Items) != lists {
		t.Errorf("at last %d, %v", len(got.Items), err)
	}
}
