// Package remote sends the requests of commands to the clusters of one server. It hides which
// requests find out whether a user can enter a workspace, and how a watch continues.
package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// UserAgent is the name of the plugin in requests, and the field manager of what it writes.
	UserAgent = "kubectl-kcp"

	// PageSize is the number of workspaces per page of a list.
	PageSize = 500

	// HomeName is the name of the user's own home workspace in the root.
	HomeName = "~"
)

// A Server sends requests to any cluster of the server of a session.
type Server struct {
	Base   kubeconfig.Place // what relative paths are relative to
	Config *rest.Config
	Client *http.Client
}

// New returns the server of a session. Relative paths start at its current workspace.
func New(s *kubeconfig.Session) (*Server, error) {
	config := rest.CopyConfig(s.Rest)
	config.UserAgent = UserAgent
	config.QPS = -1 // commands have few requests in flight, and the server is fair
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use context %q: %w", s.Context, err)
	}
	return &Server{s.Here, config, client}, nil
}

// In returns the configuration of clients for the cluster at path.
func (s *Server) In(path cluster.Path) *rest.Config {
	config := rest.CopyConfig(s.Config)
	config.Host = s.Base.At(path).URL()
	return config
}

// Objects returns a client for a resource in the cluster at path.
func (s *Server) Objects(path cluster.Path, of schema.GroupVersion, resource string) (dynamic.ResourceInterface, error) {
	return s.Resource(path, of.WithResource(resource))
}

// Resource returns a client for a resource, with or without namespaces, in the cluster at path.
func (s *Server) Resource(path cluster.Path, of schema.GroupVersionResource) (dynamic.NamespaceableResourceInterface, error) {
	client, err := dynamic.NewForConfigAndClient(s.In(path), s.Client)
	if err != nil {
		return nil, err
	}
	return client.Resource(of), nil
}

// Workspaces returns a client for the workspaces in the cluster at path.
func (s *Server) Workspaces(path cluster.Path) (dynamic.ResourceInterface, error) {
	return s.Objects(path, tenancy.GroupVersion, "workspaces")
}

// Get returns the workspace of that name in the cluster at path.
func (s *Server) Get(ctx context.Context, path cluster.Path, name string) (*tenancy.Workspace, error) {
	workspaces, err := s.Workspaces(path)
	if err != nil {
		return nil, err
	}
	o, err := workspaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return workspaceOf(o)
}

// List returns all workspaces in the cluster at path.
func (s *Server) List(ctx context.Context, path cluster.Path) ([]*tenancy.Workspace, error) {
	workspaces, err := s.Workspaces(path)
	if err != nil {
		return nil, err
	}
	var all []*tenancy.Workspace
	options := metav1.ListOptions{Limit: PageSize}
	for {
		page, err := workspaces.List(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			all, options = nil, metav1.ListOptions{} // the token expired: list without pages
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			w, err := workspaceOf(&page.Items[i])
			if err != nil {
				return nil, err
			}
			all = append(all, w)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// Create creates the workspace w in the cluster at path.
func (s *Server) Create(ctx context.Context, path cluster.Path, w *tenancy.Workspace) (*tenancy.Workspace, error) {
	workspaces, err := s.Workspaces(path)
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	o, err := workspaces.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{FieldManager: UserAgent})
	if err != nil {
		return nil, err
	}
	return workspaceOf(o)
}

// RetryAfter is the pause before a watch that has ended starts again.
const RetryAfter = time.Second

// Follow calls see with w and with each later state of w, until see reports done or ctx ends.
func (s *Server) Follow(ctx context.Context, path cluster.Path, w *tenancy.Workspace, see func(*tenancy.Workspace) (done bool, err error)) error {
	workspaces, err := s.Workspaces(path)
	if err != nil {
		return err
	}
	return Follow(ctx, workspaces, workspaceOf, w, see)
}

// Follow calls see with o and with each later state of o, until see reports done or ctx ends.
func Follow[T metav1.Object](ctx context.Context, objects dynamic.ResourceInterface, decode func(*unstructured.Unstructured) (T, error), o T, see func(T) (done bool, err error)) error {
	for {
		if done, err := see(o); done || err != nil {
			return err
		}
		changes, err := objects.Watch(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, o.GetName()).String(),
			ResourceVersion: o.GetResourceVersion(),
		})
		if err != nil {
			return err
		}
		_, err = watchtools.UntilWithoutRetry(ctx, changes, seeing(decode, see))
		if !errors.Is(err, watchtools.ErrWatchClosed) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			return err
		}
		select { // servers end watches regularly; a get covers the time between two watches
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(RetryAfter):
		}
		now, err := objects.Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if o, err = decode(now); err != nil {
			return err
		}
	}
}

// ErrDeleted ends the watch of an object that was deleted.
var ErrDeleted = errors.New("it was deleted")

// seeing returns a watch condition that calls see with each state of an object.
func seeing[T any](decode func(*unstructured.Unstructured) (T, error), see func(T) (done bool, err error)) watchtools.ConditionFunc {
	return func(event watch.Event) (bool, error) {
		o, ok := event.Object.(*unstructured.Unstructured)
		switch {
		case event.Type == watch.Error || !ok:
			return false, apierrors.FromObject(event.Object)
		case event.Type == watch.Deleted:
			return false, ErrDeleted
		}
		now, err := decode(o)
		if err != nil {
			return false, err
		}
		return see(now)
	}
}

// Missing reports whether the workspace at path is known not to exist, and returns the
// nearest workspace above it that does.
func (s *Server) Missing(ctx context.Context, path cluster.Path) (up cluster.Path, gone bool) {
	reach := s.Reach(ctx, path)
	if reach == nil {
		return "", false
	}
	if _, err := s.Object(ctx, path); !apierrors.IsNotFound(err) && !apierrors.IsNotFound(reach) {
		return "", false
	}
	for {
		var ok bool
		if up, _, ok = paths.Parent(path); !ok {
			return cluster.Path(cluster.Root), true
		}
		if s.Reach(ctx, up) == nil {
			return up, true
		}
		path = up
	}
}

// Reach sends the cheapest request to the cluster at path, and returns its error.
func (s *Server) Reach(ctx context.Context, path cluster.Path) error {
	client, err := discovery.NewDiscoveryClientForConfigAndClient(s.In(path), s.Client)
	if err != nil {
		return err
	}
	return client.RESTClient().Get().AbsPath("api").Do(ctx).Error()
}

// typeOf returns the type of the workspace at path from its LogicalCluster, or nothing if
// the user may not read that.
func (s *Server) typeOf(ctx context.Context, path cluster.Path) string {
	clusters, err := s.Objects(path, core.GroupVersion, "logicalclusters")
	if err != nil {
		return ""
	}
	o, err := clusters.Get(ctx, core.LogicalClusterName, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return o.GetAnnotations()[tenancy.TypeAnnotation]
}

func workspaceOf(o *unstructured.Unstructured) (*tenancy.Workspace, error) {
	w := &tenancy.Workspace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, w); err != nil {
		return nil, fmt.Errorf("cannot decode workspace %q: %w", o.GetName(), err)
	}
	return w, nil
}

// TypeName returns the type of w in the form path:name.
func TypeName(w *tenancy.Workspace) string {
	switch t := w.Spec.Type; {
	case t == nil:
		return ""
	case t.Path == "":
		return t.Name
	default:
		return t.Path + ":" + t.Name
	}
}
