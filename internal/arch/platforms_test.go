package arch

import (
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// platforms finds files for one platform without a file of the same package for the others. Nothing else
// in make check notices that a program does not compile for Windows.
func platforms(root fs.FS) (out []finding, err error) {
	err = fs.WalkDir(root, ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "bin" || d.Name() == ".git" || d.Name() == ".kcp") {
			return fs.SkipDir
		}
		for _, suffix := range []string{"_unix.go", "_linux.go"} {
			name, ok := strings.CutSuffix(at, suffix)
			if !ok {
				continue
			}
			if _, err := fs.Stat(root, name+"_other.go"); err != nil {
				out = append(out, finding{check: "platform", place: at, what: "there is no " + path.Base(name) + "_other.go beside it"})
			}
		}
		return nil
	})
	return out, err
}

func checkPlatforms(t *testing.T, r *repo) {
	found, err := platforms(os.DirFS(r.root))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Errorf("%s: %s", f.place, f.what)
	}
}

func TestPlatforms(t *testing.T) {
	found, err := platforms(fstest.MapFS{"a/x_unix.go": {}, "b/x_other.go": {}, "c/y_linux.go": {}, "c/y_other.go": {}, "bin/z_linux.go": {}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"platform a/x_unix.go"}, keys(found)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
