package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/test/child"
)

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	customGroup     = "bench.example.com"
	corePath        = "/api/v1/"
)

// customs measures each verb on custom resources of the same size as the config maps.
func customs(ctx context.Context, b *bench) error { return b.operations(ctx, b.customResource()) }

func (b *bench) customResource() kind {
	return kind{
		name: "custom resource", media: jsonType,
		// A PUT would need the resource version, and so another request.
		replace: http.MethodPatch,
		body:    func(name, word string) ([]byte, error) { return customObject(customGroup, name, word, b.plan.size) },
		in: func(t tenant) (string, string) {
			at := customsOf(t, customGroup)
			return at, at
		},
		// Tenants of a stock server share one definition, which may already exist.
		prepare: func(ctx context.Context, c *client, t tenant) error {
			err := define(ctx, c, t, customGroup)
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			if err := b.customResource().await(ctx, c, t); err != nil {
				return err
			}
			_, err = c.Call(ctx, http.MethodDelete, customsOf(t, customGroup)+"/first", jsonType, nil)
			return err
		},
	}
}

// await returns when objects of the kind can be created in a tenant.
func (k kind) await(ctx context.Context, c *client, t tenant) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("a definition is not served after a minute"))
	defer cancel()
	collection, _ := k.in(t)
	for {
		err := k.create(ctx, c, collection, "first")
		if err == nil || !apierrors.IsNotFound(err) {
			return err
		}
		if err := child.Pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

// customsOf returns the collection of the custom resources of a group in a tenant.
func customsOf(t tenant, group string) string {
	return strings.Replace(strings.TrimSuffix(t.configMaps, "configmaps"), corePath, "/apis/"+group+"/v1/", 1) + "things"
}

// define creates a CustomResourceDefinition of things for a tenant.
func define(ctx context.Context, c *client, t tenant, group string) error {
	base, _, _ := strings.Cut(t.configMaps, corePath)
	body, err := json.Marshal(definition(group))
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, http.MethodPost, base+definitionsPath, jsonType, body)
	return err
}

// definition returns a definition of things.
func definition(group string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "things." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Singular: "thing", Kind: "Thing", ListKind: "ThingList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
						Type: "object", Required: []string{"value"},
						Properties: map[string]apiextensionsv1.JSONSchemaProps{"value": {Type: "string"}, "replicas": {Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("1")}}},
					}},
				}},
			}},
		},
	}
}

// customObject encodes a thing with a value of the given size that begins with a word.
func customObject(group, name, word string, size int) ([]byte, error) {
	return json.Marshal(map[string]any{
		"apiVersion": group + "/v1", "kind": "Thing",
		"metadata": metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		"spec":     map[string]any{"value": word + strings.Repeat("x", max(0, size-len(word)))},
	})
}

// definitions measures the time until the first object of a new definition can be created.
// It creates the definitions in one tenant, one after the other.
func definitions(ctx context.Context, b *bench) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	for _, s := range sides {
		t, err := s.newTenant(ctx, s.clients[0], "definitions")
		if err != nil {
			return err
		}
		x, err := s.load(ctx, s.clients[:1], b.plan.definitions, func(ctx context.Context, c *client, i int) error {
			group := fmt.Sprintf("g%d.%s", i, customGroup)
			if err := define(ctx, c, t, group); err != nil {
				return err
			}
			k := b.customResource()
			k.body = func(name, word string) ([]byte, error) { return customObject(group, name, word, b.plan.size) }
			k.in = func(t tenant) (string, string) { return customsOf(t, group), customsOf(t, group) }
			return k.await(ctx, c, t)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", s.subject, err)
		}
		const of = "definition until its first custom resource is made"
		b.report.addTime(s.subject, of, "p50", x.percentile(50))
		b.report.addTime(s.subject, of, "p99", x.percentile(99))
		b.report.addTime(s.subject, of, "server CPU each", x.each(x.server))
	}
	return nil
}
