package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// BindingsInitializer is the initializer of workspaces whose default bindings cannot be bound
// yet. The server itself removes it.
const BindingsInitializer core.Initializer = "system:apibindings"

// MaxDefaultBindings limits the default bindings of one type.
const MaxDefaultBindings = 32

// maxReported limits the default bindings in the message of a condition.
const maxReported = 4

// Defaults makes the default bindings of clusters.
type Defaults interface {
	// New returns the bindings of a new cluster at a path. It returns ok false if some cannot be
	// bound yet.
	New(ctx context.Context, c cluster.Name, path cluster.Path, exports []tree.DefaultExport) (made []store.Write, ok bool)
	// Bind makes the missing bindings of an existing cluster. If they are maintained, they accept what
	// the exports claim now. It returns what some of them wait for, empty if all are bound.
	Bind(ctx context.Context, c cluster.Name, exports []tree.DefaultExport, maintained bool) (waits []Wait, err error)
	// Bound reports, from memory alone, whether Bind has nothing to do for maintained bindings.
	Bound(ctx context.Context, c cluster.Name, exports []tree.DefaultExport) bool
}

// A Wait is the reason for which a default binding is not bound.
type Wait struct {
	Export string
	// Missing is true if there is no such export.
	Missing bool
	Message string
}

// defaults sets the default bindings of a new cluster at a path. If some cannot be bound yet,
// the cluster gets none, and an initializer.
func (w *Workspaces) defaults(ctx context.Context, b *birth, path cluster.Path) {
	b.bindings, b.made, b.unbound = nil, true, false
	if w.Defaults == nil {
		return
	}
	t := b.template
	if t == nil {
		var err error
		if t, err = w.universal(ctx); err != nil {
			b.unbound = true
			return
		}
	}
	made, ok := w.Defaults.New(ctx, b.cluster, path, t.DefaultExports(false))
	if b.unbound = !ok; ok {
		b.bindings = made
	}
}

// initializers returns the initializers of a new cluster.
func (b birth) initializers() []core.Initializer {
	var all []core.Initializer
	if b.template != nil {
		all = b.template.Initializers
	}
	if b.unbound {
		all = append([]core.Initializer{BindingsInitializer}, all...)
	}
	return all
}

// first and last return the writes of default bindings in the first and in the second
// transaction of a workspace. Only one is in each: watch caches would lose the others.
func (b birth) first() []store.Write { return b.bindings[:min(1, len(b.bindings))] }
func (b birth) last() []store.Write {
	return b.bindings[max(min(1, len(b.bindings)), len(b.bindings)-1):]
}

// bindBetween makes the default bindings that are in neither of the two transactions, each in one
// of its own.
func (w *Workspaces) bindBetween(ctx context.Context, b birth) error {
	for i := 1; i < len(b.bindings)-1; i++ {
		if _, err := w.Store.Commit(ctx, b.bindings[i:i+1]); err != nil && !storage.IsExist(err) {
			return err
		}
	}
	return nil
}

// bound reports whether the two transactions make all default bindings.
func (b birth) bound(w *Workspaces) bool {
	return w.Defaults != nil && b.made && !b.unbound && !b.partial
}

// boundDefaults records that the default bindings of a cluster were made, and reports whether
// that is new.
func boundDefaults(l *core.LogicalCluster, now metav1.Time) bool {
	return l.Status.Conditions.Set(conditions.Condition{Type: core.APIBindingsInitialized, Status: metav1.ConditionTrue, LastTransitionTime: now})
}

// Defaulted reports, from memory alone, whether a cluster still needs its first default bindings, and
// whether maintained ones may have to change.
func (w *Workspaces) Defaulted(ctx context.Context, c cluster.Name) (needs, changes bool) {
	root, ok := w.Tree.Cluster(c)
	if !ok || w.Defaults == nil || root.Ending || root.Phase == core.PhaseTerminating || root.Phase == core.PhaseDeleting {
		return false, false
	}
	if !root.Defaulted {
		return true, false
	}
	t, err := w.Types.Known(root)
	if err != nil || t == nil {
		return false, false
	}
	all := t.DefaultExports(true)
	return false, len(all) > 0 && !(root.Reconciled && w.Defaults.Bound(ctx, c, all))
}

// BindDefaults makes the default bindings of a cluster that lacks some, and records the result
// in its LogicalCluster. It returns what some of them wait for.
func (w *Workspaces) BindDefaults(ctx context.Context, c cluster.Name) ([]Wait, error) {
	l, rev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil || l == nil || l.DeletionTimestamp != nil {
		return nil, err
	}
	t, err := w.templateOf(ctx, c)
	if err != nil {
		return nil, err
	}
	about, first := core.APIBindingsReconciled, !l.Status.Conditions.IsTrue(core.APIBindingsInitialized)
	if first {
		about = core.APIBindingsInitialized
	}
	exports := t.DefaultExports(!first)
	if first && w.Store.Feed().Ledger().Objects(c, w.Resource)+w.Store.Feed().Ledger().Objects(c, w.TypeResource) > 0 {
		for _, ref := range everywhere() { // its kinds were served without a binding by an older server
			if !slices.ContainsFunc(exports, func(d tree.DefaultExport) bool { return d.APIExportReference == ref }) {
				exports = append(exports, tree.DefaultExport{APIExportReference: ref})
			}
		}
	}
	if len(exports) == 0 && !first {
		return nil, nil
	}
	waits, err := w.Defaults.Bind(ctx, c, exports, !first)
	if err != nil {
		return nil, err
	}
	changed := l.Status.Conditions.Set(initializedBindings(about, waits))
	if len(waits) == 0 && slices.Contains(l.Status.Initializers, BindingsInitializer) {
		changed = true
		l.Status.Initializers = slices.DeleteFunc(l.Status.Initializers, func(i core.Initializer) bool { return i == BindingsInitializer })
	}
	if !changed {
		return waits, nil
	}
	write, err := ClusterWrite(c, l, rev)
	if err != nil {
		return nil, err
	}
	_, err = w.Store.Commit(ctx, []store.Write{write})
	return waits, err
}

// initializedBindings returns the condition about default bindings that wait.
func initializedBindings(about conditions.Type, waits []Wait) conditions.Condition {
	c := conditions.Condition{Type: about, Status: metav1.ConditionTrue}
	if len(waits) == 0 {
		return c
	}
	c.Status, c.Severity, c.Reason = metav1.ConditionFalse, conditions.SeverityInfo, core.WaitingOnAPIBindings
	var messages []string
	for _, w := range waits[:min(len(waits), maxReported)] {
		if w.Missing {
			c.Severity, c.Reason = conditions.SeverityError, core.APIBindingErrors
		}
		messages = append(messages, w.Message)
	}
	c.Message = strings.Join(messages, "; ")
	return c
}

// templateOf returns the template of a cluster. A cluster without a type, or whose type is
// gone, has that of universal workspaces.
func (w *Workspaces) templateOf(ctx context.Context, c cluster.Name) (*tree.Template, error) {
	if t, err := w.Types.Of(ctx, c); err == nil && t != nil {
		return t, nil
	}
	return w.universal(ctx)
}

func (w *Workspaces) universal(ctx context.Context) (*tree.Template, error) {
	t, err := w.Types.Template(ctx, cluster.Root, tenancyapi.WorkspaceTypeReference{Name: tree.Universal, Path: string(cluster.Root)})
	if err != nil {
		return nil, fmt.Errorf("default bindings: %w", err)
	}
	return t, nil
}

// DefaultTo makes a built-in export a default binding of universal workspaces, for a server that
// has it for the first time.
func (w *Workspaces) DefaultTo(ctx context.Context, export string) error {
	for range retries {
		t, rev, err := read[tenancyapi.WorkspaceType](ctx, w.Store, keys.Key{Resource: w.TypeResource, Cluster: cluster.Root, Name: tree.Universal})
		ref := tenancyapi.APIExportReference{Path: string(cluster.Root), Export: export}
		if err != nil || t == nil || slices.Contains(t.Spec.DefaultAPIBindings, ref) {
			return err
		}
		t.Spec.DefaultAPIBindings = append(t.Spec.DefaultAPIBindings, ref)
		t.Generation++
		if err := w.commitType(ctx, cluster.Root, t, rev); !Moved(err) {
			return err
		}
	}
	return nil
}

// Allow lets all authenticated users bind a built-in export, and consumers use its resources,
// unless that was changed. The latter matters if the export has a maximal permission policy.
func (w *Workspaces) Allow(ctx context.Context, of BuiltIn) error {
	b := w.birth(cluster.Root, metav1.Now())
	name := "system:kcp:apiexport:" + of.Short
	var resources, states []string
	for _, kind := range of.Kinds {
		resource, _, _ := strings.Cut(kind, ".")
		resources, states = append(resources, resource), append(states, resource+"/status")
	}
	consumers := apisv1alpha2.ConsumerPrefix + user.AllAuthenticated
	writes := append(b.allow(name+":bind", user.AllAuthenticated,
		rbacv1.PolicyRule{Verbs: []string{"bind"}, APIGroups: []string{"apis.kcp.io"}, Resources: []string{"apiexports"}, ResourceNames: []string{of.Name}},
	), b.allow(name+":maximal-permission-policy", consumers,
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{of.Name}, Resources: resources},
		rbacv1.PolicyRule{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{of.Name}, Resources: states},
	)...)
	writes = append(writes, b.allow(name+":maximal-permission-policy-admin", apisv1alpha2.ConsumerPrefix+"system:kcp:admin",
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{of.Name}, Resources: []string{"*"}},
	)...)
	return ensure(ctx, w.Store, writes...)
}
