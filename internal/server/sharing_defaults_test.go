package server_test

import (
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
)

// claimsSecrets is a patch of an export that begins to claim secrets with a verb.
func claimsSecrets(verb string) string {
	return `{"spec":{"permissionClaims":[{"group":"","resource":"secrets","verbs":["` + verb + `"]}]}}`
}

// accepted reports whether a binding accepts and applies exactly one claim, with a verb.
func accepted(verb string) func(*unstructured.Unstructured) bool {
	return func(o *unstructured.Unstructured) bool {
		if o == nil {
			return false
		}
		answers, _, _ := unstructured.NestedSlice(o.Object, "spec", "permissionClaims")
		applied, _, _ := unstructured.NestedSlice(o.Object, "status", "appliedPermissionClaims")
		return len(answers) == 1 && len(applied) == 1 && fmt.Sprint(answers[0].(map[string]any)["state"]) == "Accepted" &&
			fmt.Sprint(applied[0].(map[string]any)["verbs"]) == "["+verb+"]" && fmt.Sprint(answers[0].(map[string]any)["verbs"]) == "["+verb+"]"
	}
}

// TestMaintainedBindingsAcceptLaterClaims shows what happens to the default bindings of existing
// workspaces when an export claims more: maintained ones accept it, and again after somebody has
// rejected it. Others do not change.
func TestMaintainedBindingsAcceptLaterClaims(t *testing.T) {
	t.Parallel()
	provider, owner := exporter(t), newTenant(t)
	in := map[string]*tenant{}
	for name, lifecycle := range map[string]string{"kept": "Maintain", "once": "InitializeOnly"} {
		owner.create(workspaceTypes, typeBinding(name, lifecycle, provider.name))
		in[name] = owner.inside(owner.create(workspaces, of(name, "", name)))
	}
	kept, once := in["kept"], in["once"]
	binding := func(c *tenant) string {
		return apisv1alpha2.DefaultBindingName(string(c.name), string(provider.name), "widgets")
	}
	for _, verb := range []string{"get", "list"} {
		provider.merge(apiExports, "", "widgets", claimsSecrets(verb))
		kept.await(apiBindings, "", binding(kept), accepted(verb))
	}
	rejected := `{"spec":{"permissionClaims":[{"group":"","resource":"secrets","verbs":["list"],"state":"Rejected","selector":{"matchAll":true}}]}}`
	before := must(kept.any.Resource(apiBindings).Patch(t.Context(), binding(kept), types.MergePatchType, []byte(rejected), metav1.PatchOptions{}))(t)
	after := kept.await(apiBindings, "", binding(kept), accepted("list"))
	if after.GetGeneration() <= before.GetGeneration() {
		t.Errorf("the spec changed from generation %d to %d", before.GetGeneration(), after.GetGeneration())
	}
	other := once.await(apiBindings, "", binding(once), func(o *unstructured.Unstructured) bool {
		asked, _, _ := unstructured.NestedSlice(o.Object, "status", "exportPermissionClaims")
		return len(asked) == 1 && fmt.Sprint(asked[0].(map[string]any)["verbs"]) == "[list]"
	})
	if answers, _, _ := unstructured.NestedSlice(other.Object, "spec", "permissionClaims"); len(answers) > 0 {
		t.Errorf("a binding that is not maintained answers %v", answers)
	}
}

// TestDefaultBindingsWhileSchemasChange shows that workspaces can be created while the export of
// their type gets other schemas, and that all end with the last one.
func TestDefaultBindingsWhileSchemasChange(t *testing.T) {
	t.Parallel()
	provider, owner := exporter(t), newTenant(t)
	owner.create(workspaceTypes, typeBinding("shop", "Maintain", provider.name))
	const schemas = 6
	for i := 2; i <= schemas; i++ {
		provider.create(apiSchemas, widgetSchema(fmt.Sprint("v", i), "color"))
	}
	stop := make(chan struct{})
	var creating sync.WaitGroup
	var mu sync.Mutex
	var all []*unstructured.Unstructured
	for worker := range 3 {
		creating.Go(func() {
			for i := range 12 {
				ws, err := owner.any.Resource(workspaces).Create(t.Context(), of(fmt.Sprintf("w-%d-%d", worker, i), "", "shop"), metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				all = append(all, ws)
				mu.Unlock()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := 2; i <= schemas; i++ {
		provider.merge(apiExports, "", "widgets", fmt.Sprintf(`{"spec":{"resources":[{"group":"example.com","name":"widgets","schema":"v%d.widgets.example.com","storage":{"crd":{}}}]}}`, i))
		owner.create(workspaces, of(fmt.Sprint("during-", i), "", "shop"))
	}
	close(stop)
	creating.Wait()
	last := fmt.Sprintf("v%d.widgets.example.com", schemas)
	for _, ws := range all {
		owner.await(workspaces, "", ws.GetName(), func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
		in := owner.inside(ws)
		in.until(apiBindings, apisv1alpha2.DefaultBindingName(string(in.name), string(provider.name), "widgets"), "Ready True", last)
		in.create(sharedWidgets, newWidget("w"))
	}
	t.Logf("%d workspaces", len(all))
}
