package server

import (
	"context"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/union"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota/limits"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/resources/native"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// admission returns the built-in rules in the order of evaluation.
func (s *Server) admission() admit.Rules {
	namespaces := admit.Namespaces{
		Get: func(c cluster.Name, name string) (*metav1.Time, bool) {
			n, ok := s.namespaces.Get(c, "", name)
			return n.Deleted, ok
		},
		Fresh: func(ctx context.Context) bool { return s.store.Feed().Fresh(ctx) },
		Ending: func(ctx context.Context, c cluster.Name) bool {
			state, err := s.store.State(ctx, c)
			return err == nil && state == store.Terminating
		},
	}
	definitions := admit.Definitions{
		Served: func(c cluster.Name, gr schema.GroupResource) bool {
			_, given := s.given.Of(c).Find(gr)
			return given || tenancy.IsKind(gr) || s.isOwn(gr)
		},
		Usage: s.usage(define.Resource()),
	}
	types := admit.WorkspaceTypes{
		CatchUp: func(ctx context.Context) error { return s.store.Feed().CatchUp(ctx) },
		Known:   func() *tree.Types { return s.types }, PathOf: func(c cluster.Name) cluster.Path { return s.tree.PathOf(c) },
		Root: func(c cluster.Name) tree.Root { root, _ := s.tree.Cluster(c); return root }, MayUse: s.mayUse, MayBind: s.mayBind, Locate: s.locate,
	}
	descendants := admit.Descendants{
		Of: func(ctx context.Context, c cluster.Name) []*rbacv1.ClusterRoleBinding {
			s.store.Feed().Fresh(ctx)
			return s.rbac.Descending(c)
		},
		Role: func(ctx context.Context, name string) (*rbacv1.ClusterRole, bool) {
			return s.authz.ClusterRole(ctx, name)
		},
		Depend: func(ctx context.Context) error { return native.DependOnGrants(ctx, s.store) },
		Confirm: func(ctx context.Context, u user.Info, rules []rbacv1.PolicyRule) error {
			return s.authz.ConfirmDescending(ctx, u, rules)
		},
	}
	return append(admit.Rules{
		admit.Cluster(),
		types.Rule(),
		admit.Workspaces(types),
		admit.Shards(s.config.Shard),
		admit.LogicalClusters(),
		admit.ForceDelete(),
		admit.WorkspaceAuthentications(),
		namespaces.Lifecycle(),
		admit.Identity(),
		admit.Owners(func(c cluster.Name, n, most int) bool { return s.references.Add(c, n, most) }),
		definitions.Rule(),
		admit.Hooks{Usage: func(c cluster.Name, gr schema.GroupResource) (int64, int64) {
			return s.usage(keys.NativeResource(gr))(c)
		}}.Rule(),
		descendants.Rule(),
		admit.RequiredGroups(authz.CheckRequiredGroups),
	}, slices.Concat(s.sharing(types.PathOf).Rules(), admit.Certificates(authorizer.AuthorizerFunc(s.authorize)), admit.Rules{
		admit.Quotas(func() *limits.Quotas { return s.quotas }), // the last, as in Kubernetes
	})...)
}

// sharing returns the rules for the kinds with which APIs are shared.
func (s *Server) sharing(pathOf func(cluster.Name) cluster.Path) admit.Sharing {
	return admit.Sharing{
		Offered: func(gr schema.GroupResource) error { return s.definitions.Offers.Refuse(gr) },
		Check:   define.Check, Usage: s.usage(exports.SchemaResource()), PathOf: pathOf, MayBind: s.mayBind, MayDo: s.mayDo, BuiltIn: s.builtIn,
		Extra:       func(all map[string]string) error { return exports.ExtraOf(all).Check() },
		RootBinding: func(name string) bool { return s.apis.RootBinding(name) },
		Locate: func(ctx context.Context, path string) (cluster.Name, bool) {
			at, ok := s.apis.Exports.Locate(ctx, "", path, "")
			return at.Cluster, ok
		},
		Cached: func(c cluster.Name, name string, gvr schema.GroupVersionResource) string {
			if other := s.virtual.CachedFor(c, name, gvr); other != nil {
				return other.Name
			}
			return ""
		},
		ConversionUsage: s.usage(exports.ConversionResource()), RolloutUsage: s.usage(exports.RolloutResource()), Schema: s.schemaNamed,
	}
}

// usage returns a function that returns the number and size of a cluster's objects of a
// resource.
func (s *Server) usage(r keys.Resource) func(cluster.Name) (objects, bytes int64) {
	return func(c cluster.Name) (objects, bytes int64) {
		u := s.store.Feed().Ledger().Usage(c, r)
		return u.Objects, u.Bytes
	}
}

// prepareRules sets s.rules to the enabled rules, the built-in ones first.
func (s *Server) prepareRules(context.Context) error {
	own := s.admission()
	if err := s.config.Plugins.Check(own, s.config.Rules); err != nil {
		return err
	}
	s.rules = append(own, s.config.Plugins.Without(s.config.Rules)...)
	return nil
}

// mayUse reports whether a user may create workspaces of a type. The cluster of the type
// decides; the user needs no access to that cluster.
func (s *Server) mayUse(ctx context.Context, u user.Info, t tree.Type) (bool, error) {
	decision, _, err := s.authorizers().Authorize(authz.Deep(cluster.With(ctx, t.Cluster)), authorizer.AttributesRecord{
		User: u, Verb: "use", APIGroup: tenancyapi.GroupVersion.Group, APIVersion: tenancyapi.GroupVersion.Version,
		Resource: "workspacetypes", Name: t.Name, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow, err
}

// mayBind reports whether a user may bind an export. The cluster of the export decides; the user
// needs no access to that cluster.
func (s *Server) mayBind(ctx context.Context, u user.Info, c cluster.Name, ref apisv1alpha2.ExportReference) (bool, error) {
	export, ok := s.apis.Exports.Locate(ctx, c, ref.Path, ref.Name)
	if !ok {
		return false, nil
	}
	return s.mayBindExport(ctx, u, export)
}

// mayBindExport is mayBind for an export of a known cluster.
func (s *Server) mayBindExport(ctx context.Context, u user.Info, export exports.Name) (bool, error) {
	decision, _, err := s.authorizers().Authorize(authz.Deep(cluster.With(ctx, export.Cluster)), authorizer.AttributesRecord{
		User: u, Verb: "bind", APIGroup: apisv1alpha2.GroupVersion.Group, APIVersion: apisv1alpha2.GroupVersion.Version,
		Resource: "apiexports", Name: export.Name, ResourceRequest: true,
	})
	if decision != authorizer.DecisionAllow || err != nil {
		return false, err
	}
	if _, found := s.apis.Exports.Get(export.Cluster, "", export.Name); !found {
		s.store.Feed().Fresh(ctx)
	}
	_, found := s.apis.Exports.Get(export.Cluster, "", export.Name)
	return found, nil
}

// locate returns the cluster that a reference to an export in cluster c means, and whether there is
// one.
func (s *Server) locate(ctx context.Context, c cluster.Name, ref apisv1alpha2.ExportReference) (cluster.Name, bool) {
	name, ok := s.apis.Exports.Locate(ctx, c, ref.Path, ref.Name)
	return name.Cluster, ok
}

// mayDo reports whether a user may do a verb with all objects of a resource in a cluster.
func (s *Server) mayDo(ctx context.Context, u user.Info, c cluster.Name, verb string, gr schema.GroupResource) (bool, error) {
	decision, _, err := s.authorizers().Authorize(cluster.With(ctx, c), authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: gr.Group, APIVersion: "*", Resource: gr.Resource, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow, err
}

// reviews are the resources that a claim may ask for although nothing is stored.
func reviews() []schema.GroupResource {
	return []schema.GroupResource{
		{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	}
}

// builtIn reports whether every cluster has a resource without an APIBinding or definition.
func (s *Server) builtIn(gr schema.GroupResource) bool {
	return gr.Group == apisv1alpha2.GroupVersion.Group || gr == tree.LogicalClusters().GroupResource() || slices.Contains(reviews(), gr) ||
		slices.ContainsFunc(s.natives.Kinds, func(k catalog.Kind) bool { return k.Group == gr.Group && k.Plural == gr.Resource })
}

// schemaNamed returns an APIResourceSchema, nil if there is none.
func (s *Server) schemaNamed(ctx context.Context, c cluster.Name, name string) (*apisv1alpha1.APIResourceSchema, error) {
	found := &apisv1alpha1.APIResourceSchema{}
	rev, err := s.store.ReadInto(ctx, exports.SchemaResource().Key(c, "", name), found)
	if err != nil || rev == 0 {
		return nil, err
	}
	return found, nil
}

// authorize decides with the authorizers, which are made after the rules.
func (s *Server) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return s.authorizers().Authorize(ctx, a)
}

// authorizers returns the built-in authorizer followed by the configured ones.
func (s *Server) authorizers() authorizer.Authorizer {
	if len(s.config.Authorizers) == 0 {
		return s.authz
	}
	return union.New(append([]authorizer.Authorizer{s.authz}, s.config.Authorizers...)...)
}
