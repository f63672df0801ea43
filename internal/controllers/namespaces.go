package controllers

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// Namespaces gives every namespace a default service account and the certificates
// that verify the server, makes them again when they are deleted, and sets the
// certificates back when they are changed.
func Namespaces(d Deps) control.Loop {
	incomplete := &incompleteNamespaces{inbox: newInbox(func() []control.Key { return keys(d.Namespaces.Keys()) }), intact: d.Workspaces.IsIntact}
	d.Store.Spine().Follow(incomplete)
	return control.Loop{
		Name: "namespaces",
		On:   []control.Source{incomplete.source(d.Store.Spine().Ready())},
		Do: func(ctx context.Context, k control.Key) error {
			if ended, ok := d.Namespaces.Get(k.Cluster, "", k.Name); !ok || ended != nil {
				return nil
			}
			return d.Workspaces.FillNamespace(ctx, k.Cluster, k.Name)
		},
	}
}

// parts of a namespace, as bits.
type parts uint8

const (
	itself parts = 1 << iota
	account
	certificates
	whole = itself | account | certificates
)

// incompleteNamespaces finds the namespaces that may lack what every one has. It
// keeps nothing of those that do not, except while everything is read.
type incompleteNamespaces struct {
	*inbox
	intact func(runtime.Object) bool

	// seen is what there is of each namespace, while everything is read, else nil.
	seen map[control.Key]parts
	// last is the namespace that was written in most recently, at revision, and
	// what of it was written there.
	last     control.Key
	revision int64
	written  parts
}

// Reset implements [store.Follower].
func (f *incompleteNamespaces) Reset() { f.seen = map[control.Key]parts{} }

// Apply implements [store.Follower]. Most events are told from their key alone not
// to concern it, and not decoded.
func (f *incompleteNamespaces) Apply(e store.Event) {
	k, part := partOf(e.Key)
	if part == 0 {
		return
	}
	there := !e.Deleted() && (part != certificates || f.isIntact(e))
	switch {
	case f.seen != nil && there:
		f.seen[k] |= part
	case f.seen != nil:
	case part == itself && !there:
	case !there:
		f.put(k)
	case part != itself:
		f.record(k, e.Revision, part)
	case f.last != k || f.revision != e.Revision || f.written|itself != whole:
		f.put(k) // it did not come with its content
	}
}

// Done implements [store.Follower].
func (f *incompleteNamespaces) Done() {
	for k, has := range f.seen {
		if has&itself != 0 && has != whole {
			f.put(k)
		}
	}
	f.seen = nil
}

// record notes that a part of a namespace was written at a revision. A namespace
// that is born with its parts is the last that is written there.
func (f *incompleteNamespaces) record(k control.Key, revision int64, part parts) {
	if f.last != k || f.revision != revision {
		f.last, f.revision, f.written = k, revision, 0
	}
	f.written |= part
}

func (f *incompleteNamespaces) isIntact(e store.Event) bool {
	o, err := e.Object(context.Background())
	if err != nil {
		klog.Background().Error(err, "Stored object will be replaced", "key", e.Key.String())
		return false
	}
	return f.intact(o)
}

// partOf returns the namespace that a key is of, and what part of it. The part is 0
// for what not every namespace has.
func partOf(k store.Key) (control.Key, parts) {
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
