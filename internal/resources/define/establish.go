package define

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/unforked/kcp/internal/resources/catalog"
)

// definitionKind is the kind of definitions.
const definitionKind = "CustomResourceDefinition"

// taken are the names in use in a group, and who has each: resource names and kinds are separate.
type taken struct {
	resources, kinds map[string]catalog.Holder
}

func newTaken() taken { return taken{map[string]catalog.Holder{}, map[string]catalog.Holder{}} }

// add adds names of a holder, except those that another one has.
func (t taken) add(n apiextensionsv1.CustomResourceDefinitionNames, by catalog.Holder) {
	for _, name := range append([]string{n.Plural, n.Singular}, n.ShortNames...) {
		if _, has := t.resources[name]; !has {
			t.resources[name] = by
		}
	}
	for _, kind := range []string{n.Kind, n.ListKind} {
		if _, has := t.kinds[kind]; !has {
			t.kinds[kind] = by
		}
	}
}

// establish computes the status of a definition from its spec and from the names in use
// in its group. A kube-apiserver has controllers for this, which run later. Here each
// write includes it, so that a definition is served when its creation returns.
func establish(crd *apiextensions.CustomResourceDefinition, t taken) {
	acceptNames(crd, t)
	checkSchemas(crd)
	checkApproval(crd)
	switch old := apiextensions.FindCRDCondition(crd, apiextensions.Established); {
	case old != nil && old.Status == apiextensions.ConditionTrue:
	case !apiextensions.IsCRDConditionTrue(crd, apiextensions.NamesAccepted):
		set(crd, apiextensions.Established, apiextensions.ConditionFalse, "NotAccepted", "not all names are accepted")
	case hasInvalidCABundle(crd):
		set(crd, apiextensions.Established, apiextensions.ConditionFalse, "InvalidCABundle", "The conversion webhook CABundle is invalid")
	default:
		set(crd, apiextensions.Established, apiextensions.ConditionTrue, "InitialNamesAccepted", "the initial names have been accepted")
	}
}

func set(crd *apiextensions.CustomResourceDefinition, t apiextensions.CustomResourceDefinitionConditionType, s apiextensions.ConditionStatus, reason, message string) {
	apiextensions.SetCRDCondition(crd, apiextensions.CustomResourceDefinitionCondition{Type: t, Status: s, Reason: reason, Message: message})
}

// acceptNames accepts the names in the spec that are not in use. For a name in use it
// keeps the name that was accepted before.
func acceptNames(crd *apiextensions.CustomResourceDefinition, t taken) {
	want, have := crd.Spec.Names, &crd.Status.AcceptedNames
	status, reason, message := apiextensions.ConditionTrue, "NoConflicts", "no conflicts found"
	accept := func(in map[string]catalog.Holder, want string, have *string, conflict string) {
		if by, has := in[want]; has && want != *have {
			status, reason, message = apiextensions.ConditionFalse, conflict, inUseBy(want, by).Error()
			return
		}
		*have = want
	}
	accept(t.resources, want.Plural, &have.Plural, "PluralConflict")
	accept(t.resources, want.Singular, &have.Singular, "SingularConflict")
	var conflicts []error
	for _, short := range want.ShortNames {
		if by, has := t.resources[short]; has && !slices.Contains(have.ShortNames, short) {
			conflicts = append(conflicts, inUseBy(short, by))
		}
	}
	if err := utilerrors.NewAggregate(conflicts); err != nil {
		status, reason, message = apiextensions.ConditionFalse, "ShortNamesConflict", err.Error()
	} else {
		have.ShortNames = want.ShortNames
	}
	accept(t.kinds, want.Kind, &have.Kind, "KindConflict")
	accept(t.kinds, want.ListKind, &have.ListKind, "ListKindConflict")
	have.Categories = want.Categories
	set(crd, apiextensions.NamesAccepted, status, reason, message)
}

// conflict returns the names of n that are in use, as an error, and who has them, at most three.
func (t taken) conflict(n apiextensionsv1.CustomResourceDefinitionNames) (by []catalog.Holder, err error) {
	var conflicts []error
	look := func(in map[string]catalog.Holder, name string) {
		holder, has := in[name]
		if name == "" || !has {
			return
		}
		conflicts = append(conflicts, inUse(name))
		if len(by) < 3 && !slices.Contains(by, holder) {
			by = append(by, holder)
		}
	}
	for _, name := range append([]string{n.Plural, n.Singular}, n.ShortNames...) {
		look(t.resources, name)
	}
	look(t.kinds, n.Kind)
	look(t.kinds, n.ListKind)
	return by, utilerrors.NewAggregate(conflicts)
}

func inUse(name string) error { return fmt.Errorf("%q is already in use", name) }

// inUseBy says who has a name that a definition wants. Between definitions the text is that of
// upstream's controllers, which know no other holders. All holders are in the cluster of the definition.
func inUseBy(name string, by catalog.Holder) error {
	switch by.Kind {
	case definitionKind:
		return inUse(name)
	case "":
		return fmt.Errorf("%w by %s; choose another name", inUse(name), by)
	}
	return fmt.Errorf("%w by %s; delete that, or choose another name", inUse(name), by)
}

// checkSchemas sets the condition NonStructuralSchema. New definitions must have
// structural schemas.
func checkSchemas(crd *apiextensions.CustomResourceDefinition) {
	var all field.ErrorList
	if p := crd.Spec.PreserveUnknownFields; p != nil && *p {
		all = append(all, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), *p, "must be false"))
	}
	for i, v := range crd.Spec.Versions {
		of, err := apiextensions.GetSchemaForVersion(crd, v.Name)
		if err != nil || of == nil || of.OpenAPIV3Schema == nil {
			continue
		}
		s, err := structural.NewStructural(of.OpenAPIV3Schema)
		if err != nil {
			set(crd, apiextensions.NonStructuralSchema, apiextensions.ConditionUnknown, "StructuralError",
				fmt.Sprintf("failed to check validation schema for version %s: %v", v.Name, err))
			return
		}
		at := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		all = append(all, structural.ValidateStructural(at, s)...)
	}
	if len(all) == 0 {
		apiextensions.RemoveCRDCondition(crd, apiextensions.NonStructuralSchema)
		return
	}
	set(crd, apiextensions.NonStructuralSchema, apiextensions.ConditionTrue, "Violations", all.ToAggregate().Error())
}

// checkApproval sets the condition KubernetesAPIApprovalPolicyConformant of definitions
// in protected groups, such as *.k8s.io.
func checkApproval(crd *apiextensions.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	status, reason := apiextensions.ConditionFalse, ""
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	switch state {
	case apihelpers.APIApprovalInvalid:
		reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		reason = "MissingAnnotation"
	case apihelpers.APIApproved:
		status, reason = apiextensions.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		reason = "UnapprovedAnnotation"
	default:
		status, reason = apiextensions.ConditionUnknown, "UnknownAnnotation"
	}
	set(crd, apiextensions.KubernetesAPIApprovalPolicyConformant, status, reason, message)
}

func hasInvalidCABundle(crd *apiextensions.CustomResourceDefinition) bool {
	c := crd.Spec.Conversion
	return c != nil && c.WebhookClientConfig != nil && len(webhook.ValidateCABundle(field.NewPath(""), c.WebhookClientConfig.CABundle)) > 0
}
