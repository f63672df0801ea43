package store

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

type scopeKey struct{}

// WithScope returns a context in which lists and watches of custom resources in all clusters
// are limited to the clusters of a set. A watch delivers the objects of a cluster that enters
// the set as added, and those of a cluster that leaves it as deleted. Lists are complete: they
// ignore a limit, because the tokens and counts of pages would tell of other clusters.
func WithScope(ctx context.Context, s *feed.Set) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// ScopeOf returns the scope of a request to all clusters, nil if it has none.
func ScopeOf(ctx context.Context) *feed.Set {
	s, _ := ctx.Value(scopeKey{}).(*feed.Set)
	if s == nil || !cluster.IsAll(ctx) {
		return nil
	}
	return s
}

// unpaged removes the paging from the options of a request within a scope.
func (s *Storage) unpaged(o storage.ListOptions) (storage.ListOptions, error) {
	switch {
	case s.of.Resource.Root != keys.Custom:
		return o, apierrors.NewInternalError(fmt.Errorf("%s in a set of clusters: only custom resources can be listed so", s.of.Resource.Resource))
	case o.Predicate.Continue != "":
		return o, apierrors.NewBadRequest("lists of this view have a single page: leave out the parameter continue")
	}
	o.Predicate.Limit = 0
	return o, nil
}
