package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/server"
)

var definitionsOfResources = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// colored returns a definition of things of one color.
func colored(color string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Cluster", "names": map[string]any{"plural": "things", "kind": "Thing"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "properties": map[string]any{"color": map[string]any{"type": "string", "enum": []any{color}}},
			}}}},
		},
	}}
}

var things = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}

func thing(name, color string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": name}, "color": color,
	}}
}

// writers creates things of a color at every server until stop is called. stop returns their
// number. Errors that are not expected fail the test.
func (e *equals) writers(at, color string, expected func(error) bool) (stop func() int) {
	ctx, cancel := context.WithCancel(e.t.Context())
	var all sync.WaitGroup
	made := make([]int, len(e.all))
	for i := range e.all {
		client := e.dynamic(e.all[i], at).Resource(things)
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, err := client.Create(ctx, thing(fmt.Sprintf("of-%d-%d", i, n), color), metav1.CreateOptions{})
				switch {
				case err == nil:
					made[i]++
				case ctx.Err() == nil && !expected(err):
					e.t.Errorf("write %d at server %d: %v", n, i, err)
				}
			}
		})
	}
	return func() int {
		cancel()
		all.Wait()
		sum := 0
		for _, n := range made {
			sum += n
		}
		return sum
	}
}

// Once one server has acknowledged a change of a definition, no server validates by the old
// one, despite concurrent writes.
func definitionChangesWhileServersWrite(t *testing.T, e *equals) {
	at := string(e.workspace(e.all[0], "root", "changing"))
	definitions := []dynamic.ResourceInterface{e.dynamic(e.all[0], at).Resource(definitionsOfResources), e.dynamic(e.all[1], at).Resource(definitionsOfResources)}
	_, err := definitions[0].Create(t.Context(), colored("red"), metav1.CreateOptions{})
	e.ok(err)
	stop := e.writers(at, "blue", apierrors.IsInvalid)
	colors := []string{"blue", "red"}
	for i := range 30 {
		color, other := colors[i%2], colors[1-i%2]
		changes, writes := definitions[i/2%2], e.dynamic(e.all[1-i/2%2], at).Resource(things)
		_, err := changes.Patch(t.Context(), "things.example.com", "application/json-patch+json",
			fmt.Appendf(nil, `[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/color/enum","value":[%q]}]`, color), metav1.PatchOptions{})
		e.ok(err)
		if _, err := writes.Create(t.Context(), thing(fmt.Sprint("old-", i), other), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("change %d: by the old definition: %v", i, err)
		}
		if _, err := writes.Create(t.Context(), thing(fmt.Sprint("new-", i), color), metav1.CreateOptions{}); err != nil {
			t.Errorf("change %d: by the new definition: %v", i, err)
		}
	}
	if made := stop(); made == 0 {
		t.Error("nothing was written meanwhile")
	}
}

// Objects that servers create while another one deletes their definition or namespace are
// deleted with it.
func deletedWhileServersCreate(t *testing.T, e *equals) {
	at := string(e.workspace(e.all[0], "root", "ending"))
	view := &tenant{t: t, any: e.dynamic(e.all[1], at)}
	for i := range 3 {
		_, err := e.dynamic(e.all[0], at).Resource(definitionsOfResources).Create(t.Context(), colored("blue"), metav1.CreateOptions{})
		e.ok(err)
		stop := e.writers(at, "blue", func(err error) bool { // the kind does not exist or is being deleted
			return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsForbidden(err) || apierrors.IsAlreadyExists(err)
		})
		_, err = e.dynamic(e.all[1], at).Resource(things).Create(t.Context(), thing("first", "blue"), metav1.CreateOptions{})
		e.ok(err)
		e.ok(e.dynamic(e.all[i%2], at).Resource(definitionsOfResources).Delete(t.Context(), "things.example.com", metav1.DeleteOptions{}))
		view.await(definitionsOfResources, "", "things.example.com", gone)
		stop()
		e.nothing("/registry/c/", "/things/", at)
	}
	e.ok(namespaceIn(e.kube(e.all[0], at, server.System()), "ending"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for i, s := range e.all {
		kube := e.kube(s, at, server.System())
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				err := configMapIn(kube, "ending", fmt.Sprintf("of-%d-%d", i, n))
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
					t.Errorf("config map %d at server %d: %v", n, i, err)
				}
			}
		})
	}
	e.ok(configMapIn(e.kube(e.all[1], at, server.System()), "ending", "first"))
	e.ok(e.kube(e.all[0], at, server.System()).CoreV1().Namespaces().Delete(t.Context(), "ending", metav1.DeleteOptions{}))
	view.await(core("namespaces"), "", "ending", gone)
	cancel()
	all.Wait()
	e.nothing("/registry/n/core/configmaps/", "/ending/", at)
}

// nothing fails the test if etcd contains keys of a cluster below prefix and part.
func (e *equals) nothing(prefix, part, of string) {
	e.t.Helper()
	resp, err := e.all[0].Store().RawClient().Get(e.t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	e.ok(err)
	var left []error
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); strings.Contains(key, part) && strings.Contains(key, "/"+of+"/") {
			left = append(left, errors.New(key))
		}
	}
	if len(left) > 0 {
		e.t.Errorf("%d objects are left: %v", len(left), left[0])
	}
}
