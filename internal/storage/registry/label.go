package registry

import (
	"context"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
)

type labelKey struct{}

// A Label is a label that the objects of a resource have in a request, and that is not stored. A nil
// Label changes nothing.
type Label struct {
	of         schema.GroupResource
	key, value string
}

// WithLabel returns a context for requests in which all objects of a resource have a label that is
// not stored. Its key must begin with [apisv1alpha2.ClaimedLabelPrefix]: clients cannot write such
// labels.
func WithLabel(ctx context.Context, of schema.GroupResource, key, value string) context.Context {
	return context.WithValue(ctx, labelKey{}, &Label{of, key, value})
}

// LabelOf returns the label of the objects of a resource in a request, nil for none.
func LabelOf(ctx context.Context, of schema.GroupResource) *Label {
	l, _ := ctx.Value(labelKey{}).(*Label)
	if l == nil || l.of != of {
		return nil
	}
	return l
}

func (s *Storage) label(ctx context.Context) *Label {
	return LabelOf(ctx, s.of.Resource.GroupResource())
}

// DecodesObjects reports whether requests in ctx need decoded objects: they read and write only a
// part of the objects of some resource, or these have a label that is not stored.
func DecodesObjects(ctx context.Context) bool {
	return ctx.Value(partKey{}) != nil || ctx.Value(labelKey{}) != nil
}

// add adds the label to an object of the caller. Maps of the object may be shared: add copies
// those that it changes.
func (l *Label) add(o runtime.Object) error {
	if l == nil {
		return nil
	}
	a, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	if u, ok := o.(*unstructured.Unstructured); ok {
		u.Object = maps.Clone(u.Object)
		if m, ok := u.Object["metadata"].(map[string]any); ok {
			u.Object["metadata"] = maps.Clone(m)
		}
	}
	of := make(map[string]string, len(a.GetLabels())+1)
	maps.Copy(of, a.GetLabels())
	of[l.key] = l.value
	a.SetLabels(of)
	return nil
}

// found adds the label to an object that was read, unless none was found.
func (l *Label) found(o runtime.Object) error {
	if l == nil {
		return nil
	}
	if a, err := meta.Accessor(o); err != nil || a.GetName() == "" {
		return err
	}
	return l.add(o)
}

// addAll adds the label to the objects of a list.
func (l *Label) addAll(list runtime.Object) error {
	if l == nil {
		return nil
	}
	return meta.EachListItem(list, l.add)
}

// copied returns an object with the label. It leaves the given one as it is.
func (l *Label) copied(o runtime.Object) (runtime.Object, error) {
	if l == nil {
		return o, nil
	}
	if c, ok := o.(runtime.CacheableObject); ok {
		o = c.GetObject()
	}
	of := reflect.New(reflect.TypeOf(o).Elem())
	of.Elem().Set(reflect.ValueOf(o).Elem())
	o, _ = of.Interface().(runtime.Object)
	return o, l.add(o)
}

// Event returns an event with the label.
func (l *Label) Event(e watch.Event) watch.Event {
	if l == nil || e.Type == watch.Bookmark || e.Type == watch.Error {
		return e
	}
	if o, err := l.copied(e.Object); err == nil {
		e.Object = o
	}
	return e
}

// Events returns a conversion of events that adds the label after another one.
func (l *Label) Events(convert func(watch.Event) (watch.Event, bool)) func(watch.Event) (watch.Event, bool) {
	if l == nil {
		return convert
	}
	return func(e watch.Event) (watch.Event, bool) {
		e, ok := convert(e)
		if ok {
			e = l.Event(e)
		}
		return e, ok
	}
}

// update returns an update that sees the label of an object, and stores none that is computed.
func (l *Label) update(update storage.UpdateFunc) storage.UpdateFunc {
	return func(in runtime.Object, r storage.ResponseMeta) (out runtime.Object, ttl *uint64, err error) {
		if r.ResourceVersion != 0 { // it exists
			if in, err = l.copied(in); err != nil {
				return nil, nil, err
			}
		}
		if out, ttl, err = update(in, r); err != nil {
			return nil, nil, err
		}
		a, err := meta.Accessor(out)
		if err != nil {
			return nil, nil, err
		}
		dropComputed(a)
		return out, ttl, nil
	}
}

// selects returns the options of a list or watch whose selector needs only stored labels.
func (l *Label) selects(o storage.ListOptions) storage.ListOptions {
	if l == nil || o.Predicate.Label == nil {
		return o
	}
	all, selectable := o.Predicate.Label.Requirements()
	if !selectable {
		return o
	}
	stored := labels.NewSelector()
	for _, r := range all {
		switch {
		case r.Key() != l.key:
			stored = stored.Add(r)
		case !r.Matches(labels.Set{l.key: l.value}):
			o.Predicate.Label = labels.Nothing()
			return o
		}
	}
	o.Predicate.Label = stored
	return o
}

// dropComputed removes the labels that are computed when objects are read. A client may have copied
// them.
func dropComputed(a metav1.Object) {
	computed := func(key, _ string) bool { return strings.HasPrefix(key, apisv1alpha2.ClaimedLabelPrefix) }
	for key, value := range a.GetLabels() {
		if computed(key, value) {
			of := maps.Clone(a.GetLabels())
			maps.DeleteFunc(of, computed)
			a.SetLabels(of)
			return
		}
	}
}
