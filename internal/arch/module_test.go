package arch

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// modfile is the output of "go mod edit -json" for a go.mod.
type modfile struct {
	Require []struct{ Path, Version string }
	Replace []struct{ Old struct{ Path string } }
}

func readModfile(t *testing.T, path string) modfile {
	t.Helper()
	var m modfile
	if err := json.Unmarshal(run(t, filepath.Dir(path), "mod", "edit", "-json", path), &m); err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return m
}

// checkModule checks go.mod for embedding programs: no replace lines, which are not inherited, and
// one version of all Kubernetes modules. It also checks that the programs of the tests are built
// from the same versions.
func checkModule(t *testing.T, r *repo) {
	ours := readModfile(t, filepath.Join(r.root, "go.mod"))
	for _, rep := range ours.Replace {
		t.Errorf("go.mod replaces %s: programs that embed this module would not inherit it; require a published version", rep.Old.Path)
	}
	kubernetes := strings.TrimSpace(string(run(t, r.root, "list", "-m", "-f", "{{.Version}} {{.GoMod}}", "k8s.io/kubernetes")))
	version, path, _ := strings.Cut(kubernetes, " ")
	want := "v0" + strings.TrimPrefix(version, "v1")

	versions := map[string]string{}
	for _, req := range ours.Require {
		versions[req.Path] = req.Version
	}
	programs := readModfile(t, filepath.Join(r.root, "test/tools/go.mod"))
	for _, rep := range programs.Replace {
		t.Errorf("test/tools/go.mod replaces %s: make check would compile all packages that depend on it twice; require one version in both modules", rep.Old.Path)
	}
	for _, req := range programs.Require {
		if v, ok := versions[req.Path]; ok && v != req.Version {
			t.Errorf("go.mod requires %s %s, test/tools/go.mod %s: make check would compile all packages that depend on it twice", req.Path, v, req.Version)
		}
	}

	published := readModfile(t, path)
	staging := map[string]bool{}
	for _, rep := range published.Replace {
		staging[rep.Old.Path] = true
	}
	if len(staging) == 0 {
		t.Fatalf("%s has no staging modules: this check no longer knows how Kubernetes is published", path)
	}
	required := map[string]bool{}
	for _, req := range ours.Require {
		required[req.Path] = true
		if staging[req.Path] && req.Version != want {
			t.Errorf("go.mod requires %s %s beside k8s.io/kubernetes %s: use %s", req.Path, req.Version, version, want)
		}
	}
	for _, req := range published.Require {
		if staging[req.Path] && !required[req.Path] {
			t.Errorf("go.mod does not require %s, so that go mod tidy fails in programs that embed us: see internal/arch/staging.go", req.Path)
		}
	}
}
