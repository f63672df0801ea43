package define

import (
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
)

// Paths of printer columns whose output could grow with their length are refused.
func TestColumns(t *testing.T) {
	for path, ok := range map[string]bool{
		".status.phase": true, ".metadata.ownerReferences[*].name": true, `.status.conditions[?(@.type=="Ready")].status`: true,
		".spec..name": true, ".spec['a','b']": true, ".spec.items[0:3]['a','b']": true, "(": true, "": true, `.metadata.labels.example\.com/a`: true,
		".spec..a..a": false, ".spec" + strings.Repeat("..a", 20): false, ".spec" + strings.Repeat("['a','a']", 7): false,
		".spec[?(@..a==1)]..b": false, ".a}{range .b[*]}{.c}{end}{.d": false, "." + strings.Repeat("a", maxPath): false, ".a[?(@.b)].c": true,
	} {
		columns := []apiextensions.CustomResourceColumnDefinition{{JSONPath: ".status"}, {JSONPath: path}}
		crd := &apiextensions.CustomResourceDefinition{}
		crd.Spec.Versions = []apiextensions.CustomResourceDefinitionVersion{{}, {AdditionalPrinterColumns: columns}}
		err := checkColumns(crd)
		if (err == nil) != ok {
			t.Errorf("%.40q: %v", path, err)
		}
		if err != nil && err.Field != "spec.versions[1].additionalPrinterColumns[1].jsonPath" {
			t.Errorf("%.40q: %v", path, err)
		}
	}
}
