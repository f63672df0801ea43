package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/lru"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

const (
	// maxAliases bounds how many types one may extend, with those that these extend.
	maxAliases = 64
	// maxTemplates bounds the templates that are kept.
	maxTemplates = 256
)

// Universal is the type that workspaces are of where nobody says anything else.
const Universal = "universal"

// A Type is a WorkspaceType as it was at one time. Two that are equal are the same
// type, unchanged.
type Type struct {
	Cluster cluster.Name
	Name    string
	*typeContent
}

// typeContent is what of a type matters to workspaces. It is never changed.
type typeContent struct {
	Spec  tenancyapi.WorkspaceTypeSpec
	moved bool
}

// ID is what the initializer and the terminator of the type are called.
func (t Type) ID() string { return string(t.Cluster) + ":" + t.Name }

// Types knows the WorkspaceTypes of all clusters. What it says is as new as the
// spine; it waits for that only where it would otherwise refuse.
type Types struct {
	tree  *Tree
	table *store.Table[*typeContent]

	mu        sync.Mutex
	templates *lru.Cache // of *Template, by the Type
}

// TypeResource is where WorkspaceTypes of an export with that identity are stored.
func TypeResource(identity string) store.Resource {
	return store.CustomResource(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspacetypes"}, identity)
}

// typeForm is what is read of a stored WorkspaceType.
type typeForm struct {
	Spec   tenancyapi.WorkspaceTypeSpec   `json:"spec"`
	Status tenancyapi.WorkspaceTypeStatus `json:"status"`
}

// NewTypes returns the types stored in a resource, for a server that is reached at
// baseURL.
func NewTypes(s *store.Store, types store.Resource, tree *Tree, baseURL string) *Types {
	return &Types{
		tree:      tree,
		templates: lru.New(maxTemplates),
		table: store.NewCustomTable(s, types, func(t *typeForm) (*typeContent, error) {
			views := t.Status.VirtualWorkspaces
			return &typeContent{t.Spec, len(views) == 0 || !strings.HasPrefix(views[0].URL, baseURL+"/services/")}, nil
		}),
	}
}

// Get returns the type of that name in cluster c, and whether there is one.
func (t *Types) Get(c cluster.Name, name string) (Type, bool) {
	content, ok := t.table.Get(c, "", name)
	return Type{c, name, content}, ok
}

// Moved reports whether a type says that what belongs to it is where the server is not.
func (t *Types) Moved(c cluster.Name, name string) bool {
	content, ok := t.table.Get(c, "", name)
	return ok && content.moved
}

// OnType has f called with the cluster and name of every type that changes.
func (t *Types) OnType(f func(c cluster.Name, name string)) (unsubscribe func()) {
	unsubscribe = t.table.Subscribe(func(k store.Key) { f(k.Cluster, k.Name) })
	for _, k := range t.table.Keys() {
		f(k.Cluster, k.Name)
	}
	return unsubscribe
}

// A Template is what workspaces of a type are made from: the type with all that it
// extends. It is shared and never changed.
type Template struct {
	Type
	// Path is where the cluster of the type is.
	Path cluster.Path
	// Aliases are the type itself and all that it extends, and Names their paths and
	// names, as in "root:universal".
	Aliases []Type
	Names   []string
	// Initializers and Terminators are those of all aliases that somebody outside of
	// the server is to be waited for. What the server does itself is not among them.
	Initializers []core.Initializer
	Terminators  []core.Terminator
}

// String returns the path and name of the type.
func (t *Template) String() string { return t.Names[0] }

// Is reports whether a template is that of a type of cluster c, or of one that
// extends it.
func (t *Template) Is(c cluster.Name, name string) bool {
	return t != nil && slices.ContainsFunc(t.Aliases, func(a Type) bool { return a.Cluster == c && a.Name == name })
}

// Template returns what the type is made into that a reference in cluster from means.
// With a path, that is the type there. Without, it is looked for in from, in the
// clusters above it, and in root.
func (t *Types) Template(ctx context.Context, from cluster.Name, ref tenancyapi.WorkspaceTypeReference) (*Template, error) {
	tmpl, err := t.template(from, ref)
	if err != nil && t.tree.fresh(ctx) {
		return t.template(from, ref)
	}
	return tmpl, err
}

// Of returns the template of the type that cluster c is of, nil if it is of none.
func (t *Types) Of(ctx context.Context, c cluster.Name) (*Template, error) {
	root, ok := t.tree.Cluster(c)
	if !ok && t.tree.fresh(ctx) {
		root, _ = t.tree.Cluster(c)
	}
	ref, ok := parseType(root.Type)
	if !ok {
		return nil, nil
	}
	return t.Template(ctx, cluster.Root, ref)
}

// parseType reads a reference from its form in annotations.
func parseType(text string) (ref tenancyapi.WorkspaceTypeReference, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return ref, false
	}
	return tenancyapi.WorkspaceTypeReference{Path: text[:i], Name: text[i+1:]}, true
}

// DefaultChild returns the type of workspaces below one of template t, nil for one
// without a type, of which nobody says what type they are to be.
func DefaultChild(t *Template) tenancyapi.WorkspaceTypeReference {
	if t != nil && t.Spec.DefaultChildWorkspaceType != nil {
		return *t.Spec.DefaultChildWorkspaceType
	}
	return tenancyapi.WorkspaceTypeReference{Name: Universal, Path: string(cluster.Root)}
}

// UnresolvedError tells that a reference leads to no type.
type UnresolvedError struct {
	Ref tenancyapi.WorkspaceTypeReference
	// In is the cluster that the reference was made in.
	In cluster.Path
}

// Error tells where the type was looked for.
func (e *UnresolvedError) Error() string {
	if e.Ref.Path != "" {
		return fmt.Sprintf("workspace type %q cannot be resolved: there is none of that name at that path", e.Ref.Path+":"+e.Ref.Name)
	}
	return fmt.Sprintf("workspace type %q cannot be resolved: there is none of that name in %s, above it, or in root; give its path if it is elsewhere", e.Ref.Name, e.In)
}

func (t *Types) template(from cluster.Name, ref tenancyapi.WorkspaceTypeReference) (*Template, error) {
	of, ok := t.resolve(from, ref)
	if !ok {
		return nil, &UnresolvedError{ref, t.tree.PathOf(from)}
	}
	// What a reference means may change without the type that it is in, so it is
	// followed each time; what follows from that is kept.
	aliases, err := t.aliases(of)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if kept, ok := t.templates.Get(of); ok {
		if tmpl := kept.(*Template); slices.Equal(tmpl.Aliases, aliases) {
			return tmpl, nil
		}
	}
	tmpl := t.compile(aliases)
	t.templates.Add(of, tmpl)
	return tmpl, nil
}

func (t *Types) compile(aliases []Type) *Template {
	tmpl := &Template{Type: aliases[0], Path: t.tree.PathOf(aliases[0].Cluster), Aliases: aliases}
	for _, a := range aliases {
		tmpl.Names = append(tmpl.Names, t.Name(a))
		if a.Spec.Initializer && !a.own() {
			tmpl.Initializers = append(tmpl.Initializers, core.Initializer(a.ID()))
		}
		if a.Spec.Terminator && !a.own() {
			tmpl.Terminators = append(tmpl.Terminators, core.Terminator(a.ID()))
		}
	}
	return tmpl
}

// own reports whether what prepares workspaces of the type is the server.
func (t Type) own() bool { return t.Cluster == cluster.Root && t.Name == Universal }

// Name returns the path and name of a type, as in "root:universal".
func (t *Types) Name(of Type) string { return string(t.tree.PathOf(of.Cluster)) + ":" + of.Name }

// resolve returns the type that a reference in cluster from means.
func (t *Types) resolve(from cluster.Name, ref tenancyapi.WorkspaceTypeReference) (Type, bool) {
	if ref.Path != "" {
		c, ok := t.at(ref.Path)
		if !ok {
			return Type{}, false
		}
		return t.Get(c, ref.Name)
	}
	for c := from; c != ""; {
		if found, ok := t.Get(c, ref.Name); ok {
			return found, true
		}
		root, _ := t.tree.Cluster(c)
		c = root.Parent
	}
	return t.Get(cluster.Root, ref.Name)
}

// at returns the cluster at a path.
func (t *Types) at(path string) (cluster.Name, bool) {
	p, err := cluster.ParsePath(path)
	if err != nil {
		return "", false
	}
	c, missing := t.tree.resolve(p)
	return c, missing == ""
}

// aliases returns a type and all that it extends, each once.
func (t *Types) aliases(of Type) ([]Type, error) {
	w := walk{types: t}
	if err := w.visit(of); err != nil {
		return nil, err
	}
	return w.found, nil
}

// A walk follows what types extend.
type walk struct {
	types *Types
	found []Type
	trail []Type // that lead to the one that is visited
	edges int
}

func (w *walk) visit(of Type) error {
	if slices.Contains(w.trail, of) {
		return fmt.Errorf("workspace type %q extends itself: %s; take it out of one of their spec.extend", w.types.Name(w.trail[0]), w.names(of))
	}
	if slices.Contains(w.found, of) {
		return nil
	}
	w.found = append(w.found, of)
	if of.Spec.Extend == nil {
		return nil
	}
	w.trail = append(w.trail, of)
	defer func() { w.trail = w.trail[:len(w.trail)-1] }()
	for _, ref := range of.Spec.Extend.With {
		if w.edges++; w.edges > maxAliases {
			return fmt.Errorf("workspace type %q extends more than %d others", w.types.Name(w.found[0]), maxAliases)
		}
		base, ok := w.types.resolve(of.Cluster, ref)
		if !ok {
			return fmt.Errorf("workspace type %q extends one that does not exist: %w", w.types.Name(of), &UnresolvedError{ref, w.types.tree.PathOf(of.Cluster)})
		}
		if err := w.visit(base); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) names(last Type) string {
	var names []string
	for _, t := range append(slices.Clone(w.trail), last) {
		names = append(names, w.types.Name(t))
	}
	return strings.Join(names, " extends ")
}

// Allowed returns an error if workspaces of one template may not be in a workspace of
// another, nil for one without a type.
func (t *Types) Allowed(child, parent *Template) error {
	for i, a := range child.Aliases {
		if err := t.allowedParent(child, parent, child.Names[i], a.Spec.LimitAllowedParents); err != nil {
			return err
		}
	}
	if parent == nil {
		return nil
	}
	for i, a := range parent.Aliases {
		limit := a.Spec.LimitAllowedChildren
		if none(limit) {
			return fmt.Errorf("workspace type %q cannot have any children", parent.Names[i])
		}
		if limit != nil && len(limit.Types) > 0 && !t.matches(child, limit) {
			return fmt.Errorf("workspace type %q only allows %v child workspaces, but child type %q only implements %v",
				parent.Names[i], limited(limit), child, child.Names)
		}
	}
	return nil
}

func (t *Types) allowedParent(child, parent *Template, alias string, limit *tenancyapi.WorkspaceTypeSelector) error {
	switch {
	case none(limit):
		return fmt.Errorf("workspace type %q cannot have any parent", alias)
	case limit == nil || len(limit.Types) == 0 || t.matches(parent, limit):
		return nil
	case parent == nil:
		return fmt.Errorf("workspace type %q only allows %v parent workspaces, but the parent has no type", alias, limited(limit))
	default:
		return fmt.Errorf("workspace type %q only allows %v parent workspaces, but parent type %q only implements %v", alias, limited(limit), parent, parent.Names)
	}
}

func none(l *tenancyapi.WorkspaceTypeSelector) bool { return l != nil && l.None != nil && *l.None }

// matches reports whether a limit names one of the types that a template is of.
func (t *Types) matches(tmpl *Template, limit *tenancyapi.WorkspaceTypeSelector) bool {
	return slices.ContainsFunc(limit.Types, func(ref tenancyapi.WorkspaceTypeReference) bool {
		c, ok := t.at(ref.Path)
		return ok && tmpl.Is(c, ref.Name)
	})
}

func limited(l *tenancyapi.WorkspaceTypeSelector) []string {
	names := make([]string, len(l.Types))
	for i, ref := range l.Types {
		names[i] = ref.Path + ":" + ref.Name
	}
	return names
}
