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

// itemOf returns an object of any kind as it is in lists and watches: one watch has all kinds. The
// item has the name of the object's Assignment.
func itemOf(of engine.ID, name string, object *unstructured.Unstructured, needs []engine.ID) *unstructured.Unstructured {
	item := blankItem(of, name, object.Object)
	if len(needs) > 0 {
		var all []any
		for _, n := range needs {
			all = append(all, map[string]any{"resource": n.GroupResource.String(), "name": n.Key.Name})
		}
		item.Object["needs"] = all
	}
	return item
}

// needOf returns an object that others refer to as it is in lists and watches: without its content, and with a state
// that changes with it. The agent reads the content.
func needOf(of id, state string) *unstructured.Unstructured {
	item := blankItem(engine.ID{GroupResource: of.need, Key: of.key}, of.name(), map[string]any{"metadata": map[string]any{"name": of.key.Name}})
	item.Object["state"] = state
	return item
}

func blankItem(of engine.ID, name string, content map[string]any) *unstructured.Unstructured {
	item := &unstructured.Unstructured{Object: map[string]any{"resource": of.GroupResource.String(), "object": content}}
	item.SetGroupVersionKind(kindOf(workloads()))
	item.SetNamespace(of.Key.Namespace)
	item.SetName(name)
	item.SetAnnotations(map[string]string{core.ClusterAnnotation: string(of.Key.Cluster)})
	return item
}

// An Item is an object of which a target has a part, or to which such objects refer, as the agent reads it.
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
