package syncer

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
)

// Resources of the view that workspaces do not have. Paths below an object name its resource:
//
//	.../namespaces/default/workloads/web/deployments.apps     the object with its Assignment
//	.../namespaces/default/dependencies/web-tls/secrets       what the target's objects refer to
//	.../namespaces/default/unused/web-tls/secrets             whether none of them does
const (
	Workloads    = "workloads"
	Dependencies = "dependencies"
	Unused       = "unused"
)

// A Need is an object that a workload refers to.
type Need struct {
	engine.ID
	// State changes with the object. It is empty while there is none.
	State string
}

// itemOf returns an object of any kind as it is in lists and watches: one watch has all kinds. The
// item has the name of the object's Assignment.
func itemOf(of engine.ID, name string, object *unstructured.Unstructured, needs []Need) *unstructured.Unstructured {
	item := &unstructured.Unstructured{Object: map[string]any{"resource": of.GroupResource.String(), "object": object.Object}}
	item.SetGroupVersionKind(kindOf(workloads()))
	item.SetNamespace(of.Key.Namespace)
	item.SetName(name)
	item.SetAnnotations(map[string]string{core.ClusterAnnotation: string(of.Key.Cluster)})
	if len(needs) > 0 {
		var all []any
		for _, n := range needs {
			all = append(all, map[string]any{"resource": n.GroupResource.String(), "name": n.Key.Name, "state": n.State})
		}
		item.Object["needs"] = all
	}
	return item
}

// An Item is an object of which a target has a part, as the agent reads it.
type Item struct {
	engine.ID
	Object *unstructured.Unstructured
	Needs  []engine.ID
}

// ItemOf reads an item of a list or a watch. It reports false for what is not one.
func ItemOf(o *unstructured.Unstructured) (i Item, ok bool) {
	resource, _, _ := unstructured.NestedString(o.Object, "resource")
	content, ok := o.Object["object"].(map[string]any)
	if !ok || resource == "" {
		return i, false
	}
	i.Object = &unstructured.Unstructured{Object: content}
	i.ID = engine.ID{GroupResource: schema.ParseGroupResource(resource), Key: kcp.KeyOf(o)}
	i.Key.Name = i.Object.GetName()
	needs, _ := o.Object["needs"].([]any)
	for _, n := range needs {
		m, _ := n.(map[string]any)
		of, _ := m["resource"].(string)
		name, _ := m["name"].(string)
		i.Needs = append(i.Needs, i.Beside(schema.ParseGroupResource(of), name))
	}
	return i, i.Key.Name != ""
}

// A Read is the answer to a request for one workload.
type Read struct {
	Workload   *unstructured.Unstructured `json:"workload"`
	Assignment *unstructured.Unstructured `json:"assignment"`
}

// A DependencyRead is the answer to a request for an object that others refer to. Without the
// object, it says why.
type DependencyRead struct {
	Object    *unstructured.Unstructured `json:"object,omitempty"`
	Why       string                     `json:"why,omitempty"`
	Withdrawn bool                       `json:"withdrawn,omitempty"`
}

// An UnusedRead says whether no object with a part at the target refers to one.
type UnusedRead struct {
	Unused bool `json:"unused"`
}
