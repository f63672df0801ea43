package view

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// LifecycleConfig holds the dependencies of the views of initializers and terminators. All
// fields are required.
type LifecycleConfig struct {
	// Guard authorizes the use of a view, and Authorizer requests in a cluster.
	Guard, Authorizer authorizer.Authorizer
	// LogicalCluster returns the current LogicalCluster of a cluster, nil if there is none.
	LogicalCluster func(context.Context, cluster.Name) (*core.LogicalCluster, error)
	// Permissions returns the rules that a WorkspaceType grants to its initializer and its
	// terminator.
	Permissions func(ctx context.Context, c cluster.Name, name string) (initializer, terminator []rbacv1.PolicyRule, err error)
	// Discovery describes the LogicalClusters of a view.
	Discovery http.Handler
}

// Lifecycles are the views of initializers and terminators.
type Lifecycles struct {
	config  LifecycleConfig
	watches openWatches
	members *members // nil until Follow
}

// NewLifecycles returns the views. Call Follow before the first request.
func NewLifecycles(c LifecycleConfig) *Lifecycles {
	return &Lifecycles{config: c, watches: newOpenWatches()}
}

// Views returns the views.
func (l *Lifecycles) Views() []View {
	return []View{&lifecycle{Lifecycles: l, side: initializing()}, &lifecycle{Lifecycles: l, side: terminating()}}
}

// Follow makes the views follow the tree. Call it before the change feed starts, and after
// the tree has been added to it.
func (l *Lifecycles) Follow(f *feed.Feed, t *tree.Tree) {
	l.members = newMembers(f, t)
	t.OnCluster(l.watches.changed)
}

// A lifecycle is a view of the clusters that wait in one phase for an initializer or a
// terminator. It serves their LogicalClusters together, and the content of each. It belongs
// to a WorkspaceType.
type lifecycle struct {
	*Lifecycles
	side
}

// A side has the differences between the views of initializers and terminators.
type side struct {
	name  string // in paths
	verb  string // on the WorkspaceType, which allows using the view
	phase core.Phase
	list  string // field of the status with the unfinished names
	group string // prefix of the group of users of the view
	label func(id string) (key, value string)
	left  func(*core.LogicalCluster) []string
	// permissions chooses from those that a type grants.
	permissions func(initializer, terminator []rbacv1.PolicyRule) []rbacv1.PolicyRule
}

// Name implements [View].
func (l *lifecycle) Name() string { return l.name }

// Parse implements [View].
func (l *lifecycle) Parse(rest string) (*Request, error) {
	id, rest, _ := strings.Cut(rest, "/")
	word, rest, found := strings.Cut(rest, "/")
	at, path, _ := strings.Cut(rest, "/")
	if id == "" || !found || word != "clusters" || at == "" {
		return nil, notFound(fmt.Sprintf("the path of this view is %s%s/<logical cluster>:<workspace type>/clusters/<name or *>/…", Prefix, l.name))
	}
	home, _ := splitID(id)
	return newRequest(home, id, at, path), nil
}

// splitID returns the cluster and the name of the WorkspaceType of an initializer or
// terminator.
func splitID(id string) (home, kind string) {
	if i := strings.LastIndexByte(id, ':'); i >= 0 {
		return id[:i], id[i+1:]
	}
	return "", ""
}

// Plan implements [View].
func (l *lifecycle) Plan(req *http.Request, r *Request) (*Plan, error) {
	ctx := req.Context()
	u, info, err := requestOf(ctx)
	if err != nil {
		return nil, err
	}
	_, kind := splitID(r.ID)
	guard := authorizer.AttributesRecord{
		User: u, Verb: l.verb, APIGroup: tenancyapi.GroupVersion.Group, APIVersion: tenancyapi.GroupVersion.Version,
		Resource: "workspacetypes", Name: kind, ResourceRequest: true,
	}
	if err := authorize(ctx, l.config.Guard, guard); err != nil {
		return nil, err
	}
	plan := l.content
	switch {
	case r.Cluster == cluster.All:
		plan = l.everywhere
	case info.IsResourceRequest && info.APIGroup == logicalClusters.Group && info.Resource == logicalClusters.Resource && info.APIVersion == core.GroupVersion.Version:
		plan = l.logicalCluster
	}
	p, err := plan(req, r, info, u)
	if err == nil {
		p.Reason = "the user may " + l.verb + " " + r.ID
	}
	return p, err
}

var logicalClusters = schema.GroupResource{Group: core.GroupVersion.Group, Resource: "logicalclusters"}

// everywhere plans a request for all clusters of a view. It can only read LogicalClusters.
func (l *lifecycle) everywhere(req *http.Request, r *Request, info *request.RequestInfo, u user.Info) (*Plan, error) {
	switch {
	case !info.IsResourceRequest:
		return &Plan{User: u, Page: l.config.Discovery}, nil
	case info.APIGroup != logicalClusters.Group || info.Resource != logicalClusters.Resource || info.APIVersion != core.GroupVersion.Version:
		return nil, notFound("of all logical clusters at once this view has nothing but logicalclusters." + logicalClusters.Group)
	}
	if err := onlyReads(req, info, logicalClusters); err != nil {
		return nil, err
	}
	return &Plan{User: u, Scope: func() (registry.Scope, func()) {
		set, done := l.members.Use(group{l.phase, r.ID})
		return registry.Scope{Set: set}, done
	}}, nil
}

// filter adds the label selector of the view to a query.
func (l *lifecycle) filter(r *Request, query url.Values) (url.Values, error) {
	key, value := l.label(r.ID)
	return selecting(query, labels.Set{key: value, core.PhaseLabel: string(l.phase)})
}

// logicalCluster plans a request for the LogicalCluster of one cluster. It can read it, and
// remove the finished name from its status.
func (l *lifecycle) logicalCluster(req *http.Request, r *Request, info *request.RequestInfo, u user.Info) (*Plan, error) {
	writes := info.Verb == "update" || info.Verb == "patch"
	switch {
	case info.Subresource == "" && (info.Verb == "list" || info.Verb == "watch") && info.Name == "":
		query, err := l.filter(r, req.URL.Query())
		return &Plan{User: u, Query: query}, err
	case info.Subresource == "status" && writes, info.Subresource == "" && info.Verb == "watch", info.Verb == "get" && (info.Subresource == "" || info.Subresource == "status"):
	default:
		return nil, apierrors.NewMethodNotSupported(logicalClusters, info.Verb)
	}
	member, err := l.member(req.Context(), r)
	if err != nil {
		return nil, err
	}
	if member == nil || info.Name != core.LogicalClusterName {
		return nil, apierrors.NewNotFound(logicalClusters, info.Name)
	}
	p := &Plan{User: u}
	if writes {
		p.Context = withValue(unchanged, func(ctx context.Context) context.Context {
			return admit.WithFinish(ctx, admit.Finish{Field: l.list, Name: r.ID})
		})
	} else if info.Verb == "watch" {
		p.Context = l.whileMember(info, r)
	}
	return p, nil
}

// content plans any other request in one cluster: with the permissions that the type
// grants, or else as the creator of the workspace.
func (l *lifecycle) content(req *http.Request, r *Request, info *request.RequestInfo, u user.Info) (*Plan, error) {
	ctx := req.Context()
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	member, err := l.member(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case member == nil:
		return nil, &Refusal{attributes, authz.Denied}
	case !info.IsResourceRequest && !describes(info.Path):
		return nil, notFound("a view has what is in a logical cluster, and nothing of the server itself")
	}
	_, kind := splitID(r.ID)
	rules, err := l.rules(ctx, r, kind)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("permissions of workspace type %s: %w", kind, err))
	}
	p := &Plan{}
	if len(rules) > 0 {
		grant := &authz.Grant{Cluster: r.Cluster, Group: l.group + r.ID, Rules: rules}
		p.User = grant.Holder(u)
		p.Context = withGrant(l.whileMember(info, r), grant)
		if info.IsResourceRequest && !grant.Allows(attributes) {
			return nil, &Refusal{attributes, fmt.Sprintf("not among the permissions that workspace type %s has for %s", kind, l.list)}
		}
		return p, nil
	}
	creator, err := l.asCreator(ctx, r, member, attributes)
	if err != nil {
		return nil, err
	}
	p.User = auth.Within(r.Cluster, creator)
	p.Context = withValue(l.whileMember(info, r), func(ctx context.Context) context.Context { return tenancy.WithCreator(ctx, creator) })
	audit.LogImpersonatedUser(ctx, p.User, "")
	return p, nil
}

// whileMember returns the entry of a request in a cluster. A watch ends when the cluster leaves the view.
func (l *lifecycle) whileMember(info *request.RequestInfo, r *Request) entry {
	return l.watches.while(info, func(ctx context.Context) bool {
		member, err := l.member(ctx, r)
		return err == nil && member != nil
	}, r.Cluster)
}

// asCreator returns the creator of a cluster, if they may make the request there. Their
// rights in other clusters do not count.
func (l *lifecycle) asCreator(ctx context.Context, r *Request, member *core.LogicalCluster, a authorizer.Attributes) (user.Info, error) {
	by := member.Spec.CreatedBy
	if by == nil || by.Username == "" {
		_, kind := splitID(r.ID)
		return nil, &Refusal{a, fmt.Sprintf("the creator of this workspace is unknown, and workspace type %s has no permissions for %s: add permissions to the type", kind, l.list)}
	}
	creator := auth.Unprivileged(&user.DefaultInfo{Name: by.Username, UID: by.UID, Groups: by.Groups, Extra: by.Extra})
	as := authz.As(a, auth.Within(r.Cluster, creator))
	if err := authorize(cluster.With(ctx, r.Cluster), l.config.Authorizer, as); err != nil {
		return nil, err
	}
	return creator, nil
}

// rules returns the rules that the type of a view grants, and the rule to enter.
func (l *lifecycle) rules(ctx context.Context, r *Request, kind string) ([]rbacv1.PolicyRule, error) {
	initializer, terminator, err := l.config.Permissions(ctx, r.Home, kind)
	rules := l.permissions(initializer, terminator)
	if err != nil || len(rules) == 0 {
		return nil, err
	}
	return append(slices.Clone(rules), authz.AccessRule()), nil
}

// member returns the LogicalCluster of a request, nil if it is not in the view.
func (l *lifecycle) member(ctx context.Context, r *Request) (*core.LogicalCluster, error) {
	member, err := l.config.LogicalCluster(ctx, r.Cluster)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("look up the LogicalCluster: %w", err))
	}
	if member == nil || member.Status.Phase != l.phase || !slices.Contains(l.left(member), r.ID) {
		return nil, nil
	}
	return member, nil
}
