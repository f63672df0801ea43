package cli

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
	"github.com/unforked/kcp/internal/cluster"
)

const (
	userAgent = "kubectl-kcp"

	// pageSize is the number of workspaces per page of a list.
	pageSize = 500

	// home is the name of the user's own home workspace in the root.
	home = "~"
)

// A server sends requests to any cluster of the server of a session.
type server struct {
	base   place // what relative paths are relative to
	config *rest.Config
	client *http.Client
}

func (s *session) server() (*server, error) {
	config := rest.CopyConfig(s.rest)
	config.UserAgent = userAgent
	config.QPS = -1 // commands have few requests in flight, and the server is fair
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use context %q: %w", s.context, err)
	}
	return &server{s.here, config, client}, nil
}

// in returns the configuration of clients for the cluster at path.
func (s *server) in(path cluster.Path) *rest.Config {
	config := rest.CopyConfig(s.config)
	config.Host = s.base.at(path).URL()
	return config
}

// objects returns a client for a resource in the cluster at path.
func (s *server) objects(path cluster.Path, of schema.GroupVersion, resource string) (dynamic.ResourceInterface, error) {
	return s.resource(path, of.WithResource(resource))
}

// resource returns a client for a resource, with or without namespaces, in the cluster at path.
func (s *server) resource(path cluster.Path, of schema.GroupVersionResource) (dynamic.NamespaceableResourceInterface, error) {
	client, err := dynamic.NewForConfigAndClient(s.in(path), s.client)
	if err != nil {
		return nil, err
	}
	return client.Resource(of), nil
}

func (s *server) workspaces(path cluster.Path) (dynamic.ResourceInterface, error) {
	return s.objects(path, tenancy.GroupVersion, "workspaces")
}

// get returns the workspace of that name in the cluster at path.
func (s *server) get(ctx context.Context, path cluster.Path, name string) (*tenancy.Workspace, error) {
	workspaces, err := s.workspaces(path)
	if err != nil {
		return nil, err
	}
	o, err := workspaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return workspaceOf(o)
}

// list returns all workspaces in the cluster at path.
func (s *server) list(ctx context.Context, path cluster.Path) ([]*tenancy.Workspace, error) {
	workspaces, err := s.workspaces(path)
	if err != nil {
		return nil, err
	}
	var all []*tenancy.Workspace
	options := metav1.ListOptions{Limit: pageSize}
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

// create creates the workspace w in the cluster at path.
func (s *server) create(ctx context.Context, path cluster.Path, w *tenancy.Workspace) (*tenancy.Workspace, error) {
	workspaces, err := s.workspaces(path)
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	o, err := workspaces.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{FieldManager: userAgent})
	if err != nil {
		return nil, err
	}
	return workspaceOf(o)
}

// again is the pause before a watch that has ended starts again.
const again = time.Second

// follow calls see with w and with each later state of w, until see reports done or ctx ends.
func (s *server) follow(ctx context.Context, path cluster.Path, w *tenancy.Workspace, see func(*tenancy.Workspace) (done bool, err error)) error {
	workspaces, err := s.workspaces(path)
	if err != nil {
		return err
	}
	return follow(ctx, workspaces, workspaceOf, w, see)
}

// follow calls see with o and with each later state of o, until see reports done or ctx ends.
func follow[T metav1.Object](ctx context.Context, objects dynamic.ResourceInterface, decode func(*unstructured.Unstructured) (T, error), o T, see func(T) (done bool, err error)) error {
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
		case <-time.After(again):
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

// errDeleted ends the watch of an object that was deleted.
var errDeleted = errors.New("it was deleted")

// seeing returns a watch condition that calls see with each state of an object.
func seeing[T any](decode func(*unstructured.Unstructured) (T, error), see func(T) (done bool, err error)) watchtools.ConditionFunc {
	return func(event watch.Event) (bool, error) {
		o, ok := event.Object.(*unstructured.Unstructured)
		switch {
		case event.Type == watch.Error || !ok:
			return false, apierrors.FromObject(event.Object)
		case event.Type == watch.Deleted:
			return false, errDeleted
		}
		now, err := decode(o)
		if err != nil {
			return false, err
		}
		return see(now)
	}
}

// missing reports whether the workspace at path is known not to exist, and returns the
// nearest workspace above it that does.
func (s *server) missing(ctx context.Context, path cluster.Path) (up cluster.Path, gone bool) {
	reach := s.reach(ctx, path)
	if reach == nil {
		return "", false
	}
	if _, err := s.object(ctx, path); !apierrors.IsNotFound(err) && !apierrors.IsNotFound(reach) {
		return "", false
	}
	for {
		var ok bool
		if up, _, ok = parent(path); !ok {
			return cluster.Path(cluster.Root), true
		}
		if s.reach(ctx, up) == nil {
			return up, true
		}
		path = up
	}
}

// reach sends the cheapest request to the cluster at path, and returns its error.
func (s *server) reach(ctx context.Context, path cluster.Path) error {
	client, err := discovery.NewDiscoveryClientForConfigAndClient(s.in(path), s.client)
	if err != nil {
		return err
	}
	return client.RESTClient().Get().AbsPath("api").Do(ctx).Error()
}

// typeOf returns the type of the workspace at path from its LogicalCluster, or nothing if
// the user may not read that.
func (s *server) typeOf(ctx context.Context, path cluster.Path) string {
	clusters, err := s.objects(path, core.GroupVersion, "logicalclusters")
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

// typeName returns the type of w in the form path:name.
func typeName(w *tenancy.Workspace) string {
	switch t := w.Spec.Type; {
	case t == nil:
		return ""
	case t.Path == "":
		return t.Name
	default:
		return t.Path + ":" + t.Name
	}
}
