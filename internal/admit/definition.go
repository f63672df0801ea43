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
	// reservedGroup and its subgroups are for what the server defines.
	reservedGroup = "apis.kcp.io"
	// boundDefinition marks definitions that stand for a bound API.
	boundDefinition = "apis.kcp.io/bound-crd"

	// A cluster's definitions are decoded by every server and compiled when they are
	// used. These bounds are several times what the largest known collections need.
	maxDefinitions     = 2000
	maxDefinitionBytes = 64 << 20
)

// Definitions says what custom resources a cluster may define.
type Definitions struct {
	// Served reports whether the server itself gives a cluster a resource.
	Served func(cluster.Name, schema.GroupResource) bool
	// Usage returns how many definitions a cluster has, and their size in bytes.
	Usage func(cluster.Name) (objects, bytes int64)
}

// Rule refuses definitions of what the server serves, and too many of them.
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
	if group == reservedGroup || strings.HasSuffix(group, "."+reservedGroup) {
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
