package quickstart

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cli/sharing"
	"github.com/unforked/kcp/internal/cluster"
)

// The samples of "quickstart --scenario api-provider": what the provider creates, and an object of
// the consumer.
var (
	//go:embed api.yaml
	providerSamples []byte
	//go:embed widget.yaml
	consumerSample []byte
)

// shareSample creates two workspaces below top: provider, which exports an API, and consumer,
// which binds it. It can be repeated.
func shareSample(ctx context.Context, a *command.App, srv *remote.Server, top cluster.Path, q quickstart) error {
	provider, consumer := top.Join("provider"), top.Join("consumer")
	for _, path := range []cluster.Path{top, provider, consumer} {
		if err := plantWorkspace(ctx, a, srv, path, false); err != nil {
			return err
		}
	}
	if err := applyAll(ctx, srv, provider, providerSamples); err != nil {
		return err
	}
	bindings, err := srv.Objects(consumer, apis.GroupVersion, "apibindings")
	if err != nil {
		return err
	}
	b := sharing.NewBinding{Path: provider, Export: "widgets", Name: "widgets"}
	made, _, err := b.Ensure(ctx, bindings)
	if err == nil {
		_, err = sharing.AwaitBound(ctx, a, bindings, made, max(time.Until(deadline(ctx)), 0))
	}
	if err != nil {
		return remote.About(consumer, "cannot bind the sample in workspace %q: %w", consumer, err)
	}
	if q.samples {
		if err := applyAll(ctx, srv, consumer, consumerSample); err != nil {
			return err
		}
	}
	a.Print.Say("Workspace '%s' exports widgets, and workspace '%s' has bound them.", provider, consumer)
	a.Print.Say("To use them, run: kubectl ws :%s; kubectl explain widgets; kubectl get widgets", consumer)
	a.Print.Say("For the URL with the objects of all consumers, run: kubectl ws :%s; kubectl get apiexportendpointslice widgets -o yaml", provider)
	return nil
}

// deadline returns the deadline of a context that has one.
func deadline(ctx context.Context) time.Time {
	at, _ := ctx.Deadline()
	return at
}

// applyAll creates the objects of a YAML file in the cluster at path, unless they exist.
func applyAll(ctx context.Context, s *remote.Server, path cluster.Path, text []byte) error {
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			return err
		}
		gvk := o.GroupVersionKind()
		plural := map[string]string{"APIResourceSchema": "apiresourceschemas", "APIExport": "apiexports", "Widget": "widgets"}[gvk.Kind]
		client, err := s.Objects(path, schema.GroupVersion{Group: gvk.Group, Version: gvk.Version}, plural)
		if err != nil {
			return err
		}
		if _, err = client.Create(ctx, o, metav1.CreateOptions{FieldManager: remote.UserAgent}); err != nil && !apierrors.IsAlreadyExists(err) {
			return remote.About(path, "cannot create %s in workspace %q: %w", fmt.Sprintf("%s %q", gvk.Kind, o.GetName()), path, err)
		}
	}
	return nil
}
