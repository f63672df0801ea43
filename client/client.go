// Package client is a typed client for one kind of object in one logical cluster at a time.
// It needs a Go type for the object and one for its list, and no generated code.
//
// Every other Kubernetes client works too, with the configuration that [Cluster] returns.
package client

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
)

// Object is a pointer to an API type, such as *Workspace.
type Object interface {
	runtime.Object
	metav1.Object
}

// List is a pointer to the type of a list, such as *WorkspaceList.
type List interface {
	runtime.Object
	metav1.ListInterface
}

// A Client reads and writes objects of type T in one logical cluster. After
// [Client.Namespace] it is for one namespace. It is safe for concurrent use.
//
// Get, List, Watch, Create, Update, UpdateStatus, Patch, Delete and DeleteCollection work
// as in other clients of Kubernetes. Package k8s.io/apimachinery/pkg/api/errors tells
// their errors apart. Returned objects have no apiVersion and kind.
type Client[T Object, L List] struct {
	*gentype.ClientWithList[T, L]

	config    *rest.Config
	transport *http.Client
	scheme    *runtime.Scheme
	resource  schema.GroupVersionResource
}

// New returns a client for a resource in the logical cluster with the given path or name.
// The path "*" stands for all logical clusters; such a client can List and Watch only. The
// path replaces the logical cluster of cfg, if it has one.
//
// The kind in requests is the name of the type that T points to. Unless cfg sets a QPS or
// a rate limiter, the client does not limit its requests: the server does.
func New[T Object, L List](cfg *rest.Config, path string, resource schema.GroupVersionResource) (*Client[T, L], error) {
	if resource.Resource == "" || resource.Version == "" {
		return nil, fmt.Errorf("client for %s: the resource needs a plural name and a version, as from GroupVersion.WithResource(\"workspaces\")", resource)
	}
	scheme, err := schemeFor[T, L](resource.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", resource, err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion = new(resource.GroupVersion())
	cfg.APIPath = "/apis"
	if resource.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if cfg.QPS == 0 {
		cfg.QPS = -1 // no limit; zero would be a limit of 5
	}
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", resource, err)
	}
	c := &Client[T, L]{config: cfg, transport: transport, scheme: scheme, resource: resource}
	return c.at(path, "")
}

// schemeFor returns a scheme with T, L, and the options, errors and watch events of the API
// machinery.
func schemeFor[T Object, L List](gv schema.GroupVersion) (*runtime.Scheme, error) {
	for _, t := range []reflect.Type{reflect.TypeFor[T](), reflect.TypeFor[L]()} {
		if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
			return nil, fmt.Errorf("%s is not a pointer to a struct", t)
		}
		if t.Implements(reflect.TypeFor[runtime.Unstructured]()) {
			return nil, fmt.Errorf("%s has no kind of its own; use k8s.io/client-go/dynamic with the configuration that client.Cluster returns", t)
		}
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, fresh[T](), fresh[L]())
	metav1.AddToGroupVersion(scheme, gv)
	return scheme, nil
}

// fresh returns a pointer to a new zero value of the type that P points to.
func fresh[P any]() P {
	return reflect.New(reflect.TypeFor[P]().Elem()).Interface().(P)
}

// In returns a client like c for another logical cluster. It is cheap: it shares the
// connections of c.
func (c *Client[T, L]) In(path string) (*Client[T, L], error) {
	return c.at(path, c.GetNamespace())
}

func (c *Client[T, L]) at(path, namespace string) (*Client[T, L], error) {
	if path != string(cluster.All) {
		if _, err := cluster.ParsePath(path); err != nil {
			return nil, fmt.Errorf("client for %s: %w", c.resource, err)
		}
	}
	at := *c
	at.config = Cluster(c.config, path)
	requests, err := rest.RESTClientForConfigAndClient(at.config, c.transport)
	if err != nil {
		return nil, fmt.Errorf("client for %s in %s: %w", c.resource, path, err)
	}
	at.ClientWithList = at.typed(requests, namespace)
	return &at, nil
}

// Namespace returns a client like c for one namespace. Without a namespace, a client for a
// namespaced resource can List and Watch only.
func (c *Client[T, L]) Namespace(name string) *Client[T, L] {
	in := *c
	in.ClientWithList = c.typed(c.GetClient(), name)
	return &in
}

func (c *Client[T, L]) typed(requests rest.Interface, namespace string) *gentype.ClientWithList[T, L] {
	return gentype.NewClientWithList(c.resource.Resource, requests, runtime.NewParameterCodec(c.scheme), namespace, fresh[T], fresh[L])
}

// Apply sets fields of the object with the given name by server-side apply, and creates the
// object if it does not exist. Fields that the same field manager applied before and that
// are missing now are removed. Options must set the field manager.
//
// Fields is a value that encodes as a JSON object with exactly the fields to set, such as
// a map or an apply configuration of Kubernetes. Apply adds apiVersion, kind and
// metadata.name. Do not pass a T: its zero values would be applied, too.
func (c *Client[T, L]) Apply(ctx context.Context, name string, fields any, opts metav1.ApplyOptions) (T, error) {
	body, err := c.applied(name, fields)
	if err != nil {
		var none T
		return none, fmt.Errorf("apply %s %q: %w", c.resource.Resource, name, err)
	}
	return c.Patch(ctx, name, types.ApplyPatchType, body, opts.ToPatchOptions())
}

func (c *Client[T, L]) applied(name string, fields any) ([]byte, error) {
	raw, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return nil, err
	}
	if body == nil {
		body = map[string]any{}
	}
	metadata, ok := body["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
	}
	metadata["name"] = name
	body["metadata"] = metadata
	body["apiVersion"] = c.resource.GroupVersion().String()
	body["kind"] = reflect.TypeFor[T]().Elem().Name()
	return json.Marshal(body)
}

// Cluster returns a copy of cfg for the logical cluster with the given path or name, or for
// all of them ("*"). The path replaces the logical cluster of cfg, if it has one. The part
// of the URL before that, such as the path of a view, stays.
//
// The path goes into the URL unchecked. Validate user input first, or use [New], which
// does.
func Cluster(cfg *rest.Config, path string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Host = clusterURL(cfg.Host, path)
	return cfg
}

const segment = "/clusters/"

func clusterURL(server, path string) string {
	if server == "" {
		server = "localhost" // the default of client-go
	}
	begin := 0 // of the host, whose name may be "clusters"
	if i := strings.Index(server, "://"); i >= 0 {
		begin = i + len("://")
	}
	base, prefix := server, ""
	if i := strings.IndexByte(server[begin:], '/'); i >= 0 {
		base, prefix = server[:begin+i], strings.TrimRight(server[begin+i:], "/")
	}
	if i := strings.LastIndex(prefix, segment); i >= 0 && !strings.Contains(prefix[i+len(segment):], "/") {
		prefix = prefix[:i]
	}
	return base + prefix + segment + path
}
