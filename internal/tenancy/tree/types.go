package tree

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/lru"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

const (
	// MaxAliases limits the types that one type extends, directly or indirectly.
	MaxAliases = 64
	// maxTemplates limits the cached templates.
	maxTemplates = 256
)

// Universal is the default type of workspaces.
const Universal = "universal"

// A Type is a version of a WorkspaceType. Two equal values are the same version.
type Type struct {
	Cluster cluster.Name
	Name    string
	*typeContent
}

// typeContent is the part of a type that workspaces depend on. It is never modified.
type typeContent struct {
	Spec     tenancyapi.WorkspaceTypeSpec
	checked  CheckedExports
	staleURL bool // see [Types.StaleURL]
	boundary bool // see [Tree.Tenant]
}

// ID is the name of the initializer and the terminator of the type.
func (t Type) ID() string { return string(t.Cluster) + ":" + t.Name }

// Types looks up the WorkspaceTypes of all clusters in memory. Before it returns an error it
// waits for current data.
type Types struct {
	tree  *Tree
	table *feed.Table[*typeContent]

	mu        sync.Mutex
	templates *lru.Cache // of *Template, by the Type
}

// TypeResource returns the resource of WorkspaceTypes of an export with that identity.
func TypeResource(identity string) keys.Resource {
	return keys.CustomResource(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspacetypes"}, identity)
}

// typeForm is the part of a stored WorkspaceType that is decoded.
type typeForm struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec   tenancyapi.WorkspaceTypeSpec   `json:"spec"`
	Status tenancyapi.WorkspaceTypeStatus `json:"status"`
}

// NewTypes returns the stored types of a resource. baseURL is the URL of the server for
// clients.
func NewTypes(s *store.Store, types keys.Resource, tree *Tree, baseURL string) *Types {
	all := &Types{
		tree:      tree,
		templates: lru.New(maxTemplates),
		table: feed.NewCustomTable(s.Feed(), types, func(t *typeForm) (*typeContent, error) {
			views := t.Status.VirtualWorkspaces
			stale := len(views) == 0 || !strings.HasPrefix(views[0].URL, baseURL+"/services/")
			return &typeContent{t.Spec, CheckedExportsOf(t.Metadata.Annotations), stale, isBoundary(t.Metadata.Annotations)}, nil
		}),
	}
	tree.boundary = all.Boundary
	return all
}

// Get returns the type of that name in cluster c, and whether there is one.
func (t *Types) Get(c cluster.Name, name string) (Type, bool) {
	content, ok := t.table.Get(c, "", name)
	return Type{c, name, content}, ok
}

// StaleURL reports whether the status of a type has URLs of another server address.
func (t *Types) StaleURL(c cluster.Name, name string) bool {
	content, ok := t.table.Get(c, "", name)
	return ok && content.staleURL
}

// OnType calls f with the cluster and name of all types, and then of every type that
// changes, until unsubscribe is called.
func (t *Types) OnType(f func(c cluster.Name, name string)) (unsubscribe func()) {
	unsubscribe = t.table.Subscribe(func(k keys.Key) { f(k.Cluster, k.Name) })
	for _, k := range t.table.Keys() {
		f(k.Cluster, k.Name)
	}
	return unsubscribe
}

// A Template is a type with all types that it extends. It is shared and never modified.
type Template struct {
	Type
	// Path is the path of the cluster of the type.
	Path cluster.Path
	// Aliases are the type itself and all types that it extends. Names are their paths and
	// names, as in "root:universal".
	Aliases []Type
	Names   []string
	refs    []tenancyapi.WorkspaceTypeReference // references to the aliases, except the first
	// Initializers and Terminators are those of all aliases, except the ones that the
	// server itself implements.
	Initializers []core.Initializer
	Terminators  []core.Terminator
	defaults     []defaultExport
}

// String returns the path and name of the type.
func (t *Template) String() string { return t.Names[0] }

// Is reports whether t is the template of that type of cluster c, or of a type that extends
// it.
func (t *Template) Is(c cluster.Name, name string) bool {
	return t != nil && slices.ContainsFunc(t.Aliases, func(a Type) bool { return a.Cluster == c && a.Name == name })
}

// Template returns the template for a reference in cluster from. With a path, it refers to
// the type at that path. Without a path, it refers to the first type of that name in from,
// in its ancestors, or in root.
func (t *Types) Template(ctx context.Context, from cluster.Name, ref tenancyapi.WorkspaceTypeReference) (*Template, error) {
	tmpl, err := t.template(from, ref)
	if err != nil && t.tree.fresh(ctx) {
		return t.template(from, ref)
	}
	return tmpl, err
}

// Of returns the template of the type of cluster c, nil if c has no type.
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

// MaintainsLabels reports whether the type adds labels to existing workspaces.
func (t *typeContent) MaintainsLabels() bool {
	cycle := t.Spec.DefaultAPIBindingLifecycle
	return cycle != nil && *cycle == tenancyapi.Maintain && len(t.Spec.AdditionalWorkspaceLabels) > 0
}

// Known is [Types.Of] for the row of a cluster, as far as this process knows. It does not block.
func (t *Types) Known(r Root) (*Template, error) {
	ref, ok := parseType(r.Type)
	if !ok {
		return nil, nil
	}
	return t.template(cluster.Root, ref)
}

// parseType parses a reference as it is in annotations.
func parseType(text string) (ref tenancyapi.WorkspaceTypeReference, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return ref, false
	}
	return tenancyapi.WorkspaceTypeReference{Path: text[:i], Name: text[i+1:]}, true
}

// DefaultChild returns the default type of workspaces below one of template t. t is nil for
// a workspace without a type.
func DefaultChild(t *Template) tenancyapi.WorkspaceTypeReference {
	if t != nil && t.Spec.DefaultChildWorkspaceType != nil {
		return *t.Spec.DefaultChildWorkspaceType
	}
	return tenancyapi.WorkspaceTypeReference{Name: Universal, Path: string(cluster.Root)}
}

// UnresolvedError is the error for a reference to a missing type. Show its text only to
// users who may use types of that name there: it discloses the content of workspaces.
type UnresolvedError struct {
	Ref tenancyapi.WorkspaceTypeReference
	// In is the path of the cluster with the reference.
	In cluster.Path
	// At is the cluster at the path of the reference, empty if there is none.
	At cluster.Name
}

// Error implements error.
func (e *UnresolvedError) Error() string {
	if e.Ref.Path != "" {
		return fmt.Sprintf("workspace type %q cannot be resolved: there is none of that name at that path", e.Ref.Path+":"+e.Ref.Name)
	}
	return fmt.Sprintf("workspace type %q cannot be resolved: there is none of that name in %s, above it, or in root; give its path if it is elsewhere", e.Ref.Name, e.In)
}

func (t *Types) template(from cluster.Name, ref tenancyapi.WorkspaceTypeReference) (*Template, error) {
	of, ok := t.resolve(from, ref)
	if !ok {
		return nil, t.unresolved(from, ref)
	}
	// The target of a reference can change without the type that contains it. So
	// references are resolved each time, and only the result is cached.
	aliases, refs, err := t.aliases(of, ref)
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
	tmpl := t.compile(aliases, refs)
	t.templates.Add(of, tmpl)
	return tmpl, nil
}

func (t *Types) compile(aliases []Type, refs []tenancyapi.WorkspaceTypeReference) *Template {
	tmpl := &Template{Type: aliases[0], Path: t.tree.PathOf(aliases[0].Cluster), Aliases: aliases, refs: refs}
	for _, a := range aliases {
		tmpl.Names = append(tmpl.Names, t.Name(a))
	}
	// The order is that of spec.extend.with, each type followed by the types that it
	// extends. The type itself is the last, as it builds on the others.
	for _, a := range append(slices.Clone(aliases[1:]), aliases[0]) {
		if a.Spec.Initializer && !a.own() {
			tmpl.Initializers = append(tmpl.Initializers, core.Initializer(a.ID()))
		}
		if a.Spec.Terminator && !a.own() {
			tmpl.Terminators = append(tmpl.Terminators, core.Terminator(a.ID()))
		}
		tmpl.addDefaults(a, t.tree.PathOf(a.Cluster))
	}
	return tmpl
}

// own reports whether the server itself is the initializer of the type.
func (t Type) own() bool { return t.Cluster == cluster.Root && t.Name == Universal }

// Name returns the path and name of a type, as in "root:universal".
func (t *Types) Name(of Type) string { return string(t.tree.PathOf(of.Cluster)) + ":" + of.Name }

// resolve returns the target of a reference in cluster from.
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
	c, missing := t.tree.Known(p)
	return c, missing == ""
}

func (t *Types) unresolved(from cluster.Name, ref tenancyapi.WorkspaceTypeReference) *UnresolvedError {
	err := &UnresolvedError{Ref: ref, In: t.tree.PathOf(from)}
	if ref.Path != "" {
		err.At, _ = t.at(ref.Path)
	}
	return err
}

// A Referenced is a type and a reference to it.
type Referenced struct {
	Type
	Ref tenancyapi.WorkspaceTypeReference
}

// Reach is [Types.Template], and also returns the type and all types that it extends, in the
// order of the search. After an error these are the types that were found before it.
func (t *Types) Reach(ctx context.Context, from cluster.Name, ref tenancyapi.WorkspaceTypeReference) ([]Referenced, *Template, error) {
	tmpl, err := t.Template(ctx, from, ref)
	var failed *walkError
	if errors.As(err, &failed) {
		return failed.found, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	reached := make([]Referenced, len(tmpl.Aliases))
	for i, a := range tmpl.Aliases {
		reached[i] = Referenced{a, tmpl.refs[i]}
	}
	reached[0].Ref = ref
	return reached, tmpl, nil
}

// A walkError is an error about an extended type, with the types that were found before it.
type walkError struct {
	error
	found []Referenced
}

// Unwrap returns the error without the types.
func (e *walkError) Unwrap() error { return e.error }

// aliases returns a type and all types that it extends, each once, with the references.
func (t *Types) aliases(of Type, ref tenancyapi.WorkspaceTypeReference) ([]Type, []tenancyapi.WorkspaceTypeReference, error) {
	w := walk{types: t}
	if err := w.visit(of, ref); err != nil {
		return nil, nil, &walkError{err, w.found}
	}
	aliases, refs := make([]Type, len(w.found)), make([]tenancyapi.WorkspaceTypeReference, len(w.found))
	for i, f := range w.found {
		aliases[i], refs[i] = f.Type, f.Ref
	}
	return aliases, refs, nil
}

// A walk is a depth-first search of the types that a type extends.
type walk struct {
	types *Types
	found []Referenced
	trail []Type // path of the search to the current type
	edges int
}

func (w *walk) visit(of Type, ref tenancyapi.WorkspaceTypeReference) error {
	if slices.Contains(w.trail, of) {
		return fmt.Errorf("workspace type %q extends itself: %s; remove it from one of their spec.extend", w.types.Name(w.trail[0]), w.names(of))
	}
	if slices.ContainsFunc(w.found, func(f Referenced) bool { return f.Type == of }) {
		return nil
	}
	w.found = append(w.found, Referenced{of, ref})
	if of.Spec.Extend == nil {
		return nil
	}
	w.trail = append(w.trail, of)
	defer func() { w.trail = w.trail[:len(w.trail)-1] }()
	for _, ref := range of.Spec.Extend.With {
		if w.edges++; w.edges > MaxAliases {
			return fmt.Errorf("workspace type %q extends more than %d others", w.types.Name(w.found[0].Type), MaxAliases)
		}
		base, ok := w.types.resolve(of.Cluster, ref)
		if !ok {
			return fmt.Errorf("workspace type %q extends one that does not exist: %w", w.types.Name(of), w.types.unresolved(of.Cluster, ref))
		}
		if err := w.visit(base, ref); err != nil {
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

// Allowed returns an error if workspaces of template child may not be in a workspace of
// template parent. parent is nil for a workspace without a type.
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
		if SelectsNone(limit) {
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
	case SelectsNone(limit):
		return fmt.Errorf("workspace type %q cannot have any parent", alias)
	case limit == nil || len(limit.Types) == 0 || t.matches(parent, limit):
		return nil
	case parent == nil:
		return fmt.Errorf("workspace type %q only allows %v parent workspaces, but the parent has no type", alias, limited(limit))
	default:
		return fmt.Errorf("workspace type %q only allows %v parent workspaces, but parent type %q only implements %v", alias, limited(limit), parent, parent.Names)
	}
}

// SelectsNone reports whether a selector selects no type.
func SelectsNone(l *tenancyapi.WorkspaceTypeSelector) bool {
	return l != nil && l.None != nil && *l.None
}

// matches reports whether a limit contains an alias of a template.
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
