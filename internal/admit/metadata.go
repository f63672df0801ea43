package admit

import (
	"context"
	"maps"

	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/upstream/merging"
)

// computed are annotations with the location of an object. Clients send copies of them, as
// "kubectl get -o yaml | kubectl apply" and GitOps tools do. Copies are dropped, and
// missing ones restored, as clients cannot decide on them.
var computed = []string{
	"kcp.io/path", "core.kcp.io/shard", "kcp.io/undecodable",
	"internal.tenancy.kcp.io/type", "internal.tenancy.kcp.io/cluster", "internal.tenancy.kcp.io/shard", "internal.tenancy.kcp.io/mount-ca",
	"internal.tenancy.kcp.io/checked-exports",
}

// Cluster sets the cluster annotation on every written object, so that omitting it changes
// nothing and dry runs show it. It also keeps the other computed annotations.
func Cluster() Rule {
	return Rule{Name: "kcp.io/Cluster", Mutate: func(_ context.Context, r Request) error {
		o := r.Object()
		if o == nil || r.GetOperation() != admission.Create && r.GetOperation() != admission.Update {
			return nil
		}
		if notStored(r) {
			return nil
		}
		var old map[string]string
		if before := r.Old(); before != nil {
			old = before.GetAnnotations()
		}
		next := maps.Clone(o.GetAnnotations())
		if next == nil {
			next = map[string]string{}
		}
		next[cluster.Annotation] = string(r.Cluster)
		merging.DropParts(next) // of a merge that is done
		if !r.Privileged() {
			for _, key := range computed {
				if v, ok := old[key]; ok {
					next[key] = v
				} else {
					delete(next, key)
				}
			}
		}
		if !maps.Equal(next, o.GetAnnotations()) {
			o.SetAnnotations(next)
		}
		if r.IsDryRun() {
			merging.End(o)
		}
		return nil
	}}
}

// notStored reports whether the request only asks a question.
func notStored(r Request) bool {
	switch r.GetResource().Group {
	case "authentication.k8s.io", "authorization.k8s.io":
		return true
	default:
		return r.GetSubresource() == "token"
	}
}
