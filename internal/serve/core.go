package serve

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Custom resources may be in the core group, whose name is empty, and in the other groups
// of Kubernetes whose names have no dot. Upstream's handlers serve these groups, but its
// validation refuses definitions in them. In a few places upstream joins the group with
// a dot or a slash; this file and corehandler.go correct the results for the core group.

const (
	// coreGroup stands for the core group in the names of definitions, as in
	// pods.core. No definition can have a group of this name: groups contain a dot or
	// are in kubernetesGroups.
	coreGroup = "core"
	// coreVersion is the only version of the core group. Clients use it without
	// discovering the versions of the group.
	coreVersion = "v1"
	// standInSuffix is appended to a group without a dot, so that upstream accepts it.
	standInSuffix = ".kcp.io"
)

// kubernetesGroups are the groups of Kubernetes whose names have no dot. Definitions from
// a Kubernetes cluster, such as that of Deployments, are in them. Other groups without a
// dot are refused, as by Kubernetes.
func kubernetesGroups() []string {
	return []string{"", "apps", "autoscaling", "batch", "extensions", "policy"}
}

// DefinitionName returns the name of the definition of a resource.
func DefinitionName(gr schema.GroupResource) string {
	return gr.Resource + "." + cmp.Or(gr.Group, coreGroup)
}

// ResourceOfName returns the resource of the definition called name.
func ResourceOfName(name string) schema.GroupResource {
	resource, group, _ := strings.Cut(name, ".")
	if group == coreGroup {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: resource}
}

// validatable returns the definition to validate with upstream in place of crd. If the
// group of crd is in kubernetesGroups, this is a copy whose group has a dot.
func validatable(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	if !slices.Contains(kubernetesGroups(), crd.Spec.Group) {
		return crd
	}
	group := cmp.Or(crd.Spec.Group, coreGroup)
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
		if v.Name != coreVersion {
			at := field.NewPath("spec", "versions").Index(i).Child("name")
			errs = append(errs, field.Invalid(at, v.Name, fmt.Sprintf("must be %s, the only version of the core group; for others set spec.group", coreVersion)))
		}
	}
	return errs
}
