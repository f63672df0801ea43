package define

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Cached definitions share the memory of equal parts, without a change of their content.
func TestShare(t *testing.T) {
	crd := called("gadgets gadget Gadget GadgetList")
	crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	crd.Annotations = map[string]string{"long": strings.Repeat("x", longText), "short": "x"}
	crd.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "test", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}}
	text, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	codec := apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	read := func() *apiextensions.CustomResourceDefinition {
		o, err := runtime.Decode(codec, text)
		if err != nil {
			t.Fatal(err)
		}
		return o.(*apiextensions.CustomResourceDefinition)
	}
	d := &Definitions{sharing: newSharing()}
	plain, one, other := read(), read(), read()
	pointed := one.Spec.PreserveUnknownFields
	d.Share(one)
	d.Share(other)
	if diff := cmp.Diff(plain, one); diff != "" {
		t.Errorf("sharing changes a definition (-before +after):\n%s", diff)
	}
	if one.Spec.Validation == nil || one.Spec.Validation != other.Spec.Validation {
		t.Error("equal schemas are kept twice")
	}
	if one.ManagedFields[0].FieldsV1 != other.ManagedFields[0].FieldsV1 {
		t.Error("equal managed fields are kept twice")
	}
	if pointed == nil || one.Spec.PreserveUnknownFields == pointed {
		t.Error("a definition still points into that which it was converted from")
	}
}
