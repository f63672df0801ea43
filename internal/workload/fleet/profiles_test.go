package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// offerEngines adds a kind of custom resources to the export of a compute workspace.
func offerEngines(t *testing.T, c computing) {
	t.Helper()
	c.Apply(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: v1.engines.example.com}
spec:
  group: example.com
  names: {plural: engines, singular: engine, kind: Engine, listKind: EngineList}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`)
	patch := []byte(`[{"op":"add","path":"/spec/resources/-","value":{"group":"example.com","name":"engines","schema":"v1.engines.example.com","storage":{"crd":{}}}}]`)
	if _, err := c.Dynamic.Resource(apis.GroupVersion.WithResource("apiexports")).Patch(t.Context(), workload.KubernetesExport, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Apply(enginesProfile)
}

const enginesProfile = `
apiVersion: workload.kcp.io/v1alpha1
kind: ResourceProfile
metadata: {name: engines.example.com}
spec: {group: example.com, version: v1, resource: engines}
`

func engine(name string) string {
	return fmt.Sprintf("{apiVersion: example.com/v1, kind: Engine, metadata: {name: %s}}", name)
}

func engines(of *kcptest.Cluster) dynamic.ResourceInterface {
	return of.Dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "engines"}).Namespace("default")
}

// TestProfileInUse expects that a ResourceProfile that is deleted stays in effect until no object of its kind is
// placed, says so, and places no further objects.
func TestProfileInUse(t *testing.T) {
	c, shop := placing(t)
	offerEngines(t, c)
	profiles := c.Dynamic.Resource(workload.GroupVersion.WithResource("resourceprofiles"))
	says := func(text string) {
		t.Helper()
		eventually(t, func() error {
			o, err := profiles.Get(t.Context(), "engines.example.com", metav1.GetOptions{})
			if err == nil && !strings.Contains(fmt.Sprint(o.Object), text) {
				err = fmt.Errorf("the profile does not say %q: %v", text, o.Object)
			}
			return err
		})
	}
	eventually(t, func() error {
		_, err := engines(shop).List(t.Context(), metav1.ListOptions{})
		return err
	})
	shop.Apply(engine("one"))
	placedEngine(t, shop, "one")
	says(workload.InUseFinalizer)
	if err := profiles.Delete(t.Context(), "engines.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	says("objects that are still placed: 1, such as one in the logical cluster " + shop.Name)
	shop.Apply(engine("two"))
	if err := engines(shop).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []func() error{
		func() error { _, err := engines(shop).Get(t.Context(), "one", metav1.GetOptions{}); return err },
		func() error {
			_, err := profiles.Get(t.Context(), "engines.example.com", metav1.GetOptions{})
			return err
		},
	} {
		eventually(t, func() error {
			if err := gone(); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it exists: %v", err)
			}
			return nil
		})
	}
	two, err := engines(shop).Get(t.Context(), "two", metav1.GetOptions{})
	if err != nil || len(two.GetFinalizers()) > 0 {
		t.Errorf("an object that was created after the deletion of the profile: %v, %v", two, err)
	}
	c.Apply(enginesProfile)
	placedEngine(t, shop, "two")
	remove(t, c) // the profile does not hold it up
}

// TestProfileIsFree expects that the last SyncTarget takes the finalizers of ResourceProfiles with it.
func TestProfileIsFree(t *testing.T) {
	c, shop := placing(t)
	offerEngines(t, c)
	eventually(t, func() error {
		_, err := engines(shop).List(t.Context(), metav1.ListOptions{})
		return err
	})
	shop.Apply(engine("one"))
	placedEngine(t, shop, "one")
	if err := c.targets.Delete(t.Context(), "east", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		o, err := c.Dynamic.Resource(workload.GroupVersion.WithResource("resourceprofiles")).Get(t.Context(), "engines.example.com", metav1.GetOptions{})
		if err == nil && len(o.GetFinalizers()) > 0 {
			err = fmt.Errorf("the profile has finalizers %v", o.GetFinalizers())
		}
		return err
	})
	c.register(t, "west", "")
	placedEngine(t, shop, "one")
	remove(t, c)
}

// placedEngine waits until an object has the finalizer of the scheduler.
func placedEngine(t *testing.T, shop *kcptest.Cluster, name string) {
	t.Helper()
	eventually(t, func() error {
		o, err := engines(shop).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(o.GetFinalizers()) == 0 {
			err = fmt.Errorf("%s is not placed", name)
		}
		return err
	})
}
