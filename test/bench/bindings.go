package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/test/child"
)

const apisPath = "/apis/apis.kcp.io/"

// bindings measures the time until the first object of a binding can be created. Each binding
// is the first of its export.
func bindings(ctx context.Context, b *bench) error {
	return b.onKCP(ctx, func(kcp subject, s *server) error {
		defer s.stop()
		clients, err := child.Connect(ctx, s.user, 1)
		if err != nil {
			return err
		}
		defer child.CloseAll(clients)
		provider, err := s.newTenant(ctx, clients[0], "provider")
		if err != nil {
			return err
		}
		consumer, err := s.newTenant(ctx, clients[0], "consumer")
		if err != nil {
			return err
		}
		group := func(i int) string { return fmt.Sprintf("g%d.%s", i, customGroup) }
		for i := range b.plan.definitions {
			if err := export(ctx, clients[0], provider, group(i)); err != nil {
				return err
			}
		}
		x, err := s.load(ctx, clients, b.plan.definitions, func(ctx context.Context, c *client, i int) error {
			if err := bind(ctx, c, consumer, provider, group(i)); err != nil {
				return err
			}
			k := b.customResource()
			k.body = func(name, word string) ([]byte, error) { return customObject(group(i), name, word, b.plan.size) }
			k.in = func(t tenant) (string, string) { return customsOf(t, group(i)), customsOf(t, group(i)) }
			return k.await(ctx, c, consumer)
		})
		if err != nil {
			return err
		}
		const of = "binding until its first custom resource is made"
		b.report.addTime(kcp.name(), of, "p50", x.percentile(50))
		b.report.addTime(kcp.name(), of, "p99", x.percentile(99))
		b.report.addTime(kcp.name(), of, "server CPU each", x.each(x.server))
		return nil
	})
}

// export makes a tenant export things of a group.
func export(ctx context.Context, c *client, t tenant, group string) error {
	schema, err := apisv1alpha1.FromCustomResourceDefinition(definition(group), "v1")
	if err != nil {
		return err
	}
	if err := post(ctx, c, base(t)+apisPath+"v1alpha1/apiresourceschemas", schema); err != nil {
		return err
	}
	e := &apisv1alpha2.APIExport{
		TypeMeta:   metav1.TypeMeta{APIVersion: apisv1alpha2.GroupVersion.String(), Kind: "APIExport"},
		ObjectMeta: metav1.ObjectMeta{Name: group},
		Spec: apisv1alpha2.APIExportSpec{Resources: []apisv1alpha2.ResourceSchema{{
			Name: "things", Group: group, Schema: schema.Name, Storage: apisv1alpha2.ResourceStorage{CRD: &apisv1alpha2.CRDStorage{}},
		}}},
	}
	return post(ctx, c, base(t)+apisPath+"v1alpha2/apiexports", e)
}

// bind makes a tenant bind the export of another.
func bind(ctx context.Context, c *client, t, of tenant, export string) error {
	_, path, _ := strings.Cut(base(of), "/clusters/")
	return post(ctx, c, base(t)+apisPath+"v1alpha2/apibindings", &apisv1alpha2.APIBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: apisv1alpha2.GroupVersion.String(), Kind: "APIBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: export},
		Spec:       apisv1alpha2.APIBindingSpec{Reference: apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportReference{Path: path, Name: export}}},
	})
}

// base returns the URL path of a tenant.
func base(t tenant) string {
	path, _, _ := strings.Cut(t.configMaps, corePath)
	return path
}

func post(ctx context.Context, c *client, path string, o any) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, http.MethodPost, path, jsonType, body)
	return err
}
