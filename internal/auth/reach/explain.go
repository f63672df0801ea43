package reach

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/observe/record"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// explain returns the state of a workspace, and the authorization decision on a request
// to it.
func (q *Queries) explain(req *http.Request, u user.Info) (any, error) {
	query := req.URL.Query()
	ctx := q.Authorizer.Settle(req.Context())
	c, root, err := q.clusterOf(ctx, query.Get("workspace"), u)
	if err != nil {
		return nil, err
	}
	subject, err := q.subjectOf(ctx, c, query, u)
	if err != nil {
		return nil, err
	}
	path := q.Workspaces.Tree.PathOf(c)
	workspace, _ := q.Workspaces.Tree.Child(root.Parent, root.Name)
	e := &tenancyapi.WorkspaceExplanation{
		TypeMeta: metav1.TypeMeta{APIVersion: tenancyapi.GroupVersion.String(), Kind: "WorkspaceExplanation"},
		Path:     string(path), Cluster: string(c), URL: q.urlOf(path), Phase: q.phaseAt(path, root), Deleting: root.Ending || workspace.Ending,
	}
	if q.seesWorkspace(ctx, root, u) || q.Authorizer.Allows(ctx, c, ofLogicalCluster(u)) {
		if e.Obstacles, err = q.obstacles(ctx, c, root); err != nil {
			return nil, err
		}
	}
	e.Access = q.explainAccess(ctx, c, subject, query)
	return e, nil
}

// clusterOf returns the cluster that a query names. Users who may neither enter the cluster
// nor get its Workspace receive the same error as for one that does not exist.
func (q *Queries) clusterOf(ctx context.Context, at string, u user.Info) (cluster.Name, tree.Root, error) {
	if at == "" {
		return "", tree.Root{}, apierrors.NewBadRequest("no workspace is named; add ?workspace= and its path or the name of its logical cluster")
	}
	p, err := edge.ParsePath(at)
	if err != nil {
		return "", tree.Root{}, apierrors.NewBadRequest(err.Error())
	}
	workspaces := tenancyapi.GroupVersion.WithResource("workspaces").GroupResource()
	c, missing := q.Workspaces.Tree.Resolve(ctx, p)
	if missing != "" {
		if q.Authorizer.Allows(ctx, c, ofWorkspace(u, missing)) {
			return "", tree.Root{}, apierrors.NewNotFound(workspaces, at)
		}
	} else if root, ok := q.Workspaces.Tree.Cluster(c); ok && !c.System() && (q.Authorizer.Enters(ctx, c, u) || q.seesWorkspace(ctx, root, u)) {
		return c, root, nil
	}
	return "", tree.Root{}, apierrors.NewForbidden(workspaces, at, errors.New("there is no such workspace, or you may not enter it; ask its administrators to share it with you"))
}

func ofWorkspace(u user.Info, name string) authorizer.AttributesRecord {
	gv := tenancyapi.GroupVersion
	return authorizer.AttributesRecord{User: u, Verb: "get", APIGroup: gv.Group, APIVersion: gv.Version, Resource: "workspaces", Name: name, ResourceRequest: true}
}

func ofLogicalCluster(u user.Info) authorizer.AttributesRecord {
	gv := core.GroupVersion
	return authorizer.AttributesRecord{User: u, Verb: "get", APIGroup: gv.Group, APIVersion: gv.Version, Resource: "logicalclusters", Name: core.LogicalClusterName, ResourceRequest: true}
}

func (q *Queries) seesWorkspace(ctx context.Context, root tree.Root, u user.Info) bool {
	return root.Parent != "" && q.Authorizer.Allows(ctx, root.Parent, ofWorkspace(u, root.Name))
}

// subjectOf returns the user whose access is explained: the user in the query, or else u.
// Another user needs the right to create subjectaccessreviews in the cluster.
func (q *Queries) subjectOf(ctx context.Context, c cluster.Name, query url.Values, u user.Info) (user.Info, error) {
	if !query.Has("user") && !query.Has("group") {
		return u, nil
	}
	reviews := authorizer.AttributesRecord{User: u, Verb: "create", APIGroup: "authorization.k8s.io", APIVersion: "v1", Resource: "subjectaccessreviews", ResourceRequest: true}
	if !q.Authorizer.Allows(ctx, c, reviews) {
		return nil, apierrors.NewForbidden(tenancyapi.GroupVersion.WithResource("workspaces").GroupResource(), query.Get("workspace"),
			errors.New("you may not ask about other users: that needs the right to create subjectaccessreviews in the workspace; ask about yourself"))
	}
	subject := &user.DefaultInfo{Name: query.Get("user"), Groups: query["group"]}
	if subject.Name != user.Anonymous && !slices.Contains(subject.Groups, user.AllAuthenticated) {
		subject.Groups = append(slices.Clone(subject.Groups), user.AllAuthenticated)
	}
	return subject, nil
}

// explainAccess returns the authorization decision on a request of u to cluster c. The
// query describes the request; the default is to enter the cluster.
func (q *Queries) explainAccess(ctx context.Context, c cluster.Name, u user.Info, query url.Values) tenancyapi.AccessExplanation {
	a := authorizer.AttributesRecord{User: u, Verb: "access", Path: "/"}
	words := []string{"access", "/"}
	switch {
	case query.Has("resource"):
		resource, sub, _ := strings.Cut(query.Get("resource"), "/")
		a = authorizer.AttributesRecord{
			User: u, Verb: cmp.Or(query.Get("verb"), "get"), APIGroup: query.Get("apiGroup"), APIVersion: "*", Resource: resource, Subresource: sub,
			Namespace: query.Get("namespace"), Name: query.Get("name"), ResourceRequest: true,
		}
		words = []string{a.Verb, query.Get("resource"), a.Name}
		if a.APIGroup != "" {
			words[1] += "." + a.APIGroup
		}
		if a.Namespace != "" {
			words = append(words, "in namespace "+a.Namespace)
		}
	case query.Has("path"):
		a = authorizer.AttributesRecord{User: u, Verb: cmp.Or(query.Get("verb"), "get"), Path: query.Get("path")}
		words = []string{a.Verb, a.Path}
	}
	e := tenancyapi.AccessExplanation{
		User: u.GetName(), Groups: u.GetGroups(), Request: strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "),
	}
	var reason string
	var steps []authz.Step
	e.Allowed, reason, steps = q.Authorizer.Explain(ctx, c, a)
	for _, step := range steps {
		e.Steps = append(e.Steps, tenancyapi.AccessStep{Name: step.Name, Decision: record.Word(step.Decision), Reason: step.Reason})
	}
	if !e.Allowed {
		e.Message = reason + "; " + remedy(steps)
	}
	return e
}

// remedy returns advice for a request that the last of the steps refused.
func remedy(steps []authz.Step) string {
	var last string
	if len(steps) > 0 {
		last = steps[len(steps)-1].Name
	}
	switch last {
	case authz.StepRequiredGroups:
		return "ask the operators of the server, or the administrators of your groups"
	case authz.StepContent:
		return "ask an administrator of the workspace to share it, as with kubectl ws share"
	default:
		return "ask an administrator of the workspace for a role that allows it"
	}
}

// obstacles reads a cluster and its Workspace, and returns their obstacles.
func (q *Queries) obstacles(ctx context.Context, c cluster.Name, root tree.Root) ([]tenancyapi.Obstacle, error) {
	l, w := &core.LogicalCluster{}, &tenancyapi.Workspace{}
	if _, err := q.Workspaces.Store.ReadInto(ctx, keys.Key{Resource: tree.LogicalClusters(), Cluster: c, Name: core.LogicalClusterName}, l); err != nil {
		return nil, err
	}
	if root.Parent != "" {
		if _, err := q.Workspaces.Store.ReadInto(ctx, keys.Key{Resource: q.Workspaces.Resource, Cluster: root.Parent, Name: root.Name}, w); err != nil {
			return nil, err
		}
	}
	return obstacles(l, w), nil
}

// obstacles returns the initializers, terminators, finalizers and conditions that delay a
// cluster and its Workspace. w is empty if there is no Workspace.
func obstacles(l *core.LogicalCluster, w *tenancyapi.Workspace) []tenancyapi.Obstacle {
	var all []tenancyapi.Obstacle
	const cluster, workspace = "LogicalCluster cluster", "Workspace "
	for _, name := range l.Status.Initializers {
		all = append(all, tenancyapi.Obstacle{Type: "Initializer", Name: string(name), Object: cluster,
			Message: "its controller has not finished; the workspace becomes ready when it has"})
	}
	deleting := l.DeletionTimestamp != nil || w.DeletionTimestamp != nil
	if deleting {
		for _, name := range l.Status.Terminators {
			all = append(all, tenancyapi.Obstacle{Type: "Terminator", Name: string(name), Object: cluster,
				Message: "its controller has not finished cleaning up"})
		}
		finalizers := func(object string, of []string) {
			for _, f := range of {
				if !slices.Contains([]string{core.LogicalClusterFinalizer, core.DeletionFinalizer, core.TerminatorsFinalizer}, f) {
					all = append(all, tenancyapi.Obstacle{Type: "Finalizer", Name: f, Object: object,
						Message: "the controller that added it has to remove it; if that controller no longer runs, remove it yourself"})
				}
			}
		}
		finalizers(cluster, l.Finalizers)
		finalizers(workspace+w.Name, w.Finalizers)
	}
	seen := map[string]bool{}
	for _, c := range append(slices.Clone(l.Status.Conditions), w.Status.Conditions...) {
		// Each initializer is an obstacle already.
		if c.Status == "True" || c.Type == core.WorkspaceInitialized && len(l.Status.Initializers) > 0 || seen[string(c.Type)] {
			continue
		}
		seen[string(c.Type)] = true
		all = append(all, tenancyapi.Obstacle{Type: string(c.Type), Name: c.Reason, Message: c.Message})
	}
	return all
}

// inherited lists the ClusterRoleBindings of ancestors that apply in a workspace.
func (q *Queries) inherited(req *http.Request, u user.Info) (any, error) {
	ctx := q.Authorizer.Settle(req.Context())
	c, _, err := q.clusterOf(ctx, req.URL.Query().Get("workspace"), u)
	if err != nil {
		return nil, err
	}
	gv := rbacv1.SchemeGroupVersion
	lists := authorizer.AttributesRecord{User: u, Verb: "list", APIGroup: gv.Group, APIVersion: gv.Version, Resource: "clusterrolebindings", ResourceRequest: true}
	if !q.Authorizer.Allows(ctx, c, lists) {
		return nil, apierrors.NewForbidden(rbacv1.Resource(lists.Resource), "", errors.New("that needs the right to list clusterrolebindings in the workspace; ask one of its administrators"))
	}
	list := &rbacv1.ClusterRoleBindingList{Items: []rbacv1.ClusterRoleBinding{}}
	list.SetGroupVersionKind(gv.WithKind("ClusterRoleBindingList"))
	for at, bindings := range q.Authorizer.Inherited(c) {
		for _, b := range bindings {
			shown := b.DeepCopy()
			shown.Annotations = map[string]string{core.ClusterAnnotation: string(at), core.PathAnnotation: string(q.Workspaces.Tree.PathOf(at))}
			list.Items = append(list.Items, *shown)
		}
	}
	return list, nil
}
