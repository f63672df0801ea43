package watchcache

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/watches"
)

// items are the items of a list, of custom resources or of a native kind.
type items struct {
	meta  metav1.ListInterface
	slice reflect.Value // settable, of structs
}

func itemsOf(list runtime.Object) (items, error) {
	at, err := meta.GetItemsPtr(list)
	if err != nil {
		return items{}, fmt.Errorf("list of objects into a %T: %w", list, err)
	}
	about, err := meta.ListAccessor(list)
	return items{about, reflect.ValueOf(at).Elem()}, err
}

// reserve makes an empty slice for n items.
func (l items) reserve(n int) { l.slice.Set(reflect.MakeSlice(l.slice.Type(), 0, n)) }

// add appends an object. The list then shares what it points to.
func (l items) add(o runtime.Object) { l.slice.Set(reflect.Append(l.slice, reflect.ValueOf(o).Elem())) }

// scope removes the items of clusters that are not in the scope of the request.
func (l items) scope(ctx context.Context, s *store.Store) error {
	if registry.ScopeOf(ctx) == nil {
		return nil
	}
	all := make([]reflect.Value, l.slice.Len())
	for i := range all {
		all[i] = l.slice.Index(i)
	}
	left, err := watches.Scoped(ctx, s, l.meta.GetResourceVersion(), all, func(v *reflect.Value) cluster.Name {
		o, ok := v.Addr().Interface().(metav1.Object)
		if !ok {
			return ""
		}
		return cluster.Of(o)
	})
	if err != nil {
		return err
	}
	fresh := reflect.MakeSlice(l.slice.Type(), 0, len(left))
	l.slice.Set(reflect.Append(fresh, left...))
	return nil
}
