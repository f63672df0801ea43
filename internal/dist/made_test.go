package main

import (
	"archive/tar"
	"archive/zip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestMadeDist checks the files that "make dist" wrote: their checksums, the programs of each
// platform, and that bills of materials and images have the same programs as the archives.
func TestMadeDist(t *testing.T) {
	out := filepath.Join("..", "..", "bin", "dist")
	if _, err := os.Stat(out); errors.Is(err, fs.ErrNotExist) {
		t.Skip("run make dist first")
	}
	version := checkSums(t, out)
	images := imagePrograms(t, filepath.Join(out, "kcp_"+version+"_oci.tar"))
	r := &release{}
	if err := r.choose(all); err != nil {
		t.Fatal(err)
	}
	for _, p := range r.platforms {
		name := "kcp_" + version + "_" + p.os + "_" + p.arch
		dir := filepath.Join(unpackAny(t, filepath.Join(out, name)), name)
		for _, program := range programs() {
			file := filepath.Join(dir, p.program(program))
			checkProgram(t, file, p)
			sum := sumOf(read(t, file))
			if billed := billedSum(t, filepath.Join(out, program+strings.TrimPrefix(name, "kcp")+".cdx.json")); billed != sum {
				t.Errorf("%s for %s has the sum %s, its bill of materials says %s", program, p, sum, billed)
			}
			if p.os == "linux" && program == "kcp" && images[p] != sum {
				t.Errorf("the program for %s has the sum %s, in the image %s", p, sum, images[p])
			}
		}
	}
	if len(images) != 2 {
		t.Errorf("there are images for %v", images)
	}
}

// checkSums checks that SHA256SUMS has the sum of each file, and returns their version.
func checkSums(t *testing.T, out string) string {
	t.Helper()
	sums := map[string]string{}
	for line := range strings.Lines(read(t, filepath.Join(out, "SHA256SUMS"))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	files, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	version := ""
	for _, f := range files {
		if f.Name() == "SHA256SUMS" {
			continue
		}
		if sum := sumOf(read(t, filepath.Join(out, f.Name()))); sum != sums[f.Name()] {
			t.Errorf("%s has the sum %s, SHA256SUMS says %q", f.Name(), sum, sums[f.Name()])
		}
		delete(sums, f.Name())
		if rest, ok := strings.CutSuffix(f.Name(), "_oci.tar"); ok {
			version = strings.TrimPrefix(rest, "kcp_")
		}
	}
	if len(sums) > 0 {
		t.Errorf("SHA256SUMS has sums of files that do not exist: %v", sums)
	}
	return version
}

func sumOf(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

// unpackAny unpacks an archive, whose name lacks its extension.
func unpackAny(t *testing.T, name string) string {
	t.Helper()
	if _, err := os.Stat(name + ".zip"); err != nil {
		return unpackArchive(t, name+".tar.gz")
	}
	z, err := zip.OpenReader(name + ".zip")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	dir := t.TempDir()
	if err := os.CopyFS(dir, z); err != nil {
		t.Fatal(err)
	}
	return dir
}

// billedSum returns the checksum of the program in a bill of materials.
func billedSum(t *testing.T, file string) string {
	t.Helper()
	var bom struct {
		Metadata struct {
			Component struct{ Hashes []struct{ Content string } }
		}
	}
	if err := json.Unmarshal([]byte(read(t, file)), &bom); err != nil || len(bom.Metadata.Component.Hashes) != 1 {
		t.Fatalf("%s: %+v, %v", file, bom, err)
	}
	return bom.Metadata.Component.Hashes[0].Content
}

// imagePrograms returns the checksum of the program in the image for each platform.
func imagePrograms(t *testing.T, archive string) map[platform]string {
	t.Helper()
	index, err := layout.ImageIndexFromPath(unpack(t, open(t, archive)))
	if err != nil {
		t.Fatal(err)
	}
	outer, err := index.IndexManifest()
	if err != nil || len(outer.Manifests) != 1 {
		t.Fatalf("want one manifest: %+v, %v", outer, err)
	}
	if index, err = index.ImageIndex(outer.Manifests[0].Digest); err != nil {
		t.Fatal(err)
	}
	inner, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[platform]string{}
	for _, m := range inner.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		sums[platform{m.Platform.OS, m.Platform.Architecture}] = entrySum(t, img, "kcp")
	}
	return sums
}

// entrySum returns the checksum of a file of an image.
func entrySum(t *testing.T, img v1.Image, name string) string {
	t.Helper()
	stream := mutate.Extract(img)
	defer stream.Close()
	for files := tar.NewReader(stream); ; {
		h, err := files.Next()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if h.Name == name {
			content, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			return sumOf(string(content))
		}
	}
}
