package controllers

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// Namespaces creates the default service account and the config map with the server's CA
// certificates in every namespace. It creates them again after a deletion, and resets the
// certificates after a change, also of the server's own.
func Namespaces(d Deps) control.Loop {
	incomplete := &incompleteNamespaces{Inbox: trigger.New(func() []control.Key { return trigger.Keys(d.Namespaces.Keys()) }), intact: d.Workspaces.IsIntact}
	d.Store.Feed().Follow(incomplete)
	d.Workspaces.RootCA.Follow(incomplete.PutAll)
	return control.Loop{
		Name: "namespaces",
		On:   d.on(incomplete.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			if n, ok := d.Namespaces.Get(k.Cluster, "", k.Name); !ok || n.Deleted != nil {
				return nil
			}
			return d.Workspaces.FillNamespace(ctx, k.Cluster, k.Name)
		},
	}
}

// parts is a bit set of the initial content of a namespace.
type parts uint8

const (
	itself parts = 1 << iota
	account
	certificates
	whole = itself | account | certificates
)

// incompleteNamespaces finds namespaces that may lack a part. It has no state for other
// namespaces, except during a Reset.
type incompleteNamespaces struct {
	*trigger.Inbox
	intact func(runtime.Object) bool

	// seen has the existing parts of each namespace between Reset and Done, else nil.
	seen map[control.Key]parts
	// last is the namespace with the most recent write, at revision. written has the
	// parts that were written at that revision.
	last     control.Key
	revision int64
	written  parts
}

// Reset implements [feed.Follower].
func (f *incompleteNamespaces) Reset() { f.seen = map[control.Key]parts{} }

// Apply implements [feed.Follower]. It ignores most events by their key, without decoding
// them.
func (f *incompleteNamespaces) Apply(e feed.Event) {
	k, part := partOf(e.Key)
	if part == 0 {
		return
	}
	there := !e.Deleted() && (part != certificates || f.isIntact(e))
	switch {
	case f.seen != nil && there:
		f.seen[k] |= part
	case f.seen != nil:
		f.seen[k] &^= part // deleted between Reset and Done
	case part == itself && !there:
	case !there:
		f.Put(k)
	case part != itself:
		f.record(k, e.Revision, part)
	case f.last != k || f.revision != e.Revision || f.written|itself != whole:
		f.Put(k) // created without its content
	}
}

// Done implements [feed.Follower].
func (f *incompleteNamespaces) Done() {
	for k, has := range f.seen {
		if has&itself != 0 && has != whole {
			f.Put(k)
		}
	}
	f.seen = nil
}

// record notes that a part of a namespace was written at a revision. A transaction that
// creates a namespace with its parts writes the namespace last.
func (f *incompleteNamespaces) record(k control.Key, revision int64, part parts) {
	if f.last != k || f.revision != revision {
		f.last, f.revision, f.written = k, revision, 0
	}
	f.written |= part
}

func (f *incompleteNamespaces) isIntact(e feed.Event) bool {
	o, err := e.Object(context.Background())
	if err != nil && !values.IsCorrupt(err) {
		return true // the feed delivers the change again when it can be decrypted
	}
	if err != nil {
		klog.Background().Error(err, "Stored object will be replaced", "key", e.Key.String())
		return false
	}
	return f.intact(o)
}

// partOf returns the namespace of a key, and which part of it the object is. The part is 0
// for other objects.
func partOf(k keys.Key) (control.Key, parts) {
	switch {
	case k.Resource == namespaces:
		return control.Key{Cluster: k.Cluster, Name: k.Name}, itself
	case !tenancy.IsNamespaceContent(k):
		return control.Key{}, 0
	case k.Resource == serviceAccounts:
		return control.Key{Cluster: k.Cluster, Name: k.Namespace}, account
	default:
		return control.Key{Cluster: k.Cluster, Name: k.Namespace}, certificates
	}
}
