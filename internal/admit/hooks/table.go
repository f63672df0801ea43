package hooks

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// Resource returns the stored resource of a kind of admissionregistration.k8s.io.
func Resource(plural string) keys.Resource {
	return keys.NativeResource(schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: plural})
}

// A row is a stored configuration. It is never changed: another version of the object is
// another row.
type row[T any] struct {
	name   string
	object T
	// descends is true for a binding that also applies below its cluster, or that cannot be read.
	descends bool
	// unreadable is why the object cannot be read. Requests that it might concern are refused.
	unreadable error

	size int // of the stored value in bytes
	cell cell
	// weight is that of the match conditions of webhooks. It is set once.
	weight   int
	weighing sync.Once
}

// readable returns an error if an object of rows cannot be read.
func readable[T any](rows []*row[T]) error {
	for _, r := range rows {
		if r.unreadable != nil {
			return apierrors.NewServiceUnavailable(r.unreadable.Error() + "; requests are refused until it is deleted or can be read")
		}
	}
	return nil
}

// newTable returns the table of a kind of admissionregistration.k8s.io.
func newTable[T runtime.Object](s *store.Store, plural string, empty func() T) *feed.Table[*row[T]] {
	return feed.NewEventTable(s.Feed(), Resource(plural), func(e feed.Event) (*row[T], error) {
		r := &row[T]{name: e.Key.Name, size: len(e.Value)}
		if r.object, r.unreadable = read(e, empty); r.unreadable != nil {
			r.descends = true
			r.unreadable = fmt.Errorf("the stored %s %q cannot be read: %w", plural, e.Key.Name, r.unreadable)
		} else if m, ok := runtime.Object(r.object).(metav1.Object); ok {
			r.descends = m.GetLabels()[core.PolicyDescendantsLabel] == "true"
		}
		return r, nil
	})
}

// read decodes an object. A panic is an error: without a row, requests would pass unchecked.
func read[T runtime.Object](e feed.Event, empty func() T) (out T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	o, err := e.Object(context.Background())
	if err != nil {
		return out, err
	}
	if out = empty(); reflect.TypeOf(o) == reflect.TypeOf(out) {
		out = o.(T)
	} else if err := legacyscheme.Scheme.Convert(o, out, nil); err != nil {
		return out, err
	}
	if m, ok := runtime.Object(out).(metav1.Object); ok {
		m.SetManagedFields(nil) // to save memory
	}
	return out, nil
}
