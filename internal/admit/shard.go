package admit

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/tenancy"
)

var shards = schema.GroupResource{Group: core.GroupVersion.Group, Resource: "shards"}

// Shards protects the Shard of this server, which it creates itself. Users with rights in the
// root workspace change its labels and annotations, by which workspaces are placed.
func Shards(own tenancy.Shard) Rule {
	return Rule{
		Name: "core.kcp.io/Shard",
		Validate: func(_ context.Context, r Request) error {
			if !r.Is(shards) {
				return nil
			}
			if r.Cluster != cluster.Root {
				return r.Forbid(errors.New("Shards can only be in the root workspace"))
			}
			switch r.GetOperation() {
			case admission.Create:
				return r.Forbid(fmt.Errorf("a shard creates its Shard itself; there is one shard, %s", own))
			case admission.Delete:
				return r.Forbid(fmt.Errorf("the server needs its Shard to place workspaces; to place none, annotate it with %s", core.UnschedulableAnnotation))
			case admission.Update:
				return validateShard(r)
			default:
				return nil
			}
		},
	}
}

func validateShard(r Request) error {
	if r.GetSubresource() == "status" && !r.Privileged() {
		return r.Forbid(errors.New("the status of a Shard is kept by the system"))
	}
	now, ok := r.GetObject().(*unstructured.Unstructured)
	old, ok2 := r.GetOldObject().(*unstructured.Unstructured)
	switch {
	case !ok || !ok2:
		return nil
	case !reflect.DeepEqual(now.Object["spec"], old.Object["spec"]):
		return r.Forbid(errors.New("the addresses of a Shard are those of the server; change --shard-external-url"))
	case now.GetLabels()[core.ShardNameLabel] != old.GetLabels()[core.ShardNameLabel]:
		return r.Forbid(fmt.Errorf("label %s is the name of the Shard and cannot be changed", core.ShardNameLabel))
	}
	return nil
}
