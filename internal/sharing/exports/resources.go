package exports

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/storage/keys"
)

func resource(group, plural string) keys.Resource {
	return keys.CustomResource(schema.GroupResource{Group: group, Resource: plural}, "")
}

// Resource returns the resource of APIExports. It belongs to no export itself.
func Resource() keys.Resource {
	return resource(apisv1alpha2.GroupVersion.Group, "apiexports")
}

// SchemaResource returns the resource of APIResourceSchemas.
func SchemaResource() keys.Resource {
	return resource(apisv1alpha1.GroupVersion.Group, "apiresourceschemas")
}

// SliceResource returns the resource of APIExportEndpointSlices.
func SliceResource() keys.Resource {
	return resource(apisv1alpha1.GroupVersion.Group, "apiexportendpointslices")
}

// ConversionResource returns the resource of APIConversions.
func ConversionResource() keys.Resource {
	return resource(apisv1alpha1.GroupVersion.Group, "apiconversions")
}

// RolloutResource returns the resource of APIExportRollouts.
func RolloutResource() keys.Resource {
	return resource(apisv1alpha1.GroupVersion.Group, "apiexportrollouts")
}
