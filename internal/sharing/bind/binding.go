package bind

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/endpoints/request"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// attempts limits the writes of a binding that conflict with other writes of names in its
// cluster.
const attempts = 10

// createBinding stores a new APIBinding. If nothing is missing it is bound, and its resources
// are served, when the request returns. It is a [store.CreateHook].
func (a *APIs) createBinding(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error {
	b, err := values.Typed[apisv1alpha2.APIBinding](obj)
	if err != nil {
		return err
	}
	if err := a.confirm(ctx, c, b); err != nil {
		return err
	}
	stored, rev, err := a.write(ctx, c, b, 0, "")
	if err != nil {
		return err
	}
	return a.store.FinishCreate(ctx, c, stored, obj, rev)
}

// confirm checks the right of a user to bind the export to which the path of a new binding leads
// now. The status records the cluster, so the binding never gets an export of another one.
func (a *APIs) confirm(ctx context.Context, c cluster.Name, b *apisv1alpha2.APIBinding) error {
	name, err := a.Confirm(ctx, c, *b.Spec.Reference.Export)
	if errors.Is(err, ErrNotBindable) {
		return apierrors.NewForbidden(BindingResource().GroupResource(), b.Name, fmt.Errorf("unable to create APIBinding: %w", err))
	}
	b.Status.APIExportClusterName = string(name.Cluster)
	return err
}

// ErrNotBindable means that the user may not bind an export, or that there is none.
var ErrNotBindable = errors.New("no permission to bind to export")

// Confirm checks the right of the user of a request to bind the export to which a reference leads now: since
// admission checked it, the path may lead to another cluster. It returns the export, and no name for
// references that admission does not check either.
func (a *APIs) Confirm(ctx context.Context, c cluster.Name, ref apisv1alpha2.ExportReference) (exports.Name, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return exports.Name{}, apierrors.NewInternalError(errors.New("a reference to an export is created without a user"))
	}
	if ref.Path == "" || auth.IsPrivileged(u) {
		return exports.Name{}, nil
	}
	name, ok := a.Exports.Locate(ctx, c, ref.Path, ref.Name)
	if ok {
		var err error
		if ok, err = a.MayBind(ctx, u, name); err != nil {
			return exports.Name{}, apierrors.NewInternalError(fmt.Errorf("cannot decide whether the export may be bound: %w", err))
		}
	}
	if !ok {
		return exports.Name{}, fmt.Errorf("%w %s", ErrNotBindable, ref)
	}
	return name, nil
}

// Reconcile brings the status of a binding up to date with its export, with the schemas of
// the export, and with the names that are free in its cluster.
func (a *APIs) Reconcile(ctx context.Context, c cluster.Name, name string) error {
	if a.settled(c, a.Bindings.Get(c, name)) {
		return nil // as most are: new workspaces have settled bindings
	}
	b := &apisv1alpha2.APIBinding{}
	rev, err := a.store.ReadInto(ctx, BindingResource().Key(c, "", name), b)
	if err != nil || rev == 0 || b.DeletionTimestamp != nil {
		return err
	}
	_, _, err = a.write(ctx, c, b, rev, "")
	return err
}

// write stores a binding with its current status, if that differs from the stored one at a
// revision, 0 for a new binding. If from is not empty, it takes over the resources of that binding.
func (a *APIs) write(ctx context.Context, c cluster.Name, b *apisv1alpha2.APIBinding, rev int64, from string) (*unstructured.Unstructured, int64, error) {
	for range attempts {
		s := &settling{APIs: a, cluster: c, binding: b.DeepCopy(), at: metav1.Now().Rfc3339Copy(), from: from}
		changed, err := s.settle(ctx)
		if err != nil || !changed && rev != 0 {
			return nil, rev, err
		}
		stored, err := values.Unstructured(s.binding, apisv1alpha2.GroupVersion.WithKind("APIBinding"))
		if err != nil {
			return nil, 0, err
		}
		at, err := a.store.Commit(store.WithCondition(ctx, s.relies...), []store.Write{{Resource: BindingResource(), Cluster: c, Object: stored, Expect: rev}})
		if !errors.Is(err, errMoved) {
			return stored, at, err
		}
	}
	return nil, 0, outage.Unavailable("the names of resources in this workspace changed while this request was in progress; try again")
}

// errMoved means that a concurrent write changed what the status relies on.
var errMoved = errors.New("names or schemas have changed")

// A settling computes the status of one binding.
type settling struct {
	*APIs
	cluster cluster.Name
	binding *apisv1alpha2.APIBinding
	at      metav1.Time
	from    string             // the binding whose resources it takes over, empty for none
	relies  []*store.Condition // on names that are free, and on definitions
}

// settle computes the status, and reports whether it changed.
func (s *settling) settle(ctx context.Context) (changed bool, err error) {
	before := s.binding.DeepCopy()
	st := &s.binding.Status
	name, export := s.export(ctx)
	if export == nil {
		s.lacks(apisv1alpha2.APIExportValid, conditions.SeverityError, apisv1alpha2.APIExportNotFound,
			fmt.Sprintf("there is no APIExport %s at %s", s.binding.Spec.Reference.Export.Name, s.where()))
		return s.finish(before), nil
	}
	if err := s.replaced(name, export); err != nil {
		// The provider may be another. It gets nothing that was granted to the one before.
		st.AppliedPermissionClaims = nil
		s.lacks(apisv1alpha2.APIExportValid, conditions.SeverityError, apisv1alpha2.APIExportInvalidReference, err.Error())
		return s.finish(before), nil
	}
	st.APIExportClusterName = string(name.Cluster)
	if export.Identity == "" {
		s.lacks(apisv1alpha2.APIExportValid, conditions.SeverityWarning, apisv1alpha2.MissingIdentityHash, "the APIExport has no identity yet; see its condition IdentityValid")
		return s.finish(before), nil
	}
	s.set(apisv1alpha2.APIExportValid)
	bound, err := s.bound(ctx, name, export)
	var taken *takenError
	switch {
	case exports.IsInvalidSchema(err):
		s.lacks(apisv1alpha2.BindingUpToDate, conditions.SeverityError, apisv1alpha2.APIResourceSchemaInvalid, err.Error())
	case errors.As(err, &taken):
		s.lacks(apisv1alpha2.BindingUpToDate, conditions.SeverityError, apisv1alpha2.NamingConflicts, taken.Error())
	case err != nil:
		return false, err
	default:
		s.complete(bound)
	}
	s.claims(export)
	s.binding.Annotations = export.Extra.Set(s.binding.Annotations)
	return s.finish(before), nil
}

// replaced returns an error if the reference of a binding leads to another export than before: the
// binding must not follow it. Exports with one identity are the same. A binding without resources,
// such as one that waits, has no identity. Then the logical cluster must be the same, because the
// creator of the binding was allowed to bind the export there.
func (s *settling) replaced(name exports.Name, e *exports.Export) error {
	st := &s.binding.Status
	elsewhere := st.APIExportClusterName != "" && st.APIExportClusterName != string(name.Cluster)
	if e.Identity == "" && !elsewhere {
		return nil // its secret is missing
	}
	for _, b := range st.BoundResources {
		if b.Schema.IdentityHash != e.Identity {
			return fmt.Errorf("the APIExport has another identity than when it was bound, which was %s: restore the secret of that identity, or delete this APIBinding with its objects and create it again", b.Schema.IdentityHash)
		}
	}
	if len(st.BoundResources) == 0 && elsewhere {
		return fmt.Errorf("%s is another workspace than when this APIBinding was created: delete this APIBinding and create it again", s.where())
	}
	return nil
}

// complete records that the cluster has all resources of the export.
func (s *settling) complete(bound []apisv1alpha2.BoundResource) {
	s.binding.Status.BoundResources, s.binding.Status.Phase = bound, apisv1alpha2.PhaseBound
	s.set(apisv1alpha2.BindingUpToDate)
	s.set(apisv1alpha2.InitialBindingCompleted)
}

// export returns the export of the binding, nil if there is none.
func (s *settling) export(ctx context.Context) (exports.Name, *exports.Export) {
	ref := s.binding.Spec.Reference.Export
	name, ok := s.Exports.Locate(ctx, s.cluster, ref.Path, ref.Name)
	if !ok {
		return name, nil
	}
	e, ok := s.Exports.Get(name.Cluster, "", name.Name)
	if !ok || e.Deleting {
		return name, nil
	}
	return name, e
}

func (s *settling) where() string {
	if path := s.binding.Spec.Reference.Export.Path; path != "" {
		return path
	}
	return "this workspace"
}

// finish sets the phase and the summary, and reports whether the status changed.
func (s *settling) finish(before *apisv1alpha2.APIBinding) bool {
	st := &s.binding.Status
	if st.Phase == "" {
		st.Phase = apisv1alpha2.PhaseBinding
	}
	st.Conditions.Set(st.Conditions.Summary(s.at, apisv1alpha2.InitialBindingCompleted)) // as the existing kcp: it stays True
	s.binding.Labels = maps.Clone(s.binding.Labels)
	if s.binding.Labels == nil {
		s.binding.Labels = map[string]string{}
	}
	if st.APIExportClusterName != "" {
		s.binding.Labels[apisv1alpha2.ExportLabel] = apisv1alpha2.ExportLabelValue(st.APIExportClusterName, s.binding.Spec.Reference.Export.Name)
	}
	if !slices.Contains(s.binding.Finalizers, apisv1alpha2.BindingFinalizer) {
		s.binding.Finalizers = append(s.binding.Finalizers, apisv1alpha2.BindingFinalizer)
	}
	return !equal(before, s.binding)
}

// equal reports whether two bindings have the same labels, annotations, finalizers and status.
func equal(a, b *apisv1alpha2.APIBinding) bool {
	return reflect.DeepEqual(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && slices.Equal(a.Finalizers, b.Finalizers) && equality.Semantic.DeepEqual(a.Status, b.Status)
}

func (s *settling) set(t conditions.Type) {
	s.binding.Status.Conditions.Set(conditions.Condition{Type: t, Status: metav1.ConditionTrue, LastTransitionTime: s.at})
}

// lacks records what the binding lacks. Before it was bound for the first time, this also holds
// for the condition about that, which only waits while the export is not valid.
func (s *settling) lacks(t conditions.Type, severity conditions.Severity, reason, message string) {
	lacks := conditions.Condition{
		Type: t, Status: metav1.ConditionFalse, Severity: severity, Reason: reason, Message: message, LastTransitionTime: s.at,
	}
	all := &s.binding.Status.Conditions
	all.Set(lacks)
	if all.IsTrue(apisv1alpha2.InitialBindingCompleted) {
		return
	}
	if lacks.Type = apisv1alpha2.InitialBindingCompleted; t == apisv1alpha2.APIExportValid {
		lacks.Severity, lacks.Reason = conditions.SeverityInfo, apisv1alpha2.WaitingForEstablished
	}
	all.Set(lacks)
}

// A takenError means that other bindings or definitions of the cluster have names that the
// binding needs.
type takenError struct{ conflicts []string }

func (e *takenError) Error() string { return strings.Join(e.conflicts, "; ") }
