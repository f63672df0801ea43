// Command platform is a server with a kind, an admission rule and a loop of its own: every
// logical cluster serves Greetings. The rule requires a name to greet, and the loop sets
// the status.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp"
)

//go:embed greetings.yaml
var definition []byte

var greetings = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "greetings"}

// Greeting is the Go type of the kind that greetings.yaml defines.
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Name string `json:"name,omitempty"`
	} `json:"spec"`
	Status struct {
		Text string `json:"text,omitempty"`
	} `json:"status"`
}

// DeepCopyObject implements runtime.Object.
func (g *Greeting) DeepCopyObject() runtime.Object {
	c := *g
	g.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// GreetingList is a list of Greetings.
type GreetingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Greeting `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *GreetingList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]Greeting(nil), l.Items...)
	return &c
}

// server returns the server of the platform, not yet started.
func server() (*kcp.Server, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(definition, crd); err != nil {
		return nil, err
	}
	return &kcp.Server{Extensions: []kcp.Extension{{
		Kinds: []*apiextensionsv1.CustomResourceDefinition{crd},
		Rules: []kcp.Rule{{Name: "example.com/NamedGreetings", Validate: named}},
		Loops: func(s *kcp.Server) ([]kcp.Loop, error) {
			all, err := kcp.Follow[*Greeting, *GreetingList](s, greetings)
			if err != nil {
				return nil, err
			}
			return []kcp.Loop{greet(all)}, nil
		},
	}}}, nil
}

// named refuses a Greeting without a name.
func named(_ context.Context, r kcp.Request) error {
	o, ok := r.GetObject().(*unstructured.Unstructured)
	if !ok || !r.Is(greetings.GroupResource()) {
		return nil
	}
	if name, _, _ := unstructured.NestedString(o.Object, "spec", "name"); name == "" {
		return r.Forbid(errors.New("spec.name must say whom to greet"))
	}
	return nil
}

// greet returns a loop that sets the text of every Greeting in all clusters.
func greet(all *kcp.Kind[*Greeting]) kcp.Loop {
	return kcp.Loop{
		Name: "greet",
		On:   []kcp.Source{all.Changed()},
		Do: func(ctx context.Context, k kcp.Key) error {
			g := all.Get(k)
			if g == nil {
				return nil
			}
			next, _ := g.DeepCopyObject().(*Greeting)
			next.Status.Text = fmt.Sprintf("Hello %s, from %s!", g.Spec.Name, k.Cluster)
			return all.Save(ctx, g, next)
		},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	srv, err := server()
	if err != nil {
		return err
	}
	srv.Dir, srv.Listen = ".kcp", "127.0.0.1:6443"
	if err := srv.Start(ctx); err != nil {
		return err
	}
	fmt.Println("serving at", srv.URL(), "with .kcp/admin.kubeconfig")
	<-ctx.Done()
	return srv.Close()
}
