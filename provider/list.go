package provider

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/unforked/kcp/internal/view/joint"
)

// pageSize is the number of objects in a page of a list.
const pageSize = 500

// listThenWatch lists and watches the objects of all tenants. Objects are not decoded into Go
// types by the client: one that does not fit its type would fail the whole list.
type listThenWatch struct {
	ctx context.Context // for calls without one
	k   *kind
}

// IsWatchListSemanticsUnSupported turns streaming lists off; the Reflector calls it. It would
// collect the initial objects by namespace and name, so those of two tenants would collide.
func (l *listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext lists all objects, page by page: the server limits the memory of a request,
// and tenants choose how many objects there are, and how large.
func (l *listThenWatch) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	all := &internalversion.List{}
	limit := int64(pageSize)
	for {
		page, err := l.page(ctx, metav1.ListOptions{Limit: limit, Continue: all.Continue})
		if apierrors.IsRequestEntityTooLargeError(err) && limit > 1 {
			limit = max(limit/4, 1)
			continue
		}
		if err != nil {
			l.k.attempt(err)
			return nil, err
		}
		list, err := meta.ListAccessor(page)
		if err == nil {
			err = meta.EachListItem(page, func(o runtime.Object) error {
				all.Items = append(all.Items, l.smaller(o))
				return nil
			})
		}
		if err != nil {
			return nil, err
		}
		all.ResourceVersion, all.Continue = list.GetResourceVersion(), list.GetContinue()
		if all.Continue == "" {
			return all, nil
		}
	}
}

// smaller decodes an object of a page, so that a list needs less memory. The store reports
// those that cannot be decoded.
func (l *listThenWatch) smaller(o runtime.Object) runtime.Object {
	if c, ok := o.(client.Object); ok {
		if next, err := l.k.decode(c); err == nil {
			return next
		}
	}
	return o.DeepCopyObject() // not a reference to the whole page
}

func (l *listThenWatch) page(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	m, err := l.k.mapped()
	switch {
	case err != nil:
		return nil, err
	case l.k.key.form >= onlyMetadata:
		return l.k.view.metadata.Resource(m.Resource).List(ctx, o)
	}
	return l.k.view.objects.Resource(m.Resource).List(ctx, o)
}

// WatchWithContext implements cache.WatcherWithContext.
func (l *listThenWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	m, err := l.k.mapped()
	if err != nil {
		return nil, err
	}
	if l.k.key.form != onlyMetadata { // the server sends whole objects over a shared connection
		if w := l.k.view.joint.Join(l.k.key.GroupVersionKind, m.Resource, o.ResourceVersion, joint.Whole); w != nil {
			return w, nil
		}
	}
	if l.k.key.form >= onlyMetadata {
		return l.k.view.metadata.Resource(m.Resource).Watch(ctx, o)
	}
	return l.k.view.objects.Resource(m.Resource).Watch(ctx, o)
}

// List implements cache.Lister.
func (l *listThenWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(l.ctx, o)
}

// Watch implements cache.Watcher.
func (l *listThenWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(l.ctx, o)
}
