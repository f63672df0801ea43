package admit

import (
	"bytes"
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/tenancy"
)

// Identity protects the secrets in the root workspace whose hashes are part of the keys of
// Workspaces and of the objects of other built-in exports. Without the secret of Workspaces the
// next start could not find any workspace. So not even system:masters can delete or change them.
func Identity() Rule {
	secrets := corev1.Resource("secrets")
	return Rule{Name: "kcp.io/Identity", Validate: func(_ context.Context, r Request) error {
		old := r.Old() // the name of a request for a whole collection is empty
		if r.Cluster != cluster.Root || old == nil {
			return nil
		}
		ends := r.GetOperation() == admission.Delete
		switch {
		case ends && r.Is(namespaces) && old.GetName() == tenancy.ExportsNamespace:
			return r.Forbid(errors.New("this namespace may not be deleted: objects of all workspaces are stored under the hashes of secrets in it"))
		case !r.Is(secrets) || old.GetNamespace() != tenancy.ExportsNamespace || !tenancy.IsBuiltIn(r.Cluster, old.GetName()):
			return nil
		case ends:
			return r.Forbid(errors.New("this secret may not be deleted: objects of all workspaces are stored under its hash"))
		}
		before, ok := r.GetOldObject().(*core.Secret)
		now, ok2 := r.GetObject().(*core.Secret)
		if ok && ok2 && !bytes.Equal(before.Data[tenancy.IdentityKey], now.Data[tenancy.IdentityKey]) {
			return r.Forbid(errors.New("the key of this secret may not be changed: objects of all workspaces are stored under its hash"))
		}
		return nil
	}}
}
