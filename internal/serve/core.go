package serve

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Custom resources may be in the core group, the one without a name. Upstream serves
// them there but for the few places in which it puts a group in front of a dot or a
// slash, which are hidden here and in corehandler.go.

const (
	// coreGroup stands for the core group in the names of definitions, as in
	// pods.core. No group is called so: that of a definition has a dot.
	coreGroup = "core"
	// coreVersion is the only version of the core group. Clients look for its
	// resources there, without asking for the versions of the group.
	coreVersion = "v1"
	// coreStandIn is the group that definitions in the core group are validated in.
	coreStandIn = "core.kcp.io"
)

// DefinitionName returns the name of the definition of a resource.
func DefinitionName(gr schema.GroupResource) string {
	return gr.Resource + "." + cmp.Or(gr.Group, coreGroup)
}

// ResourceOfName returns the resource that the definition of a name is for.
func ResourceOfName(name string) schema.GroupResource {
	resource, group, _ := strings.Cut(name, ".")
	if group == coreGroup {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: resource}
}

// validatable returns what stands in for a definition in the core group where upstream
// validates it, which knows none without a group.
func validatable(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	standIn := *crd
	standIn.Spec.Group = coreStandIn
	if resource, ok := strings.CutSuffix(crd.Name, "."+coreGroup); ok {
		standIn.Name = resource + "." + coreStandIn
	}
	return &standIn
}

// coreErrors returns what is wrong with a definition in the core group, given what is
// with its stand-in.
func coreErrors(crd, standIn *apiextensions.CustomResourceDefinition, errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		if e.Field != "metadata.name" {
			continue
		}
		if e.BadValue == standIn.Name {
			e.BadValue = crd.Name
		}
		if strings.Contains(e.Detail, "spec.group") {
			e.Detail = `must be spec.names.plural+".core", as spec.group is empty; if it shall be another group, set spec.group`
		}
	}
	for i, v := range crd.Spec.Versions {
		if v.Name != coreVersion {
			at := field.NewPath("spec", "versions").Index(i).Child("name")
			errs = append(errs, field.Invalid(at, v.Name, fmt.Sprintf("must be %s, the only version of the core group; for others set spec.group", coreVersion)))
		}
	}
	return errs
}
