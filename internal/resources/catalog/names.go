package catalog

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// CoreGroup stands for the core group, whose name is empty, in the names of definitions, as in
	// pods.core. No definition can have a group of this name, see [IsKubernetesGroup].
	CoreGroup = "core"
	// CoreVersion is the only version of the core group. Clients use it without discovering the
	// versions of the group.
	CoreVersion = "v1"
)

// IsKubernetesGroup reports whether a group is one of Kubernetes whose name has no dot. Definitions
// from a Kubernetes cluster, such as that of Deployments, are in these groups. Other groups without a
// dot are refused, as by Kubernetes.
func IsKubernetesGroup(group string) bool {
	return slices.Contains([]string{"", "apps", "autoscaling", "batch", "extensions", "policy"}, group)
}

// DefinitionName returns the name of the definition of a resource.
func DefinitionName(gr schema.GroupResource) string {
	return gr.Resource + "." + cmp.Or(gr.Group, CoreGroup)
}

// ResourceOfName returns the resource of the definition called name.
func ResourceOfName(name string) schema.GroupResource {
	resource, group, _ := strings.Cut(name, ".")
	if group == CoreGroup {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: resource}
}
