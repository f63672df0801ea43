package admit

import (
	"context"
	"maps"

	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/cluster"
)

// Where clients carry annotations of the system along, as "kubectl get -o yaml |
// kubectl apply" and GitOps tools do, a copy is dropped and a lack made good:
// these say where an object is, which is not for a client to decide.
var computed = []string{
	"kcp.io/path", "core.kcp.io/shard", "kcp.io/undecodable",
	"internal.tenancy.kcp.io/type", "internal.tenancy.kcp.io/cluster", "internal.tenancy.kcp.io/shard", "internal.tenancy.kcp.io/mount-ca",
}

// Cluster puts the annotation with the name of the cluster on every object
// written, so that leaving it out changes nothing and dry runs show it, and keeps
// the other annotations that the system computes as they are.
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
