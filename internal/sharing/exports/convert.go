package exports

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// Converters returns the conversions of the kinds with several versions: APIExports and APIBindings.
func Converters() map[schema.GroupResource]catalog.Convert {
	return map[schema.GroupResource]catalog.Convert{
		Resource().GroupResource(): between(
			func(e *apisv1alpha1.APIExport) (runtime.Object, error) { return e.ToV1alpha2(), e.Convertible() },
			func(e *apisv1alpha2.APIExport) runtime.Object { return apisv1alpha1.APIExportFromV1alpha2(e) }),
		apisv1alpha2.GroupVersion.WithResource("apibindings").GroupResource(): between(
			func(b *apisv1alpha1.APIBinding) (runtime.Object, error) { return b.ToV1alpha2(), b.Convertible() },
			func(b *apisv1alpha2.APIBinding) runtime.Object { return apisv1alpha1.APIBindingFromV1alpha2(b) }),
	}
}

// between returns the conversion between v1alpha1 and v1alpha2 of one kind.
func between[Old, New any](up func(*Old) (runtime.Object, error), down func(*New) runtime.Object) catalog.Convert {
	return func(o *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
		gv, err := schema.ParseGroupVersion(to)
		if err != nil {
			return nil, err
		}
		var out runtime.Object
		switch to {
		case apisv1alpha2.GroupVersion.String():
			var old *Old
			if old, err = values.Typed[Old](dropEntries(o)); err == nil {
				out, err = up(old)
			}
		case apisv1alpha1.GroupVersion.String():
			var now *New
			if now, err = values.Typed[New](o); err == nil {
				out = down(now)
			}
		default:
			err = fmt.Errorf("there is no version %s", to)
		}
		if err != nil {
			return nil, err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(out)
		if err != nil {
			return nil, err
		}
		converted := &unstructured.Unstructured{Object: content}
		converted.SetGroupVersionKind(gv.WithKind(o.GetKind()))
		nameEntries(o, converted)
		return converted, nil
	}
}

// InStorageVersion calls a hook with objects in v1alpha2. The hook of a creation gets and
// returns an object in the version of its request.
func InStorageVersion(r schema.GroupResource, hook store.CreateHook) store.CreateHook {
	convert := Converters()[r]
	return func(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error {
		requested := obj.GetAPIVersion()
		if requested == apisv1alpha2.GroupVersion.String() {
			return hook(ctx, c, obj)
		}
		stored, err := convert(obj, apisv1alpha2.GroupVersion.String())
		if err != nil {
			return err
		}
		if err := hook(ctx, c, stored); err != nil {
			return err
		}
		back, err := convert(stored, requested)
		if err == nil {
			obj.Object = back.Object
		}
		return err
	}
}
