// Package module tests the Go module as its users get it: through a module proxy, at a
// version, from a module of their own.
package module

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

const path = "github.com/unforked/kcp"

// TestFreshModule follows docs/using-the-library.md in an empty folder: go mod init, go
// get, go mod tidy, and in the nightly form go build. That form also installs the programs.
func TestFreshModule(t *testing.T) {
	version, env := offered(t)
	dir := t.TempDir()
	run(t, dir, env, "mod", "init", "example.com/fresh")
	example, err := os.ReadFile("../../examples/embed/main.go")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.go"), example, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, env, "get", path+"@"+version)
	run(t, dir, env, "mod", "tidy")
	checkVersions(t, dir)
	if os.Getenv("NIGHTLY") == "" {
		run(t, dir, env, "list", "-deps", "-test", ".") // finds each package that a build needs
		t.Log("make nightly builds the program and runs it, and installs kcp and its plugin")
		return
	}

	run(t, dir, env, "build", "-o", "fresh", ".")
	if out := execute(t, dir, env, filepath.Join(dir, "fresh")); !strings.Contains(out, "team-a team-a\nteam-b team-b\n") {
		t.Errorf("the program prints %q", out)
	}
	env = append(env, "GOBIN="+filepath.Join(dir, "bin"))
	run(t, dir, env, "install", path+"/cmd/kcp@"+version, path+"/cmd/kubectl-kcp@"+version)
	for _, program := range []string{"kcp", "kubectl-kcp"} {
		if out := execute(t, dir, env, filepath.Join(dir, "bin", program), "version"); !strings.Contains(out, version) {
			t.Errorf("%s version prints %q", program, out)
		}
	}
}

// offered returns a version of the module, and the environment of a go command that gets the
// checkout for that version. All other modules come from the module cache or from the usual
// proxy.
func offered(t *testing.T) (string, []string) {
	t.Helper()
	proxy := t.TempDir()
	version := publish(t, filepath.Join(proxy, path, "@v"))
	var usual struct{ GOMODCACHE, GOPROXY string }
	if err := json.Unmarshal([]byte(execute(t, "", os.Environ(), "go", "env", "-json", "GOMODCACHE", "GOPROXY")), &usual); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{filepath.Join(path, "@v"), path + "@" + version} {
		t.Cleanup(func() { forget(t, usual.GOMODCACHE, version, left) })
	}
	downloads := "file://" + filepath.ToSlash(filepath.Join(usual.GOMODCACHE, "cache", "download"))
	return version, append(os.Environ(), "GOPROXY=file://"+filepath.ToSlash(proxy)+","+downloads+","+usual.GOPROXY,
		"GONOSUMDB="+path, "GOFLAGS="+os.Getenv("GOFLAGS")+" -modcacherw -buildvcs=false", "GOWORK=off")
}

// publish writes the checkout to dir in the layout of a module proxy, and returns its
// version. Each content has its own version, because the go command caches modules by
// version. v0.0.0 is never released.
func publish(t *testing.T, dir string) string {
	t.Helper()
	root := filepath.Join("..", "..")
	files := sources(t, root)
	version := "v0.0.0-fresh.x" + hash(t, files)
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	var archive bytes.Buffer
	if err == nil {
		err = zip.Create(&archive, module.Version{Path: path, Version: version}, files)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"list":            []byte(version + "\n"),
		version + ".info": fmt.Appendf(nil, `{"Version":%q,"Time":"2020-01-01T00:00:00Z"}`, version),
		version + ".mod":  gomod,
		version + ".zip":  archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return version
}

// hash returns the beginning of a hash of the names and contents of files.
func hash(t *testing.T, files []zip.File) string {
	t.Helper()
	byName, names := map[string]zip.File{}, make([]string, len(files))
	for i, f := range files {
		names[i] = f.Path()
		byName[names[i]] = f
	}
	sum, err := dirhash.Hash1(names, func(name string) (io.ReadCloser, error) { return byName[name].Open() })
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString([]byte(strings.TrimPrefix(sum, "h1:")))[:24]
}

// sources returns the files of the module at root. It excludes bin, which contains build
// output and exceeds the maximum size of a module.
func sources(t *testing.T, root string) []zip.File {
	t.Helper()
	checked, err := zip.CheckDir(root)
	if err != nil && checked.SizeError == nil {
		t.Fatal(err)
	}
	var all []zip.File
	for _, name := range checked.Valid {
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		if rel = filepath.ToSlash(rel); !strings.HasPrefix(rel, "bin/") {
			all = append(all, source{rel, name})
		}
	}
	return all
}

// A source is a file of the module, for package zip.
type source struct{ rel, name string }

func (s source) Path() string                 { return s.rel }
func (s source) Lstat() (os.FileInfo, error)  { return os.Lstat(s.name) }
func (s source) Open() (io.ReadCloser, error) { return os.Open(s.name) }

// forget removes the version of the test from the module cache.
func forget(t *testing.T, cache, version, left string) {
	t.Helper()
	if strings.HasSuffix(left, "@v") {
		old, err := filepath.Glob(filepath.Join(cache, "cache", "download", left, version+".*"))
		if err != nil {
			t.Error(err)
		}
		for _, file := range old {
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
		}
		return
	}
	if err := os.RemoveAll(filepath.Join(cache, left)); err != nil {
		t.Error(err)
	}
}

// checkVersions checks that the module in dir requires the same versions of Kubernetes
// modules as kcp.
func checkVersions(t *testing.T, dir string) {
	t.Helper()
	theirs, ours := required(t, dir), required(t, filepath.Join("..", ".."))
	for path, version := range theirs {
		if want := ours[path]; strings.HasPrefix(path, "k8s.io/") && version != want {
			t.Errorf("the fresh module has %s %s, kcp has %s", path, version, want)
		}
	}
}

func required(t *testing.T, dir string) map[string]string {
	t.Helper()
	name := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.ParseLax(name, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, r := range file.Require {
		all[r.Mod.Path] = r.Mod.Version
	}
	return all
}

func run(t *testing.T, dir string, env []string, args ...string) {
	t.Helper()
	execute(t, dir, env, "go", args...)
}

// execute returns the standard output of a program, which must succeed.
func execute(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}
