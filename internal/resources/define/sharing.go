package define

import (
	"crypto/sha256"
	"encoding/json"
	"unique"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// longText is the minimal length in bytes of an annotation that is deduplicated.
const longText = 256

// sharing deduplicates the schemas and managed fields of definitions in many clusters.
type sharing struct {
	schemas *recent.Interned[catalog.Hash, apiextensions.CustomResourceValidation]
	fields  *recent.Interned[catalog.Hash, metav1.FieldsV1]
}

func newSharing() *sharing {
	return &sharing{recent.NewInterned[catalog.Hash, apiextensions.CustomResourceValidation](), recent.NewInterned[catalog.Hash, metav1.FieldsV1]()}
}

// Share replaces large parts of crd by shared, equal ones. The caller must own crd, and
// must not change it afterwards.
func (d *Definitions) Share(crd *apiextensions.CustomResourceDefinition) {
	if p := crd.Spec.PreserveUnknownFields; p != nil {
		// The pointer leads into the definition that crd was converted from, and would
		// keep that in memory.
		crd.Spec.PreserveUnknownFields = new(*p)
	}
	crd.Spec.Validation = d.sharing.schema(crd.Spec.Validation)
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = d.sharing.schema(crd.Spec.Versions[i].Schema)
	}
	for i := range crd.ManagedFields {
		if own := crd.ManagedFields[i].FieldsV1; own != nil {
			crd.ManagedFields[i].FieldsV1, _ = d.sharing.fields.Get(sha256.Sum256(own.GetRawBytes()), func() (*metav1.FieldsV1, error) { return own, nil })
		}
	}
	for k, v := range crd.Annotations {
		if len(v) >= longText {
			crd.Annotations[k] = unique.Make(v).Value()
		}
	}
}

func (s *sharing) schema(own *apiextensions.CustomResourceValidation) *apiextensions.CustomResourceValidation {
	if own == nil {
		return nil
	}
	text, err := json.Marshal(own)
	if err != nil {
		return own // never happens: the schema was decoded from JSON
	}
	shared, _ := s.schemas.Get(sha256.Sum256(text), func() (*apiextensions.CustomResourceValidation, error) { return own, nil })
	return shared
}
