package server

import (
	"cmp"
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
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// explain says how a workspace is, and how a request to it would be decided.
func (s *Server) explain(req *http.Request, u user.Info) (any, error) {
	q := req.URL.Query()
	ctx := s.authz.Settle(req.Context())
	c, root, err := s.asked(ctx, q.Get("workspace"), u)
	if err != nil {
		return nil, err
	}
	subject, err := s.askedAbout(ctx, c, q, u)
	if err != nil {
		return nil, err
	}
	path := s.tree.PathOf(c)
	e := &tenancyapi.WorkspaceExplanation{
		TypeMeta: metav1.TypeMeta{APIVersion: tenancyapi.GroupVersion.String(), Kind: "WorkspaceExplanation"},
		Path:     string(path), Cluster: string(c), URL: s.urlOf(path), Phase: s.phaseAt(path, root), Deleting: root.Ending,
	}
	if s.seesWorkspace(ctx, root, u) || s.authz.Allows(ctx, c, ofLogicalCluster(u)) {
		if e.Obstacles, err = s.obstacles(ctx, c, root); err != nil {
			return nil, err
		}
	}
	e.Access = s.explainAccess(ctx, c, subject, q)
	return e, nil
}

// asked returns the cluster that is asked about. Who may neither enter it nor see its
// Workspace is told the same as if there were none.
func (s *Server) asked(ctx context.Context, at string, u user.Info) (cluster.Name, tenancy.Root, error) {
	if at == "" {
		return "", tenancy.Root{}, apierrors.NewBadRequest("which workspace? Add ?workspace= and its path or the name of its logical cluster")
	}
	p, err := parse(at)
	if err != nil {
		return "", tenancy.Root{}, apierrors.NewBadRequest(err.Error())
	}
	workspaces := tenancyapi.GroupVersion.WithResource("workspaces").GroupResource()
	c, missing := s.tree.Resolve(ctx, p)
	if missing != "" {
		if s.authz.Allows(ctx, c, ofWorkspace(u, missing)) {
			return "", tenancy.Root{}, apierrors.NewNotFound(workspaces, at)
		}
	} else if root, ok := s.tree.Cluster(c); ok && !c.System() && (s.authz.Enters(ctx, c, u) || s.seesWorkspace(ctx, root, u)) {
		return c, root, nil
	}
	return "", tenancy.Root{}, apierrors.NewForbidden(workspaces, at, errors.New("there is no such workspace, or you may not enter it; ask whoever administers it to share it with you"))
}

func ofWorkspace(u user.Info, name string) authorizer.AttributesRecord {
	gv := tenancyapi.GroupVersion
	return authorizer.AttributesRecord{User: u, Verb: "get", APIGroup: gv.Group, APIVersion: gv.Version, Resource: "workspaces", Name: name, ResourceRequest: true}
}

func ofLogicalCluster(u user.Info) authorizer.AttributesRecord {
	gv := core.GroupVersion
	return authorizer.AttributesRecord{User: u, Verb: "get", APIGroup: gv.Group, APIVersion: gv.Version, Resource: "logicalclusters", Name: core.LogicalClusterName, ResourceRequest: true}
}

func (s *Server) seesWorkspace(ctx context.Context, root tenancy.Root, u user.Info) bool {
	return root.Parent != "" && s.authz.Allows(ctx, root.Parent, ofWorkspace(u, root.Name))
}

// askedAbout returns whose access is asked about: that of whoever asks, or of somebody
// else if he may review the access of others.
func (s *Server) askedAbout(ctx context.Context, c cluster.Name, q url.Values, u user.Info) (user.Info, error) {
	if !q.Has("user") && !q.Has("group") {
		return u, nil
	}
	reviews := authorizer.AttributesRecord{User: u, Verb: "create", APIGroup: "authorization.k8s.io", APIVersion: "v1", Resource: "subjectaccessreviews", ResourceRequest: true}
	if !s.authz.Allows(ctx, c, reviews) {
		return nil, apierrors.NewForbidden(tenancyapi.GroupVersion.WithResource("workspaces").GroupResource(), q.Get("workspace"),
			errors.New("only who may create subjectaccessreviews in the workspace can ask about others; ask about yourself"))
	}
	subject := &user.DefaultInfo{Name: q.Get("user"), Groups: q["group"]}
	if subject.Name != user.Anonymous && !slices.Contains(subject.Groups, user.AllAuthenticated) {
		subject.Groups = append(slices.Clone(subject.Groups), user.AllAuthenticated)
	}
	return subject, nil
}

// explainAccess says how a request of u to cluster c would be decided: the one that
// the query describes, or to enter.
func (s *Server) explainAccess(ctx context.Context, c cluster.Name, u user.Info, q url.Values) tenancyapi.AccessExplanation {
	a := authorizer.AttributesRecord{User: u, Verb: "access", Path: "/"}
	words := []string{"access", "/"}
	switch {
	case q.Has("resource"):
		resource, sub, _ := strings.Cut(q.Get("resource"), "/")
		a = authorizer.AttributesRecord{
			User: u, Verb: cmp.Or(q.Get("verb"), "get"), APIGroup: q.Get("apiGroup"), APIVersion: "*", Resource: resource, Subresource: sub,
			Namespace: q.Get("namespace"), Name: q.Get("name"), ResourceRequest: true,
		}
		words = []string{a.Verb, q.Get("resource"), a.Name}
		if a.APIGroup != "" {
			words[1] += "." + a.APIGroup
		}
		if a.Namespace != "" {
			words = append(words, "in namespace "+a.Namespace)
		}
	case q.Has("path"):
		a = authorizer.AttributesRecord{User: u, Verb: cmp.Or(q.Get("verb"), "get"), Path: q.Get("path")}
		words = []string{a.Verb, a.Path}
	}
	e := tenancyapi.AccessExplanation{
		User: u.GetName(), Groups: u.GetGroups(), Request: strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "),
	}
	var reason string
	var steps []auth.Step
	e.Allowed, reason, steps = s.authz.Explain(ctx, c, a)
	for _, step := range steps {
		e.Steps = append(e.Steps, tenancyapi.AccessStep{Name: step.Name, Decision: decisionWord(step.Decision), Reason: step.Reason})
	}
	if !e.Allowed {
		e.Message = reason + "; " + remedy(steps)
	}
	return e
}

// remedy says what helps against the step that refused a request.
func remedy(steps []auth.Step) string {
	var last string
	if len(steps) > 0 {
		last = steps[len(steps)-1].Name
	}
	switch last {
	case auth.StepRequiredGroups:
		return "ask whoever runs the server, or looks after your groups"
	case auth.StepContent:
		return "ask an administrator of the workspace to share it, as with kubectl ws share"
	default:
		return "ask an administrator of the workspace for a role that allows it"
	}
}

// obstacles reads what a workspace waits for.
func (s *Server) obstacles(ctx context.Context, c cluster.Name, root tenancy.Root) ([]tenancyapi.Obstacle, error) {
	l, w := &core.LogicalCluster{}, &tenancyapi.Workspace{}
	if _, err := s.store.ReadInto(ctx, store.Key{Resource: tenancy.LogicalClusters(), Cluster: c, Name: core.LogicalClusterName}, l); err != nil {
		return nil, err
	}
	if root.Parent != "" {
		if _, err := s.store.ReadInto(ctx, store.Key{Resource: s.workspaces.Resource, Cluster: root.Parent, Name: root.Name}, w); err != nil {
			return nil, err
		}
	}
	return obstacles(l, w), nil
}

// obstacles says what a cluster and its Workspace, if it has one, wait for.
func obstacles(l *core.LogicalCluster, w *tenancyapi.Workspace) []tenancyapi.Obstacle {
	var all []tenancyapi.Obstacle
	const cluster, workspace = "LogicalCluster cluster", "Workspace "
	for _, name := range l.Status.Initializers {
		all = append(all, tenancyapi.Obstacle{Type: "Initializer", Name: string(name), Object: cluster,
			Message: "whoever provides it has not finished; it goes on by itself once he has"})
	}
	deleting := l.DeletionTimestamp != nil || w.DeletionTimestamp != nil
	if deleting {
		for _, name := range l.Status.Terminators {
			all = append(all, tenancyapi.Obstacle{Type: "Terminator", Name: string(name), Object: cluster,
				Message: "whoever provides it has not finished clearing up"})
		}
		finalizers := func(object string, of []string) {
			for _, f := range of {
				if !slices.Contains([]string{core.LogicalClusterFinalizer, core.DeletionFinalizer, core.TerminatorsFinalizer}, f) {
					all = append(all, tenancyapi.Obstacle{Type: "Finalizer", Name: f, Object: object,
						Message: "whoever put it there has to remove it; if he is gone, remove it yourself"})
				}
			}
		}
		finalizers(cluster, l.Finalizers)
		finalizers(workspace+w.Name, w.Finalizers)
	}
	seen := map[string]bool{}
	for _, c := range append(slices.Clone(l.Status.Conditions), w.Status.Conditions...) {
		// Initializers were named already, each of them.
		if c.Status == "True" || c.Type == core.WorkspaceInitialized && len(l.Status.Initializers) > 0 || seen[string(c.Type)] {
			continue
		}
		seen[string(c.Type)] = true
		all = append(all, tenancyapi.Obstacle{Type: string(c.Type), Name: c.Reason, Message: c.Message})
	}
	return all
}

// inherited lists the bindings that hold in a workspace because of workspaces above.
func (s *Server) inherited(req *http.Request, u user.Info) (any, error) {
	ctx := s.authz.Settle(req.Context())
	c, _, err := s.asked(ctx, req.URL.Query().Get("workspace"), u)
	if err != nil {
		return nil, err
	}
	gv := rbacv1.SchemeGroupVersion
	lists := authorizer.AttributesRecord{User: u, Verb: "list", APIGroup: gv.Group, APIVersion: gv.Version, Resource: "clusterrolebindings", ResourceRequest: true}
	if !s.authz.Allows(ctx, c, lists) {
		return nil, apierrors.NewForbidden(rbacv1.Resource(lists.Resource), "", errors.New("you may not list those of the workspace itself; ask one of its administrators"))
	}
	list := &rbacv1.ClusterRoleBindingList{Items: []rbacv1.ClusterRoleBinding{}}
	list.SetGroupVersionKind(gv.WithKind("ClusterRoleBindingList"))
	for at, bindings := range s.authz.Inherited(c) {
		for _, b := range bindings {
			shown := b.DeepCopy()
			shown.Annotations = map[string]string{core.ClusterAnnotation: string(at), core.PathAnnotation: string(s.tree.PathOf(at))}
			list.Items = append(list.Items, *shown)
		}
	}
	return list, nil
}

func decisionWord(d authorizer.Decision) string {
	switch d {
	case authorizer.DecisionAllow:
		return "Allowed"
	case authorizer.DecisionDeny:
		return "Denied"
	case authorizer.DecisionNoOpinion:
		return "NoOpinion"
	}
	return fmt.Sprint(d)
}
