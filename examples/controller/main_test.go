package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/unforked/kcp/kcptest"
)

// TestCounter runs two managers side by side, in two logical clusters of one server.
func TestCounter(t *testing.T) {
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := kcptest.New(t)
			mgr, err := ctrl.NewManager(c.Config, ctrl.Options{
				Metrics:    server.Options{BindAddress: "0"},
				Controller: config.Controller{SkipNameValidation: new(true)}, // there are two in this process
			})
			if err == nil {
				err = setup(mgr)
			}
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- mgr.Start(t.Context()) }()
			t.Cleanup(func() {
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			c.Apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: two-keys}, data: {a: x, b: z}}")
			c.Wait(corev1.SchemeGroupVersion.WithResource("configmaps"), "default", "two-keys", func(o *unstructured.Unstructured) bool {
				return o != nil && o.GetLabels()[label] == "2"
			})
		})
	}
}

// TestDefinition checks that a definition is served when Apply returns, only in the cluster of
// the test.
func TestDefinition(t *testing.T) {
	t.Parallel()
	c := kcptest.New(t)
	hat := c.Apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: hats.example.com}
spec:
  group: example.com
  names: {plural: hats, kind: Hat}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {size: {type: integer, default: 7}}}}}
---
{apiVersion: example.com/v1, kind: Hat, metadata: {name: bowler}}`)
	if hat.Object["size"] != int64(7) {
		t.Errorf("it is %v", hat.Object)
	}
}
