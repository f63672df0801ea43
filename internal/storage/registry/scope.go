package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
)

type scopeKey struct{}

// A Scope is the clusters that a list or watch in all clusters reads, each with a part of its
// objects. A watch delivers the objects of a cluster that enters the set as added, and those of
// a cluster that leaves it as deleted. Lists are complete: they ignore a limit, because the
// tokens and counts of pages would reveal other clusters.
type Scope struct {
	*membership.Set
	// Sparse is true if clusters outside of the set may have most of the objects. A list then
	// reads one member after the other, unless others have few objects.
	Sparse bool
}

// WithScope returns a context in which lists and watches in all clusters have a scope. If it is
// not sparse, only those of custom resources may use the context.
func WithScope(ctx context.Context, s Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, &s)
}

// ScopeOf returns the scope of a request to all clusters, nil if it has none.
func ScopeOf(ctx context.Context) *Scope {
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	if s == nil || !cluster.IsAll(ctx) {
		return nil
	}
	return s
}

// unpaged removes the paging from the options of a request within a scope.
func (s *Storage) unpaged(scope *Scope, o storage.ListOptions) (storage.ListOptions, error) {
	switch {
	case s.of.Resource.Root != keys.Custom && !scope.Sparse:
		return o, apierrors.NewInternalError(fmt.Errorf("%s in a set of clusters: only custom resources can be listed so", s.of.Resource.Resource))
	case o.Predicate.Continue != "":
		return o, apierrors.NewBadRequest("lists of this view have a single page: leave out the parameter continue")
	}
	o.Predicate.Limit = 0
	return o, nil
}
