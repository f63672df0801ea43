package store

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
)

// Objects of the same name in different clusters are independent.
func TestClustersAreApart(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1", "c2")
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
	if got := s.Feed().Ledger().Of("c1")[keys.NativeResource(configMaps)]; got.Objects > 1 {
		t.Errorf("ledger counts %v", got)
	}
}

// Clusters that do not exist, or are frozen, accept no writes.
func TestGuardRefuses(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	key := cmRoot + "/default/x"
	err := cm.Create(in("none"), key, configMap("default", "x", ""), nil, 0)
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("write to a cluster that does not exist: %v", err)
	}
	create(t, s, "c1")
	if err := cm.Create(in("c1"), key, configMap("default", "x", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), nil, Fence{Cluster: "c1", From: Active, State: Terminating}); err != nil {
		t.Fatal(err)
	}
	if err := cm.Create(in("c1"), cmRoot+"/default/y", configMap("default", "y", ""), nil, 0); !apierrors.IsForbidden(err) {
		t.Errorf("create in a terminating cluster: %v", err)
	}
	if err := cm.Delete(in("c1"), key, &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Errorf("delete in a terminating cluster: %v", err)
	}
	if err := cm.Create(in(cluster.All), key, configMap("default", "x", ""), nil, 0); !apierrors.IsBadRequest(err) {
		t.Errorf("create in all clusters: %v", err)
	}
}
