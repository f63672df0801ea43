package admit

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/tenancy"
)

// maxRollouts limits the APIExportRollouts of a cluster. Each change of a schema or of a rollout looks at
// all of them.
const maxRollouts = 500

// rollout validates what the schema of APIExportRollouts cannot express, then the rights of
// their author.
func (s Sharing) rollout(ctx context.Context, r Request) error {
	n, err := wrote[apisv1alpha1.APIExportRollout](r, "apiexportrollouts")
	if err != nil || n == nil {
		return err
	}
	if objects, _ := s.RolloutUsage(r.Cluster); r.GetOperation() == admission.Create && objects >= maxRollouts {
		return r.Forbid(fmt.Errorf("a workspace has at most %d APIExportRollouts; delete some that are completed", maxRollouts))
	}
	if err := r.invalid(rolloutMistakes(n.Spec)...); err != nil {
		return err
	}
	if tenancy.IsBuiltIn(r.Cluster, n.Spec.Export) {
		return r.Forbid(fmt.Errorf("spec.export is %s: the schemas of a built-in export are those of the server", n.Spec.Export))
	}
	if r.Privileged() { // a rollout changes the export
		return nil
	}
	switch ok, err := s.MayDo(ctx, r.GetUserInfo(), r.Cluster, "update", sharingResource("apiexports")); {
	case err != nil:
		return apierrors.NewInternalError(err)
	case !ok:
		return r.Forbid(errors.New("it changes an APIExport: this needs the verb update on apiexports in this workspace"))
	}
	return nil
}

// rolloutMistakes returns what is wrong with a rollout, whoever writes it.
func rolloutMistakes(spec apisv1alpha1.APIExportRolloutSpec) (all field.ErrorList) {
	resources, schemas := map[schema.GroupResource]bool{}, field.NewPath("spec", "schemas")
	for i, text := range spec.Schemas {
		name, err := apisv1alpha1.ParseSchemaName(text)
		switch {
		case err != nil:
			all = append(all, field.Invalid(schemas.Index(i), text, err.Error()))
		case resources[name.GroupResource]:
			all = append(all, field.Invalid(schemas.Index(i), text, fmt.Sprintf("is the second of %s; name one schema for each resource", name.GroupResource)))
		default:
			resources[name.GroupResource] = true
		}
	}
	names := map[string]bool{}
	var percent int32
	for i, ring := range spec.Rings {
		at := field.NewPath("spec", "rings").Index(i)
		if names[ring.Name] || ring.Name == apisv1alpha1.RemainingRing {
			all = append(all, field.Invalid(at.Child("name"), ring.Name, fmt.Sprintf("is the name which another ring has; the last one, of all remaining consumers, is called %q", apisv1alpha1.RemainingRing)))
		}
		if ring.Pause != nil && ring.Pause.Duration < 0 {
			all = append(all, field.Invalid(at.Child("pause"), ring.Pause.Duration.String(), "must not be negative"))
		}
		if ring.Percent != 0 && ring.Percent < percent {
			all = append(all, field.Invalid(at.Child("percent"), ring.Percent, "is less than that of the ring before: it includes the rings before"))
		}
		if ring.Selector != nil {
			if selector, err := metav1.LabelSelectorAsSelector(ring.Selector); err != nil {
				all = append(all, field.Invalid(at.Child("selector"), metav1.FormatLabelSelector(ring.Selector), err.Error()))
			} else if selector.Empty() {
				all = append(all, field.Invalid(at.Child("selector"), "", "is empty and would select all consumers; use percent: 100"))
			}
		}
		names[ring.Name], percent = true, max(percent, ring.Percent)
	}
	return all
}
