package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPackaging packs a tiny program, because the real ones take seconds to build. Two runs
// must produce equal archives, bills of materials and images for each platform.
func TestPackaging(t *testing.T) {
	content := tiny(t)
	var sums []string
	var last *release
	for range 2 {
		work := t.TempDir()
		r := &release{root: filepath.Join("..", ".."), out: t.TempDir(), version: "v1.2.3", commit: "abc", time: time.Unix(1e9, 0).UTC()}
		if err := r.choose(all); err != nil {
			t.Fatal(err)
		}
		files := []string{filepath.Join(work, "completions", "kcp.bash"), filepath.Join(work, "man", "man1", "kcp.1")}
		for _, p := range r.platforms {
			for _, name := range programs() {
				files = append(files, filepath.Join(binaries(work, p), p.program(name)))
			}
		}
		for _, file := range files {
			if err := write(file, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range r.platforms {
			if err := r.pack(work, p); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.image(work); err != nil {
			t.Fatal(err)
		}
		if err := r.checksums(); err != nil {
			t.Fatal(err)
		}
		sums, last = append(sums, read(t, filepath.Join(r.out, "SHA256SUMS"))), r
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 6*3+1 {
		t.Errorf("the sums are\n%s\n%s", sums[0], sums[1])
	}
	unpacked := filepath.Join(unpackArchive(t, filepath.Join(last.out, "kcp_v1.2.3_linux_amd64.tar.gz")), "kcp_v1.2.3_linux_amd64")
	for _, name := range append(links(), "kcp", "kubectl-kcp") {
		if read(t, filepath.Join(unpacked, name)) != content {
			t.Errorf("%s is not the program", name)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bill, err := last.bill("kcp", host(), self)
	if err != nil || !strings.Contains(string(bill), `"pkg:golang/github.com/google/go-containerregistry@v`) {
		t.Errorf("the bill of materials of this test lacks a module: %v\n%s", err, bill)
	}
}

// tiny returns a minimal Go program.
func tiny(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/tiny\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := write(filepath.Join(dir, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", "tiny", ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return read(t, filepath.Join(dir, "tiny"))
}
