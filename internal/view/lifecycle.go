package view

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// A lifecycle is a view of the clusters that wait in one phase for an initializer or a
// terminator. It serves their LogicalClusters together, and the content of each. It belongs
// to a WorkspaceType.
type lifecycle struct {
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

func texts[T ~string](all []T) []string {
	out := make([]string, len(all))
	for i, t := range all {
		out[i] = string(t)
	}
	return out
}

// parse reads the part of a path after the name of the view.
func (l *lifecycle) parse(rest string) (*Request, error) {
	id, rest, _ := strings.Cut(rest, "/")
	word, rest, found := strings.Cut(rest, "/")
	at, path, _ := strings.Cut(rest, "/")
	if id == "" || !found || word != "clusters" || at == "" {
		return nil, notFound(fmt.Sprintf("the path of this view is %s%s/<logical cluster>:<workspace type>/clusters/<name or *>/…", Prefix, l.name))
	}
	r := &Request{view: l, id: id, Cluster: cluster.Name(at), Path: "/" + path}
	home := ""
	if i := strings.LastIndexByte(id, ':'); i >= 0 {
		home, r.kind = id[:i], id[i+1:]
	}
	// An invalid owner gives the same answer as a view of another owner.
	var err error
	if r.Home, err = cluster.ParseName(home); err != nil {
		r.Home = cluster.NewName()
	}
	if r.Cluster != cluster.All {
		if _, err := cluster.ParseName(at); err != nil {
			r.Cluster = cluster.NewName() // paths lead nowhere in a view
		}
	}
	return r, nil
}

// plan decides whether a request for a view is allowed, and how it is served.
func (v *Views) plan(req *http.Request, r *Request) (*plan, error) {
	ctx := req.Context()
	u, known := request.UserFrom(ctx)
	info, ok := request.RequestInfoFrom(ctx)
	if !known || !ok {
		return nil, apierrors.NewInternalError(errors.New("a request for a view without a user"))
	}
	guard := authorizer.AttributesRecord{
		User: u, Verb: r.view.verb, APIGroup: tenancyapi.GroupVersion.Group, APIVersion: tenancyapi.GroupVersion.Version,
		Resource: "workspacetypes", Name: r.kind, ResourceRequest: true,
	}
	if decision, reason, err := v.config.Guard.Authorize(ctx, guard); decision != authorizer.DecisionAllow {
		return nil, errors.Join(&refusal{guard, reason}, err)
	}
	lc := info.IsResourceRequest && info.APIGroup == core.GroupVersion.Group && info.Resource == "logicalclusters"
	switch {
	case r.Cluster == cluster.All:
		return v.everywhere(req, r, info, u)
	case lc && info.APIVersion == core.GroupVersion.Version:
		return v.logicalCluster(req, r, info, u)
	default:
		return v.content(req, r, info, u)
	}
}

var logicalClusters = schema.GroupResource{Group: core.GroupVersion.Group, Resource: "logicalclusters"}

// everywhere plans a request for all clusters of a view. It can only read LogicalClusters.
func (v *Views) everywhere(req *http.Request, r *Request, info *request.RequestInfo, u user.Info) (*plan, error) {
	switch {
	case !info.IsResourceRequest:
		return &plan{user: u, page: v.config.Discovery}, nil
	case info.APIGroup != logicalClusters.Group || info.Resource != logicalClusters.Resource || info.APIVersion != core.GroupVersion.Version:
		return nil, notFound("of all logical clusters at once this view has nothing but logicalclusters." + logicalClusters.Group)
	case info.Verb != "list" && info.Verb != "watch" || info.Subresource != "" || req.Method != http.MethodGet:
		err := apierrors.NewMethodNotSupported(logicalClusters, info.Verb)
		err.ErrStatus.Message = info.Verb + " is not possible in all logical clusters at once: only list and watch are in the `*` logical cluster"
		return nil, err
	case IsSet(req, "sendInitialEvents"):
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{
			field.Forbidden(field.NewPath("sendInitialEvents"), "not possible in the `*` logical cluster; list, and then watch")})
	}
	query, err := r.filter(req.URL.Query())
	return &plan{user: u, query: query}, err
}

// IsSet reads a parameter as Kubernetes does: anything but 0 and false sets it.
func IsSet(req *http.Request, parameter string) bool {
	values, ok := req.URL.Query()[parameter]
	return ok && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// filter adds the label selector of the view to a query.
func (r *Request) filter(query url.Values) (url.Values, error) {
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("labelSelector %q: %v", query.Get("labelSelector"), err))
	}
	key, value := r.view.label(r.id)
	also, _ := labels.SelectorFromSet(labels.Set{key: value, core.PhaseLabel: string(r.view.phase)}).Requirements()
	query.Set("labelSelector", selector.Add(also...).String())
	return query, nil
}

// logicalCluster plans a request for the LogicalCluster of one cluster. It can read it, and
// remove the finished name from its status.
func (v *Views) logicalCluster(req *http.Request, r *Request, info *request.RequestInfo, u user.Info) (*plan, error) {
	writes := info.Verb == "update" || info.Verb == "patch"
	switch {
	case info.Subresource == "" && (info.Verb == "list" || info.Verb == "watch") && info.Name == "":
		query, err := r.filter(req.URL.Query())
		return &plan{user: u, query: query}, err
	case info.Subresource == "status" && writes, info.Subresource == "" && info.Verb == "watch", info.Verb == "get" && (info.Subresource == "" || info.Subresource == "status"):
	default:
		return nil, apierrors.NewMethodNotSupported(logicalClusters, info.Verb)
	}
	l, err := v.member(req.Context(), r)
	if err != nil {
		return nil, err
	}
	if l == nil || info.Name != core.LogicalClusterName {
		return nil, apierrors.NewNotFound(logicalClusters, info.Name)
	}
	p := &plan{user: u, lasts: info.Verb == "watch"}
	if writes {
		p.finish = &admit.Finish{Field: r.view.list, Name: r.id}
	}
	return p, nil
}

// content plans any other request in one cluster: with the permissions that the type
// grants, or else as the creator of the workspace.
func (v *Views) content(req *http.Request, r *Request, info *request.RequestInfo, u user.Info) (*plan, error) {
	ctx := req.Context()
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	l, err := v.member(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case l == nil:
		return nil, &refusal{attributes, auth.Denied}
	case !info.IsResourceRequest && !describes(info.Path):
		return nil, notFound("a view has what is in a logical cluster, and nothing of the server itself")
	}
	rules, err := v.rules(ctx, r)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("permissions of workspace type %s: %w", r.kind, err))
	}
	p := &plan{lasts: info.Verb == "watch"}
	if len(rules) > 0 {
		p.grant = &auth.Grant{Cluster: r.Cluster, Group: r.view.group + r.id, Rules: rules}
		who := auth.SeenFrom(r.Cluster, u)
		p.user = &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Extra: who.GetExtra(), Groups: append(slices.Clone(who.GetGroups()), p.grant.Group)}
		if info.IsResourceRequest && !p.grant.Allows(attributes) {
			return nil, &refusal{attributes, fmt.Sprintf("not among the permissions that workspace type %s has for %s", r.kind, r.view.list)}
		}
		return p, nil
	}
	if p.creator, err = v.asCreator(ctx, r, l, attributes); err != nil {
		return nil, err
	}
	p.user = auth.Within(r.Cluster, p.creator)
	audit.LogImpersonatedUser(ctx, p.user, "")
	return p, nil
}

// asCreator returns the creator of a cluster, if they may make the request there. Their
// rights in other clusters do not count.
func (v *Views) asCreator(ctx context.Context, r *Request, l *core.LogicalCluster, a authorizer.Attributes) (user.Info, error) {
	by := l.Spec.CreatedBy
	if by == nil || by.Username == "" {
		return nil, &refusal{a, fmt.Sprintf("nobody is known to have made this workspace, and workspace type %s has no permissions for %s: add them", r.kind, r.view.list)}
	}
	creator := auth.Unprivileged(&user.DefaultInfo{Name: by.Username, UID: by.UID, Groups: by.Groups, Extra: by.Extra})
	as := asUser{a, auth.Within(r.Cluster, creator)}
	if decision, reason, err := v.config.Authorizer.Authorize(cluster.With(ctx, r.Cluster), as); decision != authorizer.DecisionAllow {
		return nil, errors.Join(&refusal{as, reason}, err)
	}
	return creator, nil
}

// asUser are the attributes of a request with another user.
type asUser struct {
	authorizer.Attributes
	user user.Info
}

func (a asUser) GetUser() user.Info { return a.user }

// describes reports whether a path describes the APIs of a cluster.
func describes(path string) bool {
	first, rest, _ := strings.Cut(strings.Trim(path, "/"), "/")
	switch first {
	case "api", "apis", "openapi":
		return true
	case "version":
		return rest == ""
	}
	return false
}

// rules returns the rules that the type of a view grants, and the rule to enter.
func (v *Views) rules(ctx context.Context, r *Request) ([]rbacv1.PolicyRule, error) {
	initializer, terminator, err := v.config.Permissions(ctx, r.Home, r.kind)
	rules := r.view.permissions(initializer, terminator)
	if err != nil || len(rules) == 0 {
		return nil, err
	}
	return append(slices.Clone(rules), rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}), nil
}

// member returns the LogicalCluster of a request, nil if it is not in the view.
func (v *Views) member(ctx context.Context, r *Request) (*core.LogicalCluster, error) {
	l, err := v.config.LogicalCluster(ctx, r.Cluster)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("look up the LogicalCluster: %w", err))
	}
	if l == nil || l.Status.Phase != r.view.phase || !slices.Contains(r.view.left(l), r.id) {
		return nil, nil
	}
	return l, nil
}

// has reports whether the cluster of a request is in the view.
func (v *Views) has(ctx context.Context, r *Request) bool {
	l, err := v.member(ctx, r)
	return err == nil && l != nil
}
