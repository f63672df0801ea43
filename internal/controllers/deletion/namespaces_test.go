package deletion

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resources whose objects are deleted last are separated from the others of their group, and
// neither list loses a resource.
func TestResourcesThatAreDeletedLast(t *testing.T) {
	t.Parallel()
	of := func(gv string, names ...string) *metav1.APIResourceList {
		list := &metav1.APIResourceList{GroupVersion: gv}
		for _, n := range names {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: n})
		}
		return list
	}
	all := []*metav1.APIResourceList{of("v1", "pods", "secrets"), of("apps/v1", "deployments"), of("example.com/v1", "pods")}
	for name, c := range map[string]struct {
		last        []schema.GroupResource
		first, then []*metav1.APIResourceList
	}{
		"none":                {nil, all, nil},
		"one of a group":      {[]schema.GroupResource{{Resource: "secrets"}}, []*metav1.APIResourceList{of("v1", "pods"), all[1], all[2]}, []*metav1.APIResourceList{of("v1", "secrets")}},
		"one that is missing": {[]schema.GroupResource{{Group: "apps", Resource: "secrets"}}, all, nil},
	} {
		first, then := (&contentClients{last: c.last}).inOrder(all)
		if diff := cmp.Diff([][]*metav1.APIResourceList{c.first, c.then}, [][]*metav1.APIResourceList{first, then}); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}
