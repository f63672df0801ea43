package admit

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp/internal/quota/limits"
	"github.com/unforked/kcp/internal/storage/keys"
)

const (
	// maxQuotas and maxQuotaLimits bound the ResourceQuotas of a namespace and the limits of
	// each, because every creation in the namespace reads them.
	maxQuotas      = 32
	maxQuotaLimits = 256
)

// Quotas bounds the number of ResourceQuotas, and applies them to dry runs. To other creations
// the store applies them, when it writes the object: no plugin can count exactly, because it does
// not learn whether the request succeeds.
func Quotas(of func() *limits.Quotas) Rule {
	return Rule{Name: "KCPKubeResourceQuota", Validate: func(ctx context.Context, r Request) error {
		if r.GetSubresource() != "" || r.GetOperation() != admission.Create && r.GetOperation() != admission.Update {
			return nil
		}
		if q, ok := r.GetObject().(*core.ResourceQuota); ok {
			if n := len(q.Spec.Hard); n > maxQuotaLimits {
				return r.Forbid(fmt.Errorf("it has %d limits, and %d are allowed; use several quotas", n, maxQuotaLimits))
			}
			if idle := limits.Idle(q); len(idle) > 0 {
				warning.AddWarning(ctx, "", strings.Join(idle, ", ")+": no effect in a workspace; quotas limit numbers of objects, as in count/deployments.apps")
			}
			if err := of().Current(ctx, r.Cluster); err != nil {
				return err
			}
			if r.GetOperation() == admission.Create && len(of().Table().List(r.Cluster, r.GetNamespace())) >= maxQuotas {
				return r.Forbid(fmt.Errorf("a namespace can have %d ResourceQuotas; put several limits into one", maxQuotas))
			}
		}
		if r.GetOperation() != admission.Create || !r.IsDryRun() {
			return nil
		}
		gr := r.GetResource().GroupResource()
		return of().Check(ctx, keys.NativeResource(gr).Key(r.Cluster, r.GetNamespace(), r.GetName()))
	}}
}
