package server_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

const (
	maxObjects     = "core.kcp.io/max-total-objects"
	maxBytes       = "core.kcp.io/max-total-bytes"
	maxTreeObjects = "core.kcp.io/max-tree-objects"
	maxTreeBytes   = "core.kcp.io/max-tree-bytes"
)

// stored returns what clusters store, as limits count it.
func stored(s *server.Server, clusters ...cluster.Name) (objects, bytes int64) {
	for _, c := range clusters {
		for r, u := range s.Store().Feed().Ledger().Of(c) {
			bytes += u.Bytes
			if r.Root != "s" && r.Resource != "events" {
				objects += u.Objects
			}
		}
	}
	return objects, bytes
}

// settled returns when everything that this server wrote is counted.
func (c *tenant) settled() {
	c.t.Helper()
	if err := c.server.Store().Feed().CatchUp(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// fills creates config maps at several clusters at once until each writer is refused with a
// text, and returns their number.
func fills(t *testing.T, refusal string, at ...kubernetes.Interface) int {
	t.Helper()
	var made atomic.Int64
	var all sync.WaitGroup
	for _, client := range at {
		all.Go(func() {
			for {
				_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "fill-"}}, metav1.CreateOptions{})
				if apierrors.IsServerTimeout(err) {
					continue
				}
				if err != nil {
					if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refusal) {
						t.Error(err)
					}
					return
				}
				made.Add(1)
			}
		})
	}
	all.Wait()
	return int(made.Load())
}

func (c *tenant) operator() *tenant {
	return at(c.t, c.server, c.name, &user.DefaultInfo{Name: "operator", Groups: []string{auth.AdminGroup, user.AllAuthenticated}})
}

// A limit of objects is exact and holds at once; only operators change it.
func TestObjectLimit(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("limited")
	owner := c.allow("owner")
	c.await(core("configmaps"), "default", "kube-root-ca.crt", there)
	c.settled()
	before, _ := stored(c.server.Server, c.name)
	if err := c.operator().annotate(maxObjects, fmt.Sprintf(`"%d"`, before+9)); err != nil {
		t.Fatal(err)
	}
	if n := fills(t, "total object count limit", owner.kube, owner.kube, owner.kube, owner.kube, owner.kube, owner.kube); n != 9 {
		t.Errorf("%d objects, want 9", n)
	}
	c.settled()
	if now, _ := stored(c.server.Server, c.name); now != before+9 {
		t.Errorf("%d objects are stored, want %d", now, before+9)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}
	if _, err := c.kube.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Errorf("an event: %v", err)
	}
	if _, err := owner.any.Resource(workspaces).Create(t.Context(), workspace("below"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a workspace beyond the limit: %v", err)
	}
	for key, value := range map[string]string{maxObjects: `"0"`, maxBytes: `"1"`, maxTreeObjects: `null`, maxTreeBytes: `"-1"`} {
		if err := owner.annotate(key, value); key != maxTreeObjects && !apierrors.IsForbidden(err) {
			t.Errorf("the owner sets %s: %v", key, err)
		}
	}
	if err := owner.annotate(maxObjects, `null`); err != nil {
		t.Errorf("a manifest without the limit: %v", err)
	}
	if got := c.await(logicalClusters, "", "cluster", there).GetAnnotations()[maxObjects]; got != fmt.Sprint(before+9) {
		t.Errorf("after a manifest without the limit it is %q", got)
	}
	if err := c.operator().annotate(maxObjects, `"many"`); !apierrors.IsForbidden(err) {
		t.Errorf("a limit that is no number: %v", err)
	}
	if err := c.operator().annotate(maxObjects, `null`); err != nil {
		t.Fatal(err)
	}
	if err := configMapIn(c.kube, "default", "free"); err != nil {
		t.Errorf("without the limit: %v", err)
	}
}

// A limit of a workspace holds for all workspaces below it together.
func TestTreeLimit(t *testing.T) {
	t.Parallel()
	top := newTenant(t).workspace("top")
	a, b := top.workspace("a"), top.workspace("b")
	deep := b.workspace("deep")
	ours := map[*tenant]*tenant{} // as an owner: limits do not hold for the system
	for _, c := range []*tenant{top, a, b, deep} {
		ours[c] = c.allow("owner")
	}
	for _, c := range []*tenant{top, a, b, deep} {
		c.await(core("configmaps"), "default", "kube-root-ca.crt", there)
	}
	top.settled()
	all := []cluster.Name{top.name, a.name, b.name, deep.name}
	before, bytes := stored(top.server.Server, all...)
	if err := top.operator().annotate(maxTreeObjects, fmt.Sprintf(`"%d"`, before+7)); err != nil {
		t.Fatal(err)
	}
	if n := fills(t, "total object count limit", ours[top].kube, ours[a].kube, ours[b].kube, ours[deep].kube); n != 7 {
		t.Errorf("%d objects, want 7", n)
	}
	top.settled()
	if now, _ := stored(top.server.Server, all...); now != before+7 {
		t.Errorf("%d objects are stored, want %d", now, before+7)
	}
	if err := a.operator().annotate(maxObjects, `"0"`); err != nil { // cannot lift that of the tree
		t.Fatal(err)
	}
	if err := configMapIn(ours[a].kube, "default", "more"); !apierrors.IsForbidden(err) {
		t.Errorf("beyond the limit of the tree: %v", err)
	}
	if err := top.operator().annotate(maxTreeObjects, `null`); err != nil {
		t.Fatal(err)
	}
	if err := top.operator().annotate(maxTreeBytes, fmt.Sprintf(`"%d"`, bytes+100_000)); err != nil {
		t.Fatal(err)
	}
	large := configMap("large", nil)
	large.Data = map[string]string{"x": strings.Repeat("x", 60_000)}
	if _, err := ours[a].kube.CoreV1().ConfigMaps("default").Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ours[deep].kube.CoreV1().ConfigMaps("default").Create(t.Context(), large, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "total object size limit") {
		t.Errorf("beyond the bytes of the tree: %v", err)
	}
	b.deleteWorkspace("deep")
	b.await(workspaces, "", "deep", gone)
	a.settled()
	if err := a.kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "large", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ours[b].kube.CoreV1().ConfigMaps("default").Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
}

// The limit of the server holds in all clusters but root, and an annotation overrides it.
func TestObjectLimitOfTheServer(t *testing.T) {
	o := server.DefaultOperation()
	o.TotalObjectLimit = 40
	s := operate(t, t.TempDir(), o)
	root := must(kubernetes.NewForConfig(s.InProcess("root", server.System())))(t)
	for i := range 50 {
		if err := configMapIn(root, "default", fmt.Sprint("x", i)); err != nil {
			t.Fatal(err)
		}
	}
	c := (&running{Server: s.Server}).tenant(t)
	owner := c.allow("owner")
	fills(t, "total object count limit", owner.kube, owner.kube)
	c.settled()
	if now, _ := stored(s.Server, c.name); now != 40 {
		t.Errorf("%d objects, want 40", now)
	}
	if err := c.operator().annotate(maxObjects, `"42"`); err != nil {
		t.Fatal(err)
	}
	if n := fills(t, "total object count limit", owner.kube); n != 2 {
		t.Errorf("%d more objects, want 2", n)
	}
}

// Several servers share the limits of a tree exactly.
func treeLimitAtSeveralServers(t *testing.T, e *equals) {
	top := e.workspace(e.all[0], "root", "top")
	below := e.workspace(e.all[1], string(top), "below")
	operator := &user.DefaultInfo{Name: "operator", Groups: []string{auth.AdminGroup, user.AllAuthenticated}}
	kube := func(i int, c cluster.Name) kubernetes.Interface { return e.kube(e.all[i], string(c), operator) }
	for _, c := range []cluster.Name{top, below} {
		for _, namespace := range []string{"default", "kube-system"} { // what the server makes is there
			must(kube(0, c).CoreV1().ConfigMaps(namespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{}))(t)
		}
	}
	e.ok(e.all[0].Store().Feed().CatchUp(t.Context()))
	before, _ := stored(e.all[0], top, below)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, maxTreeObjects, before+20)
	_, err := e.dynamic(e.all[0], string(top)).Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	e.ok(err)
	e.ok(e.all[1].Store().Feed().CatchUp(t.Context()))
	if n := fills(t, "total object count limit", kube(0, top), kube(1, top), kube(0, below), kube(1, below)); n != 20 {
		t.Errorf("%d objects, want 20", n)
	}
}
