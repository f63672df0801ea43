package engine

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/profile"
)

// Desired is the desired state in the workspaces, as one target sees it: the objects that have
// a part there, and the objects that these refer to. Methods without a context read caches.
type Desired interface {
	// Wakes wakes the engine with the tasks of objects whose desired state may have changed. It
	// wakes all of them when the engine starts, and is ready when the caches are complete.
	Wakes() kcp.Source
	// Found reports that the physical cluster has objects of the target, so that the engine has to
	// work even if nothing is assigned.
	Found()
	// Profiles are those of all kinds that the target may have, with those of dependencies.
	Profiles() []profile.Profile
	// Profile returns the profile of a resource, nil if there is none.
	Profile(schema.GroupResource) *profile.Profile

	// Workload returns an object that has an Assignment, nil if there is none.
	Workload(ID) *unstructured.Unstructured
	// Assignment returns the Assignment of an object, nil if there is none.
	Assignment(ID) *workload.Assignment
	// Status returns the last report of the target about an object, nil if there is none.
	Status(ID) *workload.TargetStatus
	// Placed returns the Assignments in a namespace of a logical cluster.
	Placed(cluster kcp.ClusterName, namespace string) []*workload.Assignment
	// Has reports whether the target has a part of any object of a resource, or an object that
	// refers to any.
	Has(schema.GroupResource) bool
	// Tenant returns the tenant of a logical cluster, or the cluster itself if that is not known. Tenants
	// share the objects that a target takes.
	Tenant(kcp.ClusterName) kcp.ClusterName
	// Users returns the objects that have a part at the target and refer to an object.
	Users(ID) []ID

	// Read reads an object and its Assignment from the server, not from a cache. It returns nil
	// for what does not exist.
	Read(context.Context, ID) (*unstructured.Unstructured, *workload.Assignment, error)
	// Dependency reads an object that others refer to. If that is not possible, it returns nil
	// and says why, in words for the owner of the workspace; withdrawn is true if copies shall go.
	Dependency(context.Context, ID) (o *unstructured.Unstructured, why string, withdrawn bool, err error)
	// Unused reports whether the server confirms that no object with a part at the target refers
	// to this one.
	Unused(context.Context, ID) (bool, error)
	// Report writes or, if report is nil, deletes the report of the target about an object.
	Report(ctx context.Context, of ID, report *workload.TargetStatus) error
}
