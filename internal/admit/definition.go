package admit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// reservedGroup and its subgroups are reserved for APIs of the server.
	reservedGroup = "apis.kcp.io"
	// boundDefinition marks definitions of a bound API.
	boundDefinition = "apis.kcp.io/bound-crd"

	// Every server decodes the definitions of a cluster, and compiles them on use. These
	// limits are several times the size of the largest known collections.
	maxDefinitions     = 2000
	maxDefinitionBytes = 64 << 20
)

// Definitions limits the custom resources that a cluster may define.
type Definitions struct {
	// Served reports whether the server itself serves a resource in a cluster.
	Served func(cluster.Name, schema.GroupResource) bool
	// Usage returns how many definitions a cluster has, and their size in bytes.
	Usage func(cluster.Name) (objects, bytes int64)
}

// Rule refuses definitions of resources that the server serves, and definitions beyond the
// limits.
func (d Definitions) Rule() Rule {
	return Rule{Name: "kcp.io/ReservedCRDGroups", Validate: d.validate}
}

func (d Definitions) validate(_ context.Context, r Request) error {
	if !r.Is(apiextensionsv1.Resource("customresourcedefinitions")) || r.GetSubresource() != "" || r.GetObject() == nil {
		return nil
	}
	crd, ok := r.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok {
		return r.Forbid(fmt.Errorf("%T is no CustomResourceDefinition", r.GetObject()))
	}
	if _, marked := r.Object().GetAnnotations()[boundDefinition]; marked { // whatever its value
		return r.Forbid(fmt.Errorf("annotation %s is reserved; leave it out", boundDefinition))
	}
	if r.GetOperation() != admission.Create {
		return nil
	}
	group := crd.Spec.Group
	if isReserved(group) {
		return r.Forbid(fmt.Errorf("%s is a reserved group; choose another", group))
	}
	gr := schema.GroupResource{Group: group, Resource: crd.Spec.Names.Plural}
	if d.Served(r.Cluster, gr) {
		return r.Forbid(fmt.Errorf("%s is served by the server itself; choose another group", gr))
	}
	switch objects, bytes := d.Usage(r.Cluster); {
	case objects >= maxDefinitions:
		return r.Forbid(fmt.Errorf("a workspace has at most %d CustomResourceDefinitions; delete some, or use another workspace", maxDefinitions))
	case bytes >= maxDefinitionBytes:
		return r.Forbid(errors.New("the CustomResourceDefinitions of a workspace have at most 64 MiB; delete some, or use another workspace"))
	}
	return nil
}

// isReserved reports whether a group is reserved for APIs of the server.
func isReserved(group string) bool {
	return group == reservedGroup || strings.HasSuffix(group, "."+reservedGroup)
}
