package tree

import (
	"encoding/base64"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A Mount is the mount of a workspace in the tree. Another server serves the workspace.
type Mount struct {
	Reference tenancyapi.ObjectReference
	// URL is that of the other server. CA has the certificates, in PEM, that verify it.
	URL string
	CA  []byte
	// Ready is true while requests can be forwarded.
	Ready bool
}

// mountOf returns the mount of a Workspace, nil if it has none.
func mountOf(w *childForm) *Mount {
	if w.Spec.Mount == nil {
		return nil
	}
	m := &Mount{Reference: w.Spec.Mount.Reference, URL: w.Spec.URL, Ready: w.Status.Phase == core.PhaseReady}
	m.CA, _ = base64.StdEncoding.DecodeString(w.Metadata.Annotations[tenancyapi.MountCAAnnotation]) // the server wrote it
	return m
}

// MountAt returns the mount of the workspace at a path, and the cluster and name of its
// Workspace. m is nil if no mounted workspace is there.
func (t *Tree) MountAt(p cluster.Path) (parent cluster.Name, name string, m *Mount) {
	n, words := p.Split()
	for i, w := range words {
		child, ok := t.Child(n, w)
		switch {
		case !ok:
			return "", "", nil
		case child.Mount != nil && i == len(words)-1:
			return n, w, child.Mount
		case child.Cluster == "":
			return "", "", nil
		}
		n = child.Cluster
	}
	return "", "", nil
}

// Mounted returns the keys of all mounted Workspaces.
func (t *Tree) Mounted() []keys.Key {
	var all []keys.Key
	for _, k := range t.children.Keys() {
		if child, _ := t.Child(k.Cluster, k.Name); child.Mount != nil {
			all = append(all, k)
		}
	}
	return all
}
