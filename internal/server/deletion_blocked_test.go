package server_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

func TestFinalizersBlockTheDeletionOfAWorkspace(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.allow("alice")
	alice := at(t, c.server, c.name, as("alice"))
	a := alice.workspace("a")
	b := at(t, c.server, a.name, as("alice")).workspace("b")
	b.content("first", hold)
	b.content("second", hold)
	b.content("third")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held"}, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{hold}}}
	if _, err := b.kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	alice.deleteWorkspace("a")

	// The conditions of the cluster, its Workspace and the parent name the obstacles.
	b.says(logicalClusters, "cluster", "configmaps default/first", hold, "2 more")
	a.says(workspaces, "b", "configmaps default/first", hold)
	isDeleting(t, c.says(workspaces, "a", "workspace b", "configmaps default/first", hold))
	b.await(core("configmaps"), "default", "third", gone)

	// Creates are refused. Updates of objects with finalizers succeed.
	in := at(t, c.server, b.name, as("alice"))
	for _, who := range []*tenant{in, b} {
		_, err := who.kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "being deleted") {
			t.Errorf("created in a cluster that is being deleted: %v", err)
		}
		_, err = who.any.Resource(workspaces).Create(t.Context(), workspace("late"), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "being deleted") {
			t.Errorf("workspace made in a cluster that is being deleted: %v", err)
		}
	}
	_, err := alice.any.Resource(workspaces).Create(t.Context(), workspace("a"), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("made again before it was gone: %v", err)
	}
	alice.deleteWorkspace("a") // a second deletion has no effect
	in.letGo("first")
	c.says(workspaces, "a", "configmaps default/second", "1 more")
	in.letGo("second")
	c.says(workspaces, "a", "namespaces held", hold)
	must(in.kube.CoreV1().Namespaces().Finalize(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held"}}, metav1.UpdateOptions{}))(t)
	c.ended("a", a.name, b.name)
}

func TestABlockedTenantHoldsUpNobody(t *testing.T) {
	t.Parallel()
	stuck, c := newTenant(t), newTenant(t)
	var names []cluster.Name
	for i := range 20 {
		w := stuck.workspace(fmt.Sprintf("w%d", i))
		w.content("m", hold)
		names = append(names, w.name)
		stuck.deleteWorkspace(fmt.Sprintf("w%d", i))
	}
	for i := range 20 {
		stuck.says(workspaces, fmt.Sprintf("w%d", i), hold)
	}
	w := c.workspace("w")
	c.deleteWorkspace("w")
	c.ended("w", w.name)
	for i, name := range names {
		at(t, c.server, name, server.System()).letGo("m")
		stuck.await(workspaces, "", fmt.Sprintf("w%d", i), gone)
	}
	stuck.nothingLeft(names...)
}

func TestFinalizersOfGarbageCollectionDoNotBlock(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	w.content("m", metav1.FinalizerDeleteDependents)
	w.workspace("below")
	foreground := metav1.DeletePropagationForeground
	if err := w.any.Resource(workspaces).Delete(t.Context(), "below", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	c.deleteWorkspace("w")
	c.ended("w", w.name)
}

func TestWhatIsNotServedIsDeletedToo(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	raw := c.server.Store().RawClient()
	put := func(key, value string) string {
		key = fmt.Sprintf("/registry/%s/%s/default/x", key, w.name)
		must(raw.Put(t.Context(), key, value))(t)
		return key
	}
	put("c/example.com/things/some-identity", `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"namespace":"default","name":"x"}}`)
	put("s/core/names/-", "x")
	held := put("c/example.com/things/-", `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"namespace":"default","name":"x","finalizers":["example.com/hold"]}}`)
	c.deleteWorkspace("w")
	c.says(workspaces, "w", "things.example.com default/x", hold, "does not serve it")
	must(raw.Delete(t.Context(), held))(t)
	c.ended("w", w.name)
}

// keyIsAway is the stored value of an object that is encrypted with a key that the server
// does not have.
const keyIsAway = "k8s:enc:aesgcm:v1:away:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

// A workspace with unreadable objects is not deleted, because these may have finalizers. A
// condition names them, and the deletion continues once they are readable. A forced deletion
// removes only corrupt objects.
func TestUnreadableObjectsKeepAWorkspace(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	a := c.workspace("a")
	w := a.workspace("w")
	raw := c.server.Store().RawClient()
	put := func(key, value string) { must(raw.Put(t.Context(), "/registry/"+key, value))(t) }
	corrupt := map[string]string{
		"c/example.com/broken/-": `{"metadata":{"finalizers":`, "n/core/configmaps/-": "k8s\x00no protobuf", "n/core/pods/-": "k8s\x00no protobuf either",
	}
	for in, value := range corrupt {
		put(fmt.Sprintf("%s/%s/default/x", in, w.name), value)
	}
	thing := fmt.Sprintf("c/example.com/things/-/%s/default/x", w.name)
	put(thing, keyIsAway)
	c.deleteWorkspace("a")
	a.says(workspaces, "w", "cannot be read", "only a forced deletion removes it", "3 more")
	c.says(workspaces, "a", "in workspace w", "cannot be read")
	if err := c.force("a", "ticket 42"); err != nil {
		t.Fatal(err)
	}
	// An object whose key is missing is not deleted by force: the key may come back.
	w.says(logicalClusters, "cluster", "things.example.com default/x cannot be read", "--encryption-provider-config")
	a.says(workspaces, "w", "things.example.com default/x cannot be read", "--encryption-provider-config")
	c.says(workspaces, "a", "in workspace w", "things.example.com default/x cannot be read")
	put(thing, `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"namespace":"default","name":"x"}}`)
	c.ended("a", a.name, w.name)
}
