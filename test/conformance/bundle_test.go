package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// bundle has the CRDs and samples of one version of a project.
type bundle struct {
	name    string
	crds    []definition
	samples map[string][]sample // by group and kind
}

// definition is a CRD, in its original form and parsed.
type definition struct {
	body string // JSON
	apiextensionsv1.CustomResourceDefinition
}

// sample is a valid or invalid object of a project.
type sample struct {
	name   string
	object map[string]any
}

// bundles returns all bundles of test/tools/bundles.txt, or those of the short form.
func bundles(t *testing.T, long bool) []*bundle {
	t.Helper()
	text, err := os.ReadFile("../tools/bundles.txt")
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{} // of modules
	var out []*bundle
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 7 {
			t.Fatalf("bundles.txt: %d fields in %q, want 7", len(f), line)
		}
		if f[6] != "short" && !long {
			continue
		}
		module := f[1] + "@" + f[2]
		if dirs[module] == "" {
			dirs[module] = download(t, module, f[3])
		}
		out = append(out, readBundle(t, f[0], filepath.Join(dirs[module], f[4]), under(dirs[module], f[5])))
	}
	return out
}

// under returns the folders of a list, below dir.
func under(dir, list string) []string {
	var out []string
	for f := range strings.SplitSeq(list, ",") {
		out = append(out, filepath.Join(dir, f))
	}
	return out
}

// download returns the folder of a module. It compares the hash itself, because no go.sum has
// the module.
func download(t *testing.T, module, sum string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GONOSUMDB=*", "GOTOOLCHAIN=local")
	out, err := cmd.Output()
	var is struct{ Dir, Sum, Error string }
	if json.Unmarshal(out, &is) != nil || err != nil || is.Sum != sum {
		t.Fatalf("download %s: hash %q, want %q (%v) %s", module, is.Sum, sum, err, is.Error)
	}
	return is.Dir
}

func readBundle(t *testing.T, name, crds string, samples []string) *bundle {
	t.Helper()
	b := &bundle{name: name, samples: map[string][]sample{}}
	for _, d := range documents(t, crds) {
		if d.object["kind"] != "CustomResourceDefinition" {
			continue
		}
		body, err := json.Marshal(d.object)
		if err != nil {
			t.Fatal(err)
		}
		c := definition{body: string(body)}
		if err := json.Unmarshal(body, &c.CustomResourceDefinition); err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		b.crds = append(b.crds, c)
		b.samples[c.Spec.Group+" "+c.Spec.Names.Kind] = nil
	}
	if len(b.crds) == 0 {
		t.Fatalf("no CRDs in %s", crds)
	}
	for _, dir := range samples {
		for _, d := range documents(t, dir) {
			version, _ := d.object["apiVersion"].(string)
			group, _, _ := strings.Cut(version, "/")
			key := fmt.Sprintf("%s %s", group, d.object["kind"])
			if _, ours := b.samples[key]; ours && named(d.object) {
				b.samples[key] = append(b.samples[key], d)
			}
		}
	}
	return b
}

// named reports whether the object has a name. Without a name it has no URL.
func named(object map[string]any) bool {
	meta, _ := object["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	return name != "" && !strings.ContainsAny(name, "/${<")
}

// documents returns all YAML documents below a file or folder, also those in pages of
// documentation. It ignores text that is not YAML, such as templates.
func documents(t *testing.T, root string) []sample {
	t.Helper()
	var out []sample
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var parts [][]byte
		switch filepath.Ext(path) {
		case ".yaml", ".yml":
			parts = split(text)
		case ".md":
			for _, m := range regexp.MustCompile("(?s)\n```ya?ml[^\n]*\n(.*?)\n```").FindAllSubmatch(text, -1) {
				parts = append(parts, split(m[1])...)
			}
		}
		for i, part := range parts {
			var object map[string]any
			if yaml.Unmarshal(part, &object) == nil && object["kind"] != nil {
				rel, _ := filepath.Rel(root, path)
				out = append(out, sample{name: fmt.Sprintf("%s#%d", rel, i+1), object: object})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(out, func(a, b sample) int { return strings.Compare(a.name, b.name) })
	return out
}

func split(text []byte) [][]byte {
	return bytes.Split(append([]byte("\n"), text...), []byte("\n---"))
}
