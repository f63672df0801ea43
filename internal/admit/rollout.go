package admit

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/tenancy"
)

// maxRollouts limits the APIExportRollouts of a cluster. Each change of a schema or of a rollout looks at
// all of them.
const maxRollouts = 500

// rollout validates what the schema of APIExportRollouts cannot express, and the rights of
// their author.
func (s Sharing) rollout(ctx context.Context, r Request) error {
	n, err := wrote[apisv1alpha1.APIExportRollout](r, "apiexportrollouts")
	if err != nil || n == nil {
		return err
	}
	if objects, _ := s.RolloutUsage(r.Cluster); r.GetOperation() == admission.Create && objects >= maxRollouts {
		return r.Forbid(fmt.Errorf("a workspace has at most %d APIExportRollouts; delete some that are completed", maxRollouts))
	}
	if tenancy.IsBuiltIn(r.Cluster, n.Spec.Export) {
		return r.Forbid(fmt.Errorf("spec.export is %s: the schemas of a built-in export are those of the server", n.Spec.Export))
	}
	if !r.Privileged() { // it changes the export
		switch ok, err := s.MayDo(ctx, r.GetUserInfo(), r.Cluster, "update", sharingResource("apiexports")); {
		case err != nil:
			return apierrors.NewInternalError(err)
		case !ok:
			return r.Forbid(errors.New("it changes an APIExport: this needs the verb update on apiexports in this workspace"))
		}
	}
	resources := map[schema.GroupResource]bool{}
	for i, text := range n.Spec.Schemas {
		name, err := apisv1alpha1.ParseSchemaName(text)
		if err != nil {
			return r.Forbid(fmt.Errorf("spec.schemas[%d]: %w", i, err))
		}
		if resources[name.GroupResource] {
			return r.Forbid(fmt.Errorf("spec.schemas[%d] is the second of %s; name one schema for each resource", i, name.GroupResource))
		}
		resources[name.GroupResource] = true
	}
	names := map[string]bool{}
	var percent int32
	for i, ring := range n.Spec.Rings {
		switch {
		case names[ring.Name] || ring.Name == apisv1alpha1.RemainingRing:
			return r.Forbid(fmt.Errorf("spec.rings[%d].name is %q, which another ring has; the last one, of all remaining consumers, is called %q", i, ring.Name, apisv1alpha1.RemainingRing))
		case ring.Pause != nil && ring.Pause.Duration < 0:
			return r.Forbid(fmt.Errorf("spec.rings[%d].pause must not be negative", i))
		case ring.Percent != 0 && ring.Percent < percent:
			return r.Forbid(fmt.Errorf("spec.rings[%d].percent is %d, less than that of the ring before: it includes the rings before", i, ring.Percent))
		}
		if ring.Selector != nil {
			if selector, err := metav1.LabelSelectorAsSelector(ring.Selector); err != nil {
				return r.Forbid(fmt.Errorf("spec.rings[%d].selector: %w", i, err))
			} else if selector.Empty() {
				return r.Forbid(fmt.Errorf("spec.rings[%d].selector is empty and would select all consumers; use percent: 100", i))
			}
		}
		names[ring.Name], percent = true, max(percent, ring.Percent)
	}
	return nil
}
