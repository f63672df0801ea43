package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// Paths of requests that concern more than one cluster.
const (
	ReachableService = "/services/reachableworkspaces"
	ExplainService   = "/services/explainworkspace"
	inheritedService = "/services/inheritedbindings"
	ExportsService   = "/services/bindableexports"
	CheckService     = "/services/apiexportcheck" // followed by the cluster and name of an export
)

// Ask sends a request that is for no particular cluster, and decodes the answer.
func (s *Server) Ask(ctx context.Context, service string, query url.Values, into any) error {
	client, err := s.Clusterless()
	if err != nil {
		return err
	}
	request := client.Get().AbsPath(service)
	for name, values := range query {
		for _, value := range values {
			request = request.Param(name, value)
		}
	}
	return receive(ctx, service, request, into)
}

// Post sends a value in JSON in a request that is for no particular cluster, and decodes the answer.
func (s *Server) Post(ctx context.Context, service string, value, into any) error {
	client, err := s.Clusterless()
	if err != nil {
		return err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return receive(ctx, service, client.Post().AbsPath(service).SetHeader("Content-Type", "application/json").Body(text), into)
}

// Clusterless returns a client of the server, and of no cluster.
func (s *Server) Clusterless() (rest.Interface, error) {
	config := rest.CopyConfig(s.Config)
	config.Host = s.Base.Server
	client, err := discovery.NewDiscoveryClientForConfigAndClient(config, s.Client)
	if err != nil {
		return nil, err
	}
	return client.RESTClient(), nil
}

// receive sends a request and decodes the answer.
func receive(ctx context.Context, service string, request *rest.Request, into any) error {
	result := request.Do(ctx)
	if err := result.Error(); err != nil { // unlike the error of Raw, it has the server's message
		return err
	}
	text, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot decode the server's answer at %s: %w", service, err)
	}
	return nil
}

// Reachable returns all workspaces that the user may enter, at any depth.
func (s *Server) Reachable(ctx context.Context) ([]*tenancy.Workspace, error) {
	var all []*tenancy.Workspace
	for next := ""; ; {
		query := url.Values{}
		if next != "" {
			query.Set("continue", next)
		}
		var page tenancy.WorkspaceList
		if err := s.Ask(ctx, ReachableService, query, &page); err != nil {
			return nil, err
		}
		for i := range page.Items {
			all = append(all, &page.Items[i])
		}
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

// InheritedBindings returns the bindings in clusters above path that also hold at path.
// Each has the path of its own cluster in its annotations.
func (s *Server) InheritedBindings(ctx context.Context, path cluster.Path) ([]rbacv1.ClusterRoleBinding, error) {
	var list rbacv1.ClusterRoleBindingList
	err := s.Ask(ctx, inheritedService, url.Values{"workspace": {string(path)}}, &list)
	return list.Items, err
}

// PathOf returns the path of an object's cluster.
func PathOf(annotations map[string]string) string { return annotations[core.PathAnnotation] }
