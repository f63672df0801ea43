package v1alpha1

import (
	"github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// PreserveAnnotationPrefix begins the keys of annotations that hold, on converted objects,
// the fields that an APIConversion preserves. The version that has the fields follows.
const PreserveAnnotationPrefix = "preserve.conversion.apis.kcp.io/"

// Conditions of APIExportEndpointSlices.
const (
	// APIExportValid is True when the APIExport exists.
	APIExportValid = v1alpha2.APIExportValid

	// PartitionValid is True when the Partition exists, or if the slice names none.
	PartitionValid conditions.Type = "PartitionValid"

	// EndpointURLsReady is True when the status has the addresses. It is deprecated.
	EndpointURLsReady conditions.Type = "EndpointURLsReady"
)

// Reasons of conditions of APIExportEndpointSlices that are not True, besides those of
// APIBindings.
const (
	// PartitionInvalidReference means for [PartitionValid] that there is no such Partition.
	PartitionInvalidReference = "PartitionInvalidReference"
)
