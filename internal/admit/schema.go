package admit

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// coreGroup stands for the core group in names of APIResourceSchemas.
const coreGroup = "core"

// coreGroupHint is what to do about coreGroup in a field for a group.
const coreGroupHint = `set it to "", the name of the core group; "core" stands for it in the names of APIResourceSchemas only`

// ofSchema returns the mistakes in the definition of an APIResourceSchema as mistakes in the schema. The libraries
// validate definitions in a form that has one schema outside the versions, and a status.
func ofSchema(errs field.ErrorList) field.ErrorList {
	var out field.ErrorList
	for _, e := range errs {
		if strings.HasPrefix(e.Field, "status.") {
			continue // it follows from another mistake
		}
		of := *e
		for _, moved := range [][2]string{
			{"spec.validation", "spec.versions[0].schema"}, {"spec.subresources", "spec.versions[0].subresources"},
			{"spec.additionalPrinterColumns", "spec.versions[0].additionalPrinterColumns"}, {"spec.selectableFields", "spec.versions[0].selectableFields"},
		} {
			if rest, ok := strings.CutPrefix(of.Field, moved[0]); ok {
				of.Field = moved[1] + rest
			}
		}
		of.Field = strings.Replace(of.Field, ".schema.openAPIV3Schema", ".schema", 1)
		out = append(out, &of)
	}
	if len(out) == 0 {
		return errs
	}
	return out
}
