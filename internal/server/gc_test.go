package server_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

const holdFinalizer = "example.com/hold"

var (
	configMapsResource   = core("configmaps")
	clusterRolesResource = rbacv1.SchemeGroupVersion.WithResource("clusterroles")
)

// configMap creates a config map with owners in the default namespace.
func (c *tenant) configMap(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	c.t.Helper()
	return c.make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: owners}})
}

func (c *tenant) make(o *corev1.ConfigMap) *corev1.ConfigMap {
	c.t.Helper()
	return must(c.kube.CoreV1().ConfigMaps(o.Namespace).Create(c.t.Context(), o, metav1.CreateOptions{}))(c.t)
}

// owner returns an owner reference to a config map.
func owner(o *corev1.ConfigMap) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: o.Name, UID: o.UID}
}

// blocked returns an owner reference that blocks the deletion of the owner.
func blocked(o *corev1.ConfigMap) metav1.OwnerReference {
	r := owner(o)
	r.BlockOwnerDeletion = new(true)
	return r
}

func (c *tenant) delete(name string, how metav1.DeletionPropagation) {
	c.t.Helper()
	if err := c.kube.CoreV1().ConfigMaps("default").Delete(c.t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &how}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *tenant) awaitConfigMap(name string, wanted func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	c.t.Helper()
	return c.await(configMapsResource, "default", name, wanted)
}

// caughtUp waits until new garbage is collected. All earlier work has been started then.
func (c *tenant) caughtUp() {
	c.t.Helper()
	absent := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never-was", UID: types.UID(cluster.NewName())}
	for i := range 3 {
		name := fmt.Sprintf("canary-%d-%s", i, cluster.NewName())
		c.configMap(name, absent)
		c.awaitConfigMap(name, gone)
	}
}

// stays checks that a config map exists and is not being deleted.
func (c *tenant) stays(name string) *corev1.ConfigMap {
	c.t.Helper()
	o, err := c.kube.CoreV1().ConfigMaps("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil || o.DeletionTimestamp != nil {
		c.t.Fatalf("config map %s in %s should have stayed: %v, deleted at %v", name, c.name, err, o.DeletionTimestamp)
	}
	return o
}

func hasOwners(n int) func(*unstructured.Unstructured) bool {
	return func(o *unstructured.Unstructured) bool { return o != nil && len(o.GetOwnerReferences()) == n }
}

func waitsFor(finalizer string) func(*unstructured.Unstructured) bool {
	return func(o *unstructured.Unstructured) bool {
		return o != nil && o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), finalizer)
	}
}

// release removes all finalizers of a config map.
func (c *tenant) release(name string) {
	c.t.Helper()
	_, err := c.kube.CoreV1().ConfigMaps("default").Patch(c.t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

func TestDependentsGoWithTheirOwner(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	top := c.configMap("top")
	middle := c.configMap("middle", owner(top))
	c.configMap("bottom", owner(middle))
	c.delete("top", metav1.DeletePropagationBackground)
	for _, name := range []string{"middle", "bottom"} {
		c.awaitConfigMap(name, gone)
	}
}

func TestDependentsOfAbsentOwnersGo(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	there := c.configMap("there")
	goner := c.configMap("goner")
	c.delete("goner", metav1.DeletePropagationBackground)

	never, reborn := owner(there), owner(there)
	never.Name, never.UID = "never", "of-nobody"
	reborn.UID = "of-an-earlier-one" // the name exists with another UID
	c.configMap("of-never", never)
	c.configMap("of-goner", owner(goner))
	c.configMap("of-another", reborn)
	for _, name := range []string{"of-never", "of-goner", "of-another"} {
		c.awaitConfigMap(name, gone)
	}
	c.stays("there")
}

func TestOneOwnerIsEnough(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	a, b := c.configMap("a"), c.configMap("b")
	c.configMap("child", owner(a), owner(b))
	c.delete("a", metav1.DeletePropagationBackground)
	left := c.awaitConfigMap("child", hasOwners(1))
	if ref := left.GetOwnerReferences()[0]; ref.UID != b.UID {
		t.Errorf("is left with owner %s", ref.Name)
	}
	c.delete("b", metav1.DeletePropagationBackground)
	c.awaitConfigMap("child", gone)
}

func TestForegroundDeletionWaitsForDependents(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	top := c.configMap("top")
	held := c.make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "held", OwnerReferences: []metav1.OwnerReference{blocked(top)}, Finalizers: []string{holdFinalizer},
	}})
	c.configMap("below", blocked(held))
	c.configMap("light", owner(top)) // deleted, too, but it does not block
	c.delete("top", metav1.DeletePropagationForeground)

	c.awaitConfigMap("below", gone)
	c.awaitConfigMap("light", gone)
	c.awaitConfigMap("held", func(o *unstructured.Unstructured) bool {
		return waitsFor(holdFinalizer)(o) && len(o.GetFinalizers()) == 1
	})
	c.caughtUp()
	if o := c.awaitConfigMap("top", there); !waitsFor(metav1.FinalizerDeleteDependents)(o) {
		t.Errorf("the owner does not wait: %v", o)
	}
	c.release("held")
	c.awaitConfigMap("top", gone)
}

// A foreground deletion does not wait for dependents that another owner keeps.
func TestForegroundDeletionLetsGoOfWhatOthersOwn(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	a, b := c.configMap("a"), c.configMap("b")
	c.configMap("child", blocked(a), blocked(b))
	c.delete("a", metav1.DeletePropagationForeground)
	c.awaitConfigMap("a", gone)
	if o := c.stays("child"); len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != b.UID {
		t.Errorf("owners are %v", o.OwnerReferences)
	}
}

// A dependent that no longer blocks does not delay the deletion of its owner.
func TestForegroundDeletionIsUnblocked(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	top := c.configMap("top")
	c.make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "held", OwnerReferences: []metav1.OwnerReference{blocked(top)}, Finalizers: []string{holdFinalizer},
	}})
	c.delete("top", metav1.DeletePropagationForeground)
	c.awaitConfigMap("held", waitsFor(holdFinalizer))
	_, err := c.kube.CoreV1().ConfigMaps("default").Patch(t.Context(), "held", types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"uid":%q,"blockOwnerDeletion":false}]}}`, top.UID), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.awaitConfigMap("top", gone)
	c.release("held")
	c.awaitConfigMap("held", gone)
}

func TestOrphansStay(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	top := c.configMap("top")
	child := c.configMap("child", blocked(top))
	c.configMap("grandchild", owner(child))
	c.delete("top", metav1.DeletePropagationOrphan)
	c.awaitConfigMap("top", gone)
	c.caughtUp()
	if o := c.stays("child"); len(o.OwnerReferences) != 0 {
		t.Errorf("the orphan has owners: %v", o.OwnerReferences)
	}
	if o := c.stays("grandchild"); len(o.OwnerReferences) != 1 {
		t.Errorf("the orphan's dependent has owners %v", o.OwnerReferences)
	}
}

func TestCyclesEnd(t *testing.T) {
	t.Parallel()
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			c := newTenant(t)
			a := c.configMap("a")
			b := c.configMap("b", blocked(a))
			d := c.configMap("d", blocked(b))
			a.OwnerReferences = []metav1.OwnerReference{blocked(d)}
			if _, err := c.kube.CoreV1().ConfigMaps("default").Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			c.caughtUp()
			c.stays("d")
			c.delete("b", how)
			for _, name := range []string{"a", "b", "d"} {
				c.awaitConfigMap(name, gone)
			}
		})
	}
}

// An object that is its own owner does not wait for itself.
func TestObjectThatOwnsItself(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		self := c.configMap("self")
		self.OwnerReferences = []metav1.OwnerReference{blocked(self)}
		if _, err := c.kube.CoreV1().ConfigMaps("default").Update(t.Context(), self, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.caughtUp()
		c.stays("self")
		c.delete("self", how)
		c.awaitConfigMap("self", gone)
	}
}

// Objects with equal names and owners in two clusters are independent.
func TestGarbageOfOneClusterIsNotThatOfAnother(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), newTenant(t)
	for _, c := range []*tenant{a, b} {
		c.configMap("child", owner(c.configMap("top")))
	}
	a.delete("top", metav1.DeletePropagationBackground)
	a.awaitConfigMap("child", gone)
	b.caughtUp()
	b.stays("top")
	if o := b.stays("child"); len(o.OwnerReferences) != 1 {
		t.Errorf("owners are %v", o.OwnerReferences)
	}
}

// Copies of clusters contain objects with equal UIDs.
func TestEqualUIDsInTwoClusters(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), newTenant(t)
	r := keys.NativeResource(configMapsResource.GroupResource())
	for _, c := range []*tenant{a, b} {
		for _, m := range []metav1.ObjectMeta{
			{Namespace: "default", Name: "top", UID: "uid-of-top"},
			{Namespace: "default", Name: "child", UID: "uid-of-child", OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "ConfigMap", Name: "top", UID: "uid-of-top", BlockOwnerDeletion: new(true)},
			}},
		} {
			_, err := c.server.Store().Commit(t.Context(), []store.Write{{Resource: r, Cluster: c.name, Object: &corev1.ConfigMap{ObjectMeta: m}}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	a.delete("top", metav1.DeletePropagationForeground)
	a.awaitConfigMap("top", gone)
	a.awaitConfigMap("child", gone)
	b.caughtUp()
	b.stays("top")
	if o := b.stays("child"); len(o.OwnerReferences) != 1 {
		t.Errorf("owners are %v", o.OwnerReferences)
	}
}

// The UID of an object in another cluster counts as a missing owner. A reference to it
// neither keeps the dependent, nor blocks or deletes the other object.
func TestForgedOwnersOfOtherClusters(t *testing.T) {
	t.Parallel()
	victim, forger := newTenant(t), newTenant(t)
	target := victim.configMap("target")
	childOfTarget := victim.configMap("child", owner(target))
	forger.configMap("target") // the same name with another UID

	forger.configMap("kept", owner(target))
	forger.make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "blocking", OwnerReferences: []metav1.OwnerReference{blocked(target)}, Finalizers: []string{holdFinalizer},
	}})
	forger.configMap("below", owner(childOfTarget))
	for _, name := range []string{"kept", "below"} {
		forger.awaitConfigMap(name, gone)
	}
	forger.awaitConfigMap("blocking", waitsFor(holdFinalizer))
	victim.caughtUp()
	victim.stays("target")
	victim.stays("child")

	victim.delete("target", metav1.DeletePropagationForeground) // "blocking" does not block it
	victim.awaitConfigMap("target", gone)
	victim.awaitConfigMap("child", gone)
	forger.stays("target")
}

// An owner in another namespace counts as missing. An event has the reason.
func TestOwnerInAnotherNamespace(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.namespace("other")
	far := c.make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "far"}})
	child := c.configMap("child", owner(far))
	c.awaitConfigMap("child", gone)
	c.awaitWarning("default", child.UID)
}

// A cluster-scoped object cannot have a namespaced owner. It is never collected.
func TestNamespacedOwnerOfClusterScopedObject(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	top := c.configMap("top")
	role := must(c.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "odd", OwnerReferences: []metav1.OwnerReference{owner(top)}},
	}, metav1.CreateOptions{}))(t)
	c.awaitWarning("default", role.UID)
	c.delete("top", metav1.DeletePropagationBackground)
	c.caughtUp()
	if o := c.await(clusterRolesResource, "", "odd", there); o.GetDeletionTimestamp() != nil {
		t.Error("it is being deleted")
	}
}

// A namespaced object can have a cluster-scoped owner.
func TestClusterScopedOwner(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	role := must(c.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "top"}}, metav1.CreateOptions{}))(t)
	c.configMap("child", metav1.OwnerReference{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: "top", UID: role.UID})
	c.caughtUp()
	c.stays("child")
	if err := c.kube.RbacV1().ClusterRoles().Delete(t.Context(), "top", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitConfigMap("child", gone)
}

// awaitWarning waits for the event about an owner in another namespace.
func (c *tenant) awaitWarning(namespace string, about types.UID) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	w := must(c.kube.CoreV1().Events(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "reason=OwnerRefInvalidNamespace"}))(c.t)
	defer w.Stop()
	var last watch.Event
	for e := range w.ResultChan() {
		last = e
		if o, ok := e.Object.(*corev1.Event); ok && o.InvolvedObject.UID == about {
			if o.Type != corev1.EventTypeWarning || o.Message == "" {
				c.t.Errorf("got %+v", o)
			}
			return
		}
	}
	list, err := c.kube.CoreV1().Events("").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Error(err)
	}
	c.t.Fatalf("no event OwnerRefInvalidNamespace until the watch ended (%v) after %+v; there are %+v", ctx.Err(), last, list.Items)
}

// Owners of kinds that are not served may exist, so their dependents stay.
func TestOwnersOfUnknownKindsKeepTheirDependents(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.configMap("child", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Nobody", Name: "x", UID: "x"},
		metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "absent", UID: "y"})
	c.configMap("other-version", metav1.OwnerReference{APIVersion: "v2", Kind: "ConfigMap", Name: "x", UID: "z"})
	c.caughtUp()
	for _, name := range []string{"child", "other-version"} {
		if o := c.stays(name); len(o.OwnerReferences) == 0 {
			t.Errorf("%s has lost its owners", name)
		}
	}
}

func TestManyDependents(t *testing.T) {
	t.Parallel()
	n := size(1_000, 10_000)
	c := newTenant(t)
	top := c.configMap("top")
	st, r := c.server.Store(), keys.NativeResource(schema.GroupResource{Resource: "configmaps"})
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for i := worker; i < n; i += 16 {
				_, err := st.Commit(t.Context(), []store.Write{{Resource: r, Cluster: c.name, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: fmt.Sprint("child-", i), UID: types.UID(fmt.Sprint("uid-", i)), OwnerReferences: []metav1.OwnerReference{blocked(top)},
				}}}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	began := time.Now()
	c.delete("top", metav1.DeletePropagationForeground)
	c.awaitConfigMapWithin("top", 10*patience, gone)
	t.Logf("%d dependents were gone after %v", n, time.Since(began))
	if left := st.Feed().Ledger().Of(c.name)[r].Objects; left > 2 {
		t.Errorf("%d config maps are left", left)
	}
}

// awaitConfigMapWithin is awaitConfigMap with a time limit.
func (c *tenant) awaitConfigMapWithin(name string, d time.Duration, wanted func(*unstructured.Unstructured) bool) {
	c.t.Helper()
	deadline := time.Now().Add(d)
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithDeadline(c.t.Context(), deadline)
		w, err := c.any.Resource(configMapsResource).Namespace("default").Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=" + name})
		if err != nil {
			cancel()
			c.t.Fatal(err)
		}
		if _, err := c.kube.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) && wanted(nil) {
			w.Stop()
			cancel()
			return
		}
		_, ok := untilWanted(w, wanted)
		cancel()
		if ok {
			return
		}
	}
	c.t.Fatalf("%s did not become as wanted", name)
}

// Owner references take memory for as long as the object exists, so there is a limit.
func TestOwnersAreLimited(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	owners := make([]metav1.OwnerReference, 1001)
	for i := range owners {
		owners[i] = metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Nothing", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}
	}
	all := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "many", OwnerReferences: owners}}
	_, err := c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), all, metav1.CreateOptions{})
	wantRefusal(t, err, "an object has at most 1000 owners, and this one 1001")
	all.OwnerReferences = owners[:1000]
	must(c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), all, metav1.CreateOptions{}))(t)
}
