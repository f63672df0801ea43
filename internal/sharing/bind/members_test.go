package bind

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

func (s *shelf) export(name exports.Name, identity string, claims ...apisv1alpha2.PermissionClaim) int64 {
	e := &apisv1alpha2.APIExport{TypeMeta: metav1.TypeMeta{APIVersion: apisv1alpha2.GroupVersion.String(), Kind: "APIExport"}, ObjectMeta: values.NewMeta("", name.Name)}
	e.Spec.PermissionClaims, e.Status.IdentityHash = claims, identity
	return s.put(exports.Resource(), name.Cluster, name.Name, e)
}

func (s *shelf) binding(c cluster.Name, name string, of *apisv1alpha2.APIBinding) int64 {
	of.TypeMeta = metav1.TypeMeta{APIVersion: apisv1alpha2.GroupVersion.String(), Kind: "APIBinding"}
	of.ObjectMeta = values.NewMeta("", name)
	return s.put(BindingResource(), c, name, of)
}

// bound returns a binding that was bound to an export with an identity. Without one it has no
// resources.
func bound(to exports.Name, identity string, answers ...apisv1alpha2.AcceptablePermissionClaim) *apisv1alpha2.APIBinding {
	b := &apisv1alpha2.APIBinding{}
	b.Spec.Reference.Export = &apisv1alpha2.ExportReference{Name: to.Name}
	b.Spec.PermissionClaims = answers
	b.Status.APIExportClusterName, b.Status.Phase = string(to.Cluster), apisv1alpha2.PhaseBound
	for _, a := range answers {
		b.Status.ExportPermissionClaims = append(b.Status.ExportPermissionClaims, a.PermissionClaim)
	}
	if identity != "" {
		b.Status.BoundResources = []apisv1alpha2.BoundResource{{
			Group: "example.com", Resource: "widgets", StorageVersions: []string{"v1"},
			Schema: apisv1alpha2.BoundSchema{Name: "v1.widgets.example.com", UID: "u", IdentityHash: identity},
		}}
	}
	return b
}

func onSecrets(verbs ...string) apisv1alpha2.PermissionClaim {
	return apisv1alpha2.PermissionClaim{Resource: "secrets", Verbs: verbs}
}

func accepts(state apisv1alpha2.ClaimState, verbs ...string) apisv1alpha2.AcceptablePermissionClaim {
	a := apisv1alpha2.AcceptablePermissionClaim{State: state}
	a.PermissionClaim, a.Selector.MatchAll = onSecrets(verbs...), true
	return a
}

var claimedSecrets = Claimed{GroupResource: schema.GroupResource{Resource: "secrets"}}

// members returns the clusters of the view of an export, and those that it reads secrets in.
func (s *shelf) members(name exports.Name) (all, reads []cluster.Name) {
	s.Helper()
	for i, r := range []ViewList{{Export: name}, claimedSecrets.ViewList(name, "list")} {
		set, done := s.apis.Bindings.Members.Use(r)
		found, ok := set.Members(s.store.Feed().Revision())
		if done(); !ok {
			s.Fatal("the set does not know its members")
		}
		if i == 0 {
			all = found
		} else {
			reads = found
		}
	}
	return all, reads
}

// TestAnotherIdentityReadsNothing shows that the clusters that bind an export leave its view when
// an export with another identity comes in its place, though no loop has changed their bindings.
func TestAnotherIdentityReadsNothing(t *testing.T) {
	s, e := newShelf(t, store.Options{}, "p", "c"), exports.Name{Cluster: "p", Name: "widgets"}
	s.export(e, "first", onSecrets("list", "watch"))
	s.binding("c", "widgets", bound(e, "first", accepts(apisv1alpha2.ClaimAccepted, "list", "watch")))
	if all, reads := s.members(e); len(all) != 1 || len(reads) != 1 {
		t.Fatalf("in the view are %v, and secrets of %v", all, reads)
	}
	set, done := s.apis.Bindings.Members.Use(claimedSecrets.ViewList(e, "watch"))
	defer done()
	watch := set.After(s.store.Feed().Revision())
	s.put(exports.Resource(), "p", "widgets", nil)
	rev := s.export(e, "second", onSecrets("list", "watch"))
	if all, reads := s.members(e); len(all)+len(reads) != 0 {
		t.Errorf("another export reads in %v, and secrets of %v", all, reads)
	}
	if changes, ok := watch.To(rev); !ok || len(changes) != 1 || changes[0].Enters || changes[0].Revision != rev {
		t.Errorf("an open watch gets %v, %t", changes, ok)
	}
	s.put(exports.Resource(), "p", "widgets", nil)
	s.export(e, "first", onSecrets("list", "watch"))
	if all, reads := s.members(e); len(all) != 1 || len(reads) != 1 {
		t.Errorf("after the export is back it reads in %v, and secrets of %v", all, reads)
	}
}

// TestOneClusterAndAllAgree shows that, after any changes of exports and bindings, requests for all
// clusters read where requests for one cluster are granted.
func TestOneClusterAndAllAgree(t *testing.T) {
	providers := []exports.Name{{Cluster: "p", Name: "a"}, {Cluster: "p", Name: "b"}, {Cluster: "q", Name: "a"}}
	clusters := []cluster.Name{"c1", "c2", "c3"}
	s := newShelf(t, store.Options{}, append(clusters, "p", "q")...)
	pick := func(of ...string) string { return of[rand.IntN(len(of))] }
	for i := range 300 {
		if e := providers[rand.IntN(len(providers))]; rand.IntN(3) == 0 {
			if s.put(exports.Resource(), e.Cluster, e.Name, nil); rand.IntN(4) > 0 {
				s.export(e, pick("", "x", "y"), onSecrets("list"))
			}
		} else if c, name := clusters[rand.IntN(len(clusters))], pick("one", "two"); rand.IntN(5) == 0 {
			s.put(BindingResource(), c, name, nil)
		} else {
			b := bound(e, pick("", "x", "y"), accepts(apisv1alpha2.ClaimState(pick("Accepted", "Rejected")), pick("list", "get")))
			if pick("", "replaced") != "" {
				b.Status.Conditions.Set(conditions.Condition{Type: apisv1alpha2.APIExportValid, Status: metav1.ConditionFalse, Reason: pick(apisv1alpha2.APIExportInvalidReference, apisv1alpha2.APIExportNotFound)})
			}
			s.binding(c, name, b)
		}
		for _, e := range providers {
			now, ok := s.apis.Exports.Get(e.Cluster, "", e.Name)
			if !ok || now.Identity == "" {
				continue // it has no view
			}
			all, reads := s.members(e)
			var bind, granted []cluster.Name
			for _, c := range clusters {
				if s.apis.Bindings.Binds(c, Via{e, now.Identity}) {
					bind = append(bind, c)
				}
				if _, ok := s.apis.Bindings.Granted(c, Via{e, now.Identity}, claimedSecrets, "list"); ok {
					granted = append(granted, c)
				}
			}
			if fmt.Sprint(all, reads) != fmt.Sprint(bind, granted) {
				t.Fatalf("after %d changes, %v reads in %v and secrets of %v; single clusters allow %v and %v", i, e, all, reads, bind, granted)
			}
		}
	}
}

// A stumbling follower panics on the next change after it was armed.
type stumbling struct{ armed atomic.Bool }

func (*stumbling) Reset() {}
func (*stumbling) Done()  {}
func (f *stumbling) Apply(feed.Event) {
	if f.armed.Swap(false) {
		panic("stumbled")
	}
}

// TestARebuildChangesAllClusters shows that watches in one cluster look at its bindings again after
// the bindings were rebuilt: a claim may have been rejected meanwhile.
func TestARebuildChangesAllClusters(t *testing.T) {
	f, changed := &stumbling{}, make(chan cluster.Name, 100)
	s, e := closedShelf(t, store.Options{}, f), exports.Name{Cluster: "p", Name: "widgets"}
	s.apis.Bindings.OnChange(func(c cluster.Name) { changed <- c })
	s.open("p", "c")
	s.binding("c", "widgets", bound(e, "first"))
	if c := <-changed; c != "c" {
		t.Fatalf("%s has changed", c)
	}
	f.armed.Store(true)
	s.export(e, "first")
	select {
	case c := <-changed:
		if c != "c" {
			t.Errorf("%s has changed", c)
		}
	case <-time.After(storetest.Patience):
		t.Error("the rebuild changes nothing")
	}
}
