package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp/kcptest"
)

func TestPlatform(t *testing.T) {
	srv, err := server()
	if err != nil {
		t.Fatal(err)
	}
	u := &kcptest.Universe{Server: srv}
	defer func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	}()
	a, b := u.New(t), u.New(t)
	for _, c := range []*kcptest.Cluster{a, b} {
		c.Apply("{apiVersion: example.com/v1, kind: Greeting, metadata: {name: hi}, spec: {name: Ada}}")
	}
	for _, c := range []*kcptest.Cluster{a, b} {
		c.Wait(greetings, "default", "hi", func(o *unstructured.Unstructured) bool {
			if o == nil {
				return false
			}
			text, _, _ := unstructured.NestedString(o.Object, "status", "text")
			return text == "Hello Ada, from "+c.Name+"!"
		})
	}
	nobody := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Greeting", "metadata": map[string]any{"name": "nobody"}, "spec": map[string]any{},
	}}
	_, err = a.Dynamic.Resource(greetings).Namespace("default").Create(t.Context(), nobody, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "whom to greet") {
		t.Errorf("a greeting for nobody: %v", err)
	}
}
