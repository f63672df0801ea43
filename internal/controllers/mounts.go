package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// Mounts updates mounted Workspaces from the objects that they are mounted from.
func Mounts(d Deps) control.Loop {
	l := &mounts{Deps: d, objects: map[keys.Key]map[control.Key]struct{}{}, from: map[control.Key]keys.Key{}}
	l.Inbox = trigger.New(func() []control.Key { return trigger.Keys(d.Workspaces.Tree.Mounted()) })
	d.Store.Feed().Follow(l)
	return control.Loop{Name: "workspace-mounts", On: d.on(l.Subscribe), Do: l.do}
}

// mounts finds the mounted Workspaces that a change affects. It is a follower of the change
// feed, after the tree and the definitions. It has no state for other workspaces.
type mounts struct {
	*trigger.Inbox
	Deps

	mu      sync.RWMutex
	objects map[keys.Key]map[control.Key]struct{} // the Workspaces that are mounted from each object
	from    map[control.Key]keys.Key              // by Workspace; the zero key if the kind does not exist
}

// Apply implements [feed.Follower].
func (l *mounts) Apply(e feed.Event) {
	if e.Key.Resource == l.Workspaces.Resource {
		child, _ := l.Workspaces.Tree.Child(e.Key.Cluster, e.Key.Name)
		l.mu.RLock()
		_, known := l.from[trigger.Key(e.Key)]
		l.mu.RUnlock()
		if child.Mount != nil || known {
			l.Put(trigger.Key(e.Key))
		}
		return
	}
	for _, k := range l.concerned(e.Key) {
		l.Put(k)
	}
}

// concerned returns the Workspaces that an object or a definition affects.
func (l *mounts) concerned(k keys.Key) []control.Key {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case len(l.from) == 0:
		return nil
	case k.Resource != define.Resource():
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

// follow makes changes of an object wake a Workspace, and those of no other object.
func (l *mounts) follow(ws control.Key, object keys.Key) {
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
		return fmt.Errorf("read the object that the workspace is mounted from: %w", err)
	}
	return l.Workspaces.UpdateMount(ctx, k.Cluster, k.Name, source)
}

// mountForm is the part that is read of an object with a mount.
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

// read reads the object that a Workspace is mounted from. Changes after the read wake the
// Workspace.
func (l *mounts) read(ctx context.Context, ws control.Key, ref tenancyapi.ObjectReference) (source tenancy.MountSource, err error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		l.follow(ws, keys.Key{})
		return source, nil //nolint:nilerr // there is no such kind
	}
	l.follow(ws, keys.Key{}) // a later definition of the kind wakes the Workspace
	kind, ok := l.Kinds.Find(ws.Cluster, gv.WithKind(ref.Kind))
	if !ok || kind.Stored.Root != keys.Custom || kind.Namespaced != (ref.Namespace != "") {
		return source, nil
	}
	key := keys.Key{Resource: kind.Stored, Cluster: ws.Cluster, Namespace: ref.Namespace, Name: ref.Name}
	l.follow(ws, key)
	if source.Kind, err = l.defined(ctx, ws, kind); err != nil || !source.Kind {
		return source, err
	}
	var o mountForm
	rev, err := l.Store.ReadInto(ctx, key, &o)
	if rev == 0 {
		return source, err
	}
	if err != nil && !values.IsCorrupt(err) {
		return source, err
	}
	source.Exists = true // a corrupt object has no phase
	if err == nil && o.Metadata.DeletionTimestamp == nil {
		source.Phase, source.URL, source.CA = o.Status.Phase, o.Status.URL, o.Status.CABundle
	}
	return source, nil
}

// defined reports whether a CustomResourceDefinition in the logical cluster of a Workspace
// defines a kind. Workspaces cannot be mounted from kinds that the server adds to every
// cluster, such as LogicalCluster, which also has a URL and a phase.
func (l *mounts) defined(ctx context.Context, ws control.Key, kind catalog.Kind) (bool, error) {
	key := keys.Key{Resource: define.Resource(), Cluster: ws.Cluster, Name: catalog.DefinitionName(kind.GroupVersionResource().GroupResource())}
	stored, _, err := l.Store.Read(ctx, key)
	return stored != nil, err
}
