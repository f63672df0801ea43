package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/membership"
)

type partKey struct{}

// A partOf is the part of the objects of a resource that a request may read and write.
type partOf struct {
	schema.GroupResource
	membership.Part
}

// WithPart returns a context in which requests in one cluster read and write only a part of the
// objects of a resource. Others seem not to exist, and a write of an object that is not in the
// part is refused. Other resources are not affected.
func WithPart(ctx context.Context, of schema.GroupResource, p membership.Part) context.Context {
	return context.WithValue(ctx, partKey{}, &partOf{of, p})
}

// PartFrom returns the part that requests of ctx are limited to, all objects if there is no limit.
func PartFrom(ctx context.Context) membership.Part {
	if p, _ := ctx.Value(partKey{}).(*partOf); p != nil {
		return p.Part
	}
	return membership.Part{}
}

// part returns what a request may read and write, nil for all objects.
func (s *Storage) part(ctx context.Context) *partOf {
	p, _ := ctx.Value(partKey{}).(*partOf)
	if p == nil || p.Group != s.of.Resource.Group || p.Resource != s.of.Resource.Resource {
		return nil
	}
	return p
}

// has reports whether an object is in the part. All are in that of a request without one.
func (p *partOf) has(o runtime.Object) bool {
	if p == nil {
		return true
	}
	a, err := meta.Accessor(o)
	return err == nil && p.Has(labels.Set(a.GetLabels()))
}

// takes returns an error for an object that is not in the part.
func (p *partOf) takes(o runtime.Object) error {
	if p.has(o) {
		return nil
	}
	name := ""
	if a, err := meta.Accessor(o); err == nil {
		name = a.GetName()
	}
	return apierrors.NewForbidden(p.GroupResource, name, fmt.Errorf("only objects whose labels match %q can be written here; set these labels", p.Part.String()))
}

// selectPart adds the part of a request to the options of a list or watch.
func (s *Storage) selectPart(ctx context.Context, o storage.ListOptions) storage.ListOptions {
	p := s.part(ctx)
	if p == nil {
		return o
	}
	if o.Predicate.Label == nil {
		o.Predicate.Label = labels.Everything()
	}
	o.Predicate.Label = o.Predicate.Label.Add(p.Requirements()...)
	return o
}

// withinPart returns an update that only changes objects of the part of a request, and leaves
// them there.
func (s *Storage) withinPart(ctx context.Context, key string, update storage.UpdateFunc) storage.UpdateFunc {
	p := s.part(ctx)
	if p == nil {
		return update
	}
	return func(in runtime.Object, r storage.ResponseMeta) (runtime.Object, *uint64, error) {
		if r.ResourceVersion != 0 && !p.has(in) {
			return nil, nil, storage.NewKeyNotFoundError(key, 0)
		}
		out, ttl, err := update(in, r)
		if err != nil {
			return nil, nil, err
		}
		return out, ttl, p.takes(out)
	}
}

// deletesPart returns a validation that only lets objects of the part of a request be deleted.
func (s *Storage) deletesPart(ctx context.Context, key string, v storage.ValidateObjectFunc) storage.ValidateObjectFunc {
	p := s.part(ctx)
	if p == nil {
		return v
	}
	return func(ctx context.Context, o runtime.Object) error {
		if !p.has(o) {
			return storage.NewKeyNotFoundError(key, 0)
		}
		return v(ctx, o)
	}
}
