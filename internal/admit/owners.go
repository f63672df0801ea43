package admit

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/cluster"
)

// Limits of owner references. The garbage collector keeps each in memory, for several times the bytes
// that it takes in an object.
const (
	maxOwners     = 1000    // of one object
	maxReferences = 500_000 // of one tenant
)

// Owners limits the owner references of objects. add adds the references of an object that is about
// to be written in a cluster, and returns false if its tenant would have more than most.
func Owners(add func(c cluster.Name, n, most int) bool) Rule {
	return Rule{Name: "kcp.io/OwnerReferences", Validate: func(_ context.Context, r Request) error {
		o := r.Object()
		if o == nil || r.GetOperation() != admission.Create && r.GetOperation() != admission.Update {
			return nil
		}
		n, had := len(o.GetOwnerReferences()), 0
		if old := r.Old(); old != nil {
			had = len(old.GetOwnerReferences())
		}
		switch {
		case n <= had:
			return nil
		case n > maxOwners:
			return r.Forbid(fmt.Errorf("metadata.ownerReferences: an object has at most %d owners, and this one %d", maxOwners, n))
		case !add(r.Cluster, n-had, maxReferences):
			return r.Forbid(fmt.Errorf("metadata.ownerReferences: the objects of a tenant have at most %d owners together; delete some, or remove their owners", maxReferences))
		}
		return nil
	}}
}
