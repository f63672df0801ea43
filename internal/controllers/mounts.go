package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// Mounts has Workspaces that something else serves say where, and whether it does: in step
// with the objects that they are mounted from.
func Mounts(d Deps) control.Loop {
	l := &mounts{Deps: d, objects: map[store.Key]map[control.Key]struct{}{}, from: map[control.Key]store.Key{}}
	l.inbox = newInbox(func() []control.Key { return keys(d.Workspaces.Tree.Mounted()) })
	d.Store.Spine().Follow(l)
	return control.Loop{Name: "workspace-mounts", On: []control.Source{l.source(d.Store.Spine().Ready())}, Do: l.do}
}

// mounts finds the Workspaces that a change concerns. It is a follower of the spine, after
// the tree and the definitions, and knows nothing of workspaces that are not mounted.
type mounts struct {
	*inbox
	Deps

	mu      sync.RWMutex
	objects map[store.Key]map[control.Key]struct{} // what is mounted from them
	from    map[control.Key]store.Key              // by Workspace; the zero key while there is no such kind
}

// Reset implements [store.Follower].
func (*mounts) Reset() {}

// Apply implements [store.Follower].
func (l *mounts) Apply(e store.Event) {
	if e.Key.Resource == l.Workspaces.Resource {
		child, _ := l.Workspaces.Tree.Child(e.Key.Cluster, e.Key.Name)
		l.mu.RLock()
		_, known := l.from[keyOf(e.Key)]
		l.mu.RUnlock()
		if child.Mount != nil || known {
			l.put(keyOf(e.Key))
		}
		return
	}
	for _, k := range l.concerned(e.Key) {
		l.put(k)
	}
}

// concerned returns the Workspaces that an object or a definition matters to.
func (l *mounts) concerned(k store.Key) []control.Key {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case len(l.from) == 0:
		return nil
	case k.Resource != serve.CustomResourceDefinitions():
		return slices.Collect(maps.Keys(l.objects[k]))
	}
	var all []control.Key
	for ws := range l.from {
		if ws.Cluster == k.Cluster {
			all = append(all, ws)
		}
	}
	return all
}

// Done implements [store.Follower].
func (l *mounts) Done() {
	for _, k := range l.all() {
		l.put(k)
	}
}

// follow has a Workspace woken by the object at a key, and by no other.
func (l *mounts) follow(ws control.Key, object store.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(ws)
	l.from[ws] = object
	if l.objects[object] == nil {
		l.objects[object] = map[control.Key]struct{}{}
	}
	l.objects[object][ws] = struct{}{}
}

func (l *mounts) drop(ws control.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(ws)
}

func (l *mounts) dropLocked(ws control.Key) {
	object := l.from[ws]
	delete(l.from, ws)
	if delete(l.objects[object], ws); len(l.objects[object]) == 0 {
		delete(l.objects, object)
	}
}

func (l *mounts) do(ctx context.Context, k control.Key) error {
	child, _ := l.Workspaces.Tree.Child(k.Cluster, k.Name)
	if child.Mount == nil || child.Ending {
		l.drop(k)
		return nil
	}
	source, err := l.read(ctx, k, child.Mount.Reference)
	if err != nil {
		return fmt.Errorf("read what the workspace is mounted from: %w", err)
	}
	return l.Workspaces.Remount(ctx, k.Cluster, k.Name, source)
}

// mountForm is what is read of an object that workspaces are mounted from.
type mountForm struct {
	Metadata struct {
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		URL      string `json:"URL"`
		Phase    string `json:"phase"`
		CABundle []byte `json:"caBundle"`
	} `json:"status"`
}

// read reads the object that a Workspace is mounted from. From before on, its changes wake
// the Workspace.
func (l *mounts) read(ctx context.Context, ws control.Key, ref tenancyapi.ObjectReference) (source tenancy.MountSource, err error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		l.follow(ws, store.Key{})
		return source, nil //nolint:nilerr // there is no such kind
	}
	l.follow(ws, store.Key{}) // a definition that is made after the look wakes it
	kind, ok := l.Kinds.Find(ws.Cluster, gv.WithKind(ref.Kind))
	if !ok || kind.Stored.Root != store.Custom || kind.Namespaced != (ref.Namespace != "") {
		return source, nil
	}
	source.Kind = true
	key := store.Key{Resource: kind.Stored, Cluster: ws.Cluster, Namespace: ref.Namespace, Name: ref.Name}
	l.follow(ws, key)
	if source.Mountable, err = l.mountable(ctx, ws, kind); err != nil || !source.Mountable {
		return source, err
	}
	var o mountForm
	rev, err := l.Store.ReadInto(ctx, key, &o)
	if rev == 0 {
		return source, err
	}
	source.Exists = true // what cannot be read says nothing of itself
	if err == nil && o.Metadata.DeletionTimestamp == nil {
		source.Phase, source.URL, source.CA = o.Status.Phase, o.Status.URL, o.Status.CABundle
	}
	return source, nil
}

// mountable reports whether the definition of a kind says that workspaces may be mounted
// from its objects.
func (l *mounts) mountable(ctx context.Context, ws control.Key, kind serve.Kind) (bool, error) {
	key := store.Key{Resource: serve.CustomResourceDefinitions(), Cluster: ws.Cluster, Name: serve.DefinitionName(kind.GroupVersionResource().GroupResource())}
	stored, _, err := l.Store.Read(ctx, key)
	if err != nil || stored == nil {
		return false, err
	}
	crd, err := meta.Accessor(stored)
	return err == nil && crd.GetAnnotations()[tenancyapi.IsMountAnnotation] == "true", err
}
