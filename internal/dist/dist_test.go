package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// checkArchive checks the programs of an archive.
func checkArchive(t *testing.T, r *release, dir string) {
	t.Helper()
	for _, name := range append(programs(), links()...) {
		checkProgram(t, filepath.Join(dir, name), host())
	}
	for _, name := range []string{"completions/kcp.bash", "completions/_kcp", "completions/kcp.fish", "man/man1/kcp-start.1", "man/man1/kubectl-kcp-ws-create.1", "LICENSE"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, program := range []string{"kcp", "kubectl-kcp"} {
		if out := output(t, filepath.Join(dir, program), "version"); !strings.Contains(out, r.version) || !strings.Contains(out, r.commit) || !strings.Contains(out, "k8s.io/client-go:") {
			t.Errorf("%s version prints\n%s", program, out)
		}
	}
	if out := output(t, filepath.Join(dir, "kubectl-ws"), "--help"); !strings.Contains(out, "kubectl ws [WORKSPACE]") {
		t.Errorf("kubectl-ws --help prints\n%s", out)
	}
}

// checkProgram checks that a program is for a platform, and static and stripped.
func checkProgram(t *testing.T, name string, p platform) {
	t.Helper()
	info, err := buildinfo.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOOS"] != p.os || settings["GOARCH"] != p.arch || settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
		t.Errorf("%s, a program for %s, was built with %v", name, p, settings)
	}
	if p.os != "linux" { // a static program elsewhere has the libraries of the system
		return
	}
	file, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if libraries, err := file.ImportedLibraries(); err != nil || len(libraries) > 0 || file.Section(".interp") != nil || file.Section(".symtab") != nil || file.Section(".debug_info") != nil {
		t.Errorf("%s is not a static, stripped program: %v, %v", name, libraries, err)
	}
}

// checkBill checks the bill of materials of the server.
func checkBill(t *testing.T, file, version string) {
	t.Helper()
	type component struct{ Name, Version, PURL string }
	var bom struct {
		BOMFormat  string
		Metadata   struct{ Component component }
		Components []component
	}
	if err := json.Unmarshal([]byte(read(t, file)), &bom); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(bom.Components, func(c component) bool { return c.Name == "k8s.io/kubernetes" })
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Name != "kcp" || bom.Metadata.Component.Version != version || i < 0 || !strings.HasPrefix(bom.Components[i].PURL, "pkg:golang/k8s.io/kubernetes@v1.") {
		t.Errorf("the bill of materials is %+v", bom)
	}
}

// checkImage unpacks the container image, checks its configuration and starts its server.
func checkImage(t *testing.T, r *release) {
	t.Helper()
	dir := unpack(t, open(t, filepath.Join(r.out, "kcp_"+r.version+"_oci.tar")))
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	img := onlyImage(t, index)
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != userName || config.Architecture != runtime.GOARCH || config.OS != "linux" || config.Config.Labels["org.opencontainers.image.version"] != r.version {
		t.Errorf("the image's configuration is %+v", config)
	}
	files := unpack(t, mutate.Extract(img))
	if _, err := os.Stat(filepath.Join(files, "bin", "sh")); err == nil {
		t.Error("the image has a shell")
	}
	if n := strings.Count(read(t, filepath.Join(files, "etc", "ssl", "certs", "ca-certificates.crt")), "BEGIN CERTIFICATE"); n < 50 {
		t.Errorf("the image has %d certificate authorities", n)
	}
	serve(t, filepath.Join(files, config.Config.Entrypoint[0]))
}

// onlyImage returns the image in an index, which may be an index in an index.
func onlyImage(t *testing.T, index v1.ImageIndex) v1.Image {
	t.Helper()
	for {
		manifest, err := index.IndexManifest()
		if err != nil || len(manifest.Manifests) != 1 {
			t.Fatalf("want one manifest: %+v, %v", manifest, err)
		}
		one := manifest.Manifests[0]
		if one.MediaType.IsImage() {
			img, err := index.Image(one.Digest)
			if err != nil {
				t.Fatal(err)
			}
			return img
		}
		if index, err = index.ImageIndex(one.Digest); err != nil {
			t.Fatal(err)
		}
	}
}

func unpackArchive(t *testing.T, name string) string {
	t.Helper()
	z, err := gzip.NewReader(open(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return unpack(t, z)
}

// unpack returns a directory with the content of a tar file, with its owners for root.
func unpack(t *testing.T, r io.Reader) string {
	t.Helper()
	dir := t.TempDir()
	files := tar.NewReader(r)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(to, 0o700)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, to)
		default:
			var content bytes.Buffer
			_, err = io.Copy(&content, files)
			if err == nil {
				err = write(to, content.Bytes())
			}
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Lchown(to, h.Uid, h.Gid)
		}
		if err == nil && h.Typeflag != tar.TypeSymlink {
			err = os.Chmod(to, h.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}
