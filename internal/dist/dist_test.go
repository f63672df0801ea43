package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
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

// TestRelease builds a release for this machine twice, compares the checksums, and starts
// the server of the container image.
func TestRelease(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the container image is for Linux")
	}
	first, second := build(t), build(t)
	sums := read(t, filepath.Join(first.out, "SHA256SUMS"))
	if again := read(t, filepath.Join(second.out, "SHA256SUMS")); again != sums {
		t.Errorf("two builds of the same source differ:\n%s\n%s", sums, again)
	}
	name := "kcp_" + first.version + "_linux_" + runtime.GOARCH
	unpacked := unpackArchive(t, filepath.Join(first.out, name+".tar.gz"))
	checkArchive(t, first, filepath.Join(unpacked, name))
	checkBill(t, filepath.Join(first.out, name+".cdx.json"), first.version)
	checkImage(t, first)
}

// build builds a release for this machine.
func build(t *testing.T) *release {
	t.Helper()
	r := &release{root: filepath.Join("..", ".."), out: filepath.Join(t.TempDir(), "dist"), version: "v9.8.7"}
	if err := errors.Join(r.choose("host"), r.describe()); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.root, err = filepath.Abs(r.root); err != nil {
		t.Fatal(err)
	}
	if err := r.make(); err != nil {
		t.Fatal(err)
	}
	return r
}

// checkArchive checks the programs of an archive.
func checkArchive(t *testing.T, r *release, dir string) {
	t.Helper()
	for _, name := range append(programs(), links()...) {
		file, err := elf.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if libraries, err := file.ImportedLibraries(); err != nil || len(libraries) > 0 || file.Section(".symtab") != nil {
			t.Errorf("%s is not a static, stripped program: %v, %v", name, libraries, err)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
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

// serve starts a server and checks that it is ready and creates objects.
func serve(t *testing.T, program string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	server := exec.CommandContext(ctx, program, "start", "--secure-port=0")
	server.Dir = dir
	stderr, err := server.StderrPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "kcp serves at ") {
		t.Log(lines.Text())
	}
	for _, line := range []string{"get --raw /readyz --context base", "ws create smoke --enter", "create configmap hello"} {
		cmd := exec.CommandContext(ctx, program, append([]string{"kubectl"}, strings.Fields(line)...)...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("kcp kubectl %s: %v\n%s", line, err, out)
		}
	}
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	_, _ = io.Copy(io.Discard, stderr)
	if err := server.Wait(); err != nil {
		t.Errorf("the server ends with %v", err)
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

// unpack returns a directory with the content of a tar file.
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
			err = errors.Join(err, os.Chmod(to, os.FileMode(h.Mode).Perm()|0o200))
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
