package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// definitionOf returns a CustomResourceDefinition in a certain version, with further lines in
// its spec.
func definitionOf(plural, version, more string) string {
	return `{apiVersion: apiextensions.k8s.io/` + version + `, kind: CustomResourceDefinition, metadata: {name: ` + plural + `.example.com},
  spec: {group: example.com, scope: Cluster, names: {plural: ` + plural + `, kind: Kind}, ` + more + `
    versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}
`
}

func TestSnapshot(t *testing.T) {
	other := "{apiVersion: v1, kind: ConfigMap, metadata: {name: beside}}\n"
	skipped := "note: skipped ConfigMap \"beside\": only CustomResourceDefinitions become APIResourceSchemas\n"
	for name, c := range map[string]struct {
		file    string
		schemas []string
		err     string
	}{
		"one":             {definitionOf("as", "v1", ""), []string{"APIResourceSchema v7.as.example.com"}, ""},
		"several":         {definitionOf("as", "v1", "") + "---\n" + definitionOf("bs", "v1", ""), []string{"APIResourceSchema v7.as.example.com", "APIResourceSchema v7.bs.example.com"}, ""},
		"a list":          {"apiVersion: v1\nkind: List\nitems: [" + definitionOf("as", "v1", "") + "," + definitionOf("bs", "v1", "") + "]", []string{"APIResourceSchema v7.as.example.com", "APIResourceSchema v7.bs.example.com"}, ""},
		"others beside":   {other + "---\n" + definitionOf("as", "v1", "") + "---\n", []string{"APIResourceSchema v7.as.example.com"}, skipped},
		"others only":     {other, nil, skipped + "error: cannot read FILE: it has no CustomResourceDefinition\n"},
		"an old version":  {definitionOf("as", "v1beta1", ""), nil, "error: cannot read FILE: CustomResourceDefinition \"as.example.com\" has version v1beta1; convert it to v1\n"},
		"a misspelling":   {definitionOf("as", "v1", "scoop: Cluster,"), nil, "error: cannot read FILE: CustomResourceDefinition \"as.example.com\": error unmarshaling JSON: while decoding JSON: json: unknown field \"scoop\"\n"},
		"without schemas": {strings.ReplaceAll(definitionOf("as", "v1", ""), ", schema: {openAPIV3Schema: {type: object}}", ""), nil, "error: APIResourceSchema for the CustomResourceDefinition \"as.example.com\": version \"v1\" has no schema\n"},
	} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"yaml", "json"} {
			got := call(t, "", "kubectl-kcp", "crd", "snapshot", "-f", file, "--prefix", "v7", "-o", format)
			want := strings.ReplaceAll(c.err, "FILE", file)
			if got.err != want || (got.code == 0) != (c.schemas != nil) {
				t.Errorf("%s: got %+v, want %q on standard error", name, got, want)
			}
			var schemas []string
			documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(got.out), 4096)
			for {
				var s metav1.PartialObjectMetadata
				if documents.Decode(&s) != nil {
					break
				}
				schemas = append(schemas, s.Kind+" "+s.Name)
			}
			if diff := cmp.Diff(c.schemas, schemas); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}
