package admit

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/tenancy"
)

// builtIn protects the built-in exports of the root workspace, their schemas, and the bindings
// of the root workspace to them, from all users. Every workspace depends on them.
func (s Sharing) builtIn(_ context.Context, r Request) error {
	o := r.Old() // the name of a request for a whole collection is empty
	if o == nil || r.Cluster != cluster.Root {
		return nil
	}
	name, deletes := o.GetName(), r.GetOperation() == admission.Delete
	needed := func(what string) error {
		return r.Forbid(fmt.Errorf("%s %s may not be deleted: every workspace depends on it", what, name))
	}
	switch {
	case r.Is(sharingResource("apiexports")) && tenancy.IsBuiltIn(r.Cluster, name):
		if deletes {
			return needed("APIExport")
		}
		return keepBuiltIn(r)
	case r.Is(sharingResource("apiresourceschemas")) && deletes:
		if n, err := apisv1alpha1.ParseSchemaName(name); err == nil && tenancy.IsKind(n.GroupResource) {
			return needed("APIResourceSchema")
		}
	case r.Is(sharingResource("apibindings")) && deletes && s.RootBinding(name):
		return needed("APIBinding")
	}
	return nil
}

// keepBuiltIn refuses another identity or other resources of a built-in export.
func keepBuiltIn(r Request) error {
	now, ok := r.GetObject().(*unstructured.Unstructured)
	old, ok2 := r.GetOldObject().(*unstructured.Unstructured)
	if !ok || !ok2 || r.GetSubresource() != "" {
		return nil
	}
	for _, field := range []string{"resources", "latestResourceSchemas", "identity"} {
		a, _, _ := unstructured.NestedFieldNoCopy(old.Object, "spec", field)
		b, _, _ := unstructured.NestedFieldNoCopy(now.Object, "spec", field)
		if !reflect.DeepEqual(a, b) {
			return r.Forbid(errors.New("spec." + field + " of a built-in export is that of the server and cannot be changed"))
		}
	}
	return nil
}
