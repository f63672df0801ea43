package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/restmapper"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// A facts is everything that the user may know about a workspace.
type facts struct {
	at      kubeconfig.Place
	told    *tenancy.WorkspaceExplanation // the server's own explanation; nil if it gives none
	untold  error                         // why told is nil
	user    *authenticationv1.UserInfo
	object  *tenancy.Workspace   // in the parent; nil if the user may not read it
	cluster *core.LogicalCluster // in the workspace itself; nil if the user may not read it
	lookup  error                // why object is nil
	reach   error                // why the workspace does not answer
	rights  []string
	remark  string // a note about the inquiry
}

// investigate collects the facts about the workspace at the base of s. It fails if the
// server does not answer, or does not answer the inquiry.
func investigate(ctx context.Context, s *remote.Server, q inquiry) (*facts, error) {
	path := s.Base.Path
	f := &facts{at: s.Base}
	q, f.remark = resolved(s, q)
	var told tenancy.WorkspaceExplanation
	if f.untold = s.Ask(ctx, remote.ExplainService, q.query(path), &told); f.untold == nil {
		f.told = &told
	} else if q.particular() {
		return nil, remote.About(path, "cannot explain workspace %q: %w", path, f.untold)
	}
	f.object, f.lookup = s.Object(ctx, path)
	f.reach = s.Reach(ctx, path)
	for _, err := range []error{f.lookup, f.reach} {
		var status apierrors.APIStatus
		if err != nil && !errors.As(err, &status) || apierrors.IsUnauthorized(err) {
			return nil, remote.About(path, "cannot explain workspace %q: %w", path, err)
		}
	}
	f.user = whoami(ctx, s, path)
	if f.reach != nil || q.particular() {
		return f, nil
	}
	if o, err := s.LogicalCluster(ctx, path); err == nil {
		f.cluster = o
	}
	var err error
	if f.rights, err = rights(ctx, s, path); err != nil {
		return nil, remote.About(path, "cannot list your permissions in workspace %q: %w", path, err)
	}
	return f, nil
}

// An inquiry is the user and the request that the server is to explain.
type inquiry struct {
	user           string
	groups         []string
	verb, resource string
	namespace      string
}

// particular reports whether only the server's own explanation answers q.
func (q inquiry) particular() bool { return q.user != "" || len(q.groups) > 0 || q.verb != "" }

// query returns q as the query of a request.
func (q inquiry) query(path cluster.Path) url.Values {
	v := url.Values{"workspace": {string(path)}}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("user", q.user)
	if len(q.groups) > 0 {
		v["group"] = q.groups
	}
	set("verb", q.verb)
	if strings.HasPrefix(q.resource, "/") {
		set("path", q.resource)
		return v
	}
	resource, name, _ := strings.Cut(q.resource, "/")
	of := schema.ParseGroupResource(resource)
	set("resource", of.Resource)
	set("apiGroup", of.Group)
	set("name", name)
	set("namespace", q.namespace)
	return v
}

// resolved replaces the resource of q, which may be a kind, a singular or a short name as
// kubectl accepts it, by its name in the API. The remark is a note if the workspace has no
// such resource: roles may name it all the same. Without access to discovery, q stays as
// it is.
func resolved(s *remote.Server, q inquiry) (_ inquiry, remark string) {
	if q.resource == "" || strings.HasPrefix(q.resource, "/") {
		return q, ""
	}
	client, err := discovery.NewDiscoveryClientForConfigAndClient(s.In(s.Base.Path), s.Client)
	if err != nil {
		return q, ""
	}
	known := memory.NewMemCacheClient(client)
	if groups, err := known.ServerGroups(); err != nil || len(groups.Groups) == 0 {
		return q, ""
	}
	kind, name, named := strings.Cut(q.resource, "/")
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(known), known, nil)
	of, err := mapper.ResourceFor(schema.ParseGroupResource(strings.ToLower(kind)).WithVersion(""))
	if meta.IsNoMatchError(err) && kind != "*" {
		return q, fmt.Sprintf("note: the workspace has no resource type %q", kind)
	}
	if err != nil {
		return q, ""
	}
	if q.resource = of.GroupResource().String(); named {
		q.resource += "/" + name
	}
	return q, ""
}

// whoami returns the user as the server authenticates them. It asks in the first cluster
// on the way up that the user may enter.
func whoami(ctx context.Context, s *remote.Server, path cluster.Path) *authenticationv1.UserInfo {
	for up, ok := path, true; ok; up, _, ok = paths.Parent(up) {
		client, err := authenticationclient.NewForConfigAndClient(s.In(up), s.Client)
		if err != nil {
			return nil
		}
		review, err := client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil {
			return &review.Status.UserInfo
		}
	}
	return nil
}

// rights describes what the user may do in the workspace at path.
func rights(ctx context.Context, s *remote.Server, path cluster.Path) ([]string, error) {
	client, err := authorizationclient.NewForConfigAndClient(s.In(path), s.Client)
	if err != nil {
		return nil, err
	}
	may := []string{"enter it"}
	for _, q := range []struct {
		words string
		asks  authorizationv1.ResourceAttributes
	}{
		{"read objects such as config maps", authorizationv1.ResourceAttributes{Verb: "list", Resource: "configmaps"}},
		{"change objects such as config maps", authorizationv1.ResourceAttributes{Verb: "update", Resource: "configmaps"}},
		{"read secrets", authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"}},
		{"create workspaces in it", authorizationv1.ResourceAttributes{Verb: "create", Group: "tenancy.kcp.io", Resource: "workspaces"}},
		{"share it", authorizationv1.ResourceAttributes{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}},
		{"do everything", authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"}},
	} {
		review, err := client.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &q.asks},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if review.Status.Allowed {
			may = append(may, q.words)
		}
	}
	return may, nil
}
