package define

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/unforked/kcp/internal/resources/catalog"
)

// Custom resources may be in the core group, whose name is empty, and in the other groups
// of Kubernetes whose names have no dot. Upstream's handlers serve these groups, but its
// validation refuses definitions in them. In a few places upstream joins the group with
// a dot or a slash; this file and the handlers of the core group correct the results.

// standInSuffix is appended to a group without a dot, so that upstream accepts it.
const standInSuffix = ".kcp.io"

// validatable returns the definition to validate with upstream in place of crd. If the
// group of crd is one of Kubernetes, this is a copy whose group has a dot.
func validatable(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	if !catalog.IsKubernetesGroup(crd.Spec.Group) {
		return crd
	}
	group := cmp.Or(crd.Spec.Group, catalog.CoreGroup)
	standIn := *crd
	standIn.Spec.Group = group + standInSuffix
	if resource, ok := strings.CutSuffix(crd.Name, "."+group); ok {
		standIn.Name = resource + "." + standIn.Spec.Group
	}
	return &standIn
}

// standInErrors translates errs, the errors of standIn, to errors of crd. For the core
// group it also checks the version.
func standInErrors(crd, standIn *apiextensions.CustomResourceDefinition, errs field.ErrorList) field.ErrorList {
	if crd == standIn {
		return errs
	}
	for _, e := range errs {
		if e.Field != "metadata.name" {
			continue
		}
		if e.BadValue == standIn.Name {
			e.BadValue = crd.Name
		}
		if crd.Spec.Group == "" && strings.Contains(e.Detail, "spec.group") {
			e.Detail = `must be spec.names.plural+".core", as spec.group is empty; if it shall be another group, set spec.group`
		}
	}
	if crd.Spec.Group != "" {
		return errs
	}
	for i, v := range crd.Spec.Versions {
		if v.Name != catalog.CoreVersion {
			at := field.NewPath("spec", "versions").Index(i).Child("name")
			errs = append(errs, field.Invalid(at, v.Name, fmt.Sprintf("must be %s, the only version of the core group; for others set spec.group", catalog.CoreVersion)))
		}
	}
	return errs
}
