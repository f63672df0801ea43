// Command dist builds the files of a release of kcp. For each platform: an archive of the
// programs, their completions and manual pages, and a bill of materials. In addition a
// container image as an OCI archive, and the checksums of all files.
//
// The files depend only on the source, the version, the commit, its time and the Go
// toolchain. So all users can build identical files.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// all are the platforms of a release.
const all = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

func main() {
	log.SetFlags(0)
	var r release
	platforms := all
	flag.StringVar(&r.root, "root", ".", "Directory of the checkout.")
	flag.StringVar(&r.out, "o", "bin/dist", "Directory to write to. Its content is deleted first.")
	flag.StringVar(&r.version, "version", "", "Version of the release. (default from git describe)")
	flag.StringVar(&platforms, "platforms", all, "Platforms to build for; \"host\" for this machine's.")
	flag.Parse()
	if err := errors.Join(r.choose(platforms), r.describe()); err != nil {
		log.Fatal(err)
	}
	if err := r.make(); err != nil {
		log.Fatal(err)
	}
}

// A platform is an operating system and an architecture, in the terms of Go.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// program returns the file name of a program.
func (p platform) program(name string) string {
	if p.os == "windows" {
		return name + ".exe"
	}
	return name
}

func host() platform { return platform{runtime.GOOS, runtime.GOARCH} }

// A release holds the options and the sources of a build.
type release struct {
	root, out       string
	version, commit string
	time            time.Time // of the commit; the modification time of all files
	platforms       []platform
}

// programs are the main packages below cmd.
func programs() []string { return []string{"kcp", "kubectl-kcp"} }

// choose sets the platforms from a comma-separated list, or to this machine for "host".
func (r *release) choose(list string) error {
	if list == "host" {
		r.platforms = []platform{host()}
		return nil
	}
	for name := range strings.SplitSeq(list, ",") {
		goos, arch, ok := strings.Cut(name, "/")
		if !ok || goos == "" || arch == "" {
			return fmt.Errorf("invalid -platforms %q: write each as linux/amd64", name)
		}
		r.platforms = append(r.platforms, platform{goos, arch})
	}
	return nil
}

// describe sets the version, the commit and the time from git, and the time from
// SOURCE_DATE_EPOCH if that is set.
func (r *release) describe() error {
	var err error
	git := func(args ...string) string {
		out, failed := exec.Command("git", append([]string{"-C", r.root}, args...)...).Output()
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("git %s: %w", strings.Join(args, " "), failed))
		}
		return strings.TrimSpace(string(out))
	}
	r.commit = git("rev-parse", "HEAD")
	if r.version == "" {
		r.version = git("describe", "--tags", "--always", "--dirty", "--abbrev=12")
		if !strings.HasPrefix(r.version, "v") { // git has no tag yet
			r.version = "v0.0.0-" + r.version
		}
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		epoch = git("show", "-s", "--format=%ct", "HEAD")
	}
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	r.time = time.Unix(seconds, 0).UTC()
	return err
}

// make builds everything.
func (r *release) make() error {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "kcp-dist-")
	if err != nil {
		return err
	}
	err = r.makeIn(work)
	return errors.Join(err, os.RemoveAll(work))
}

// makeIn builds everything with temporary files in work.
func (r *release) makeIn(work string) error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, p := range append([]platform{host()}, r.platforms...) {
		if err := r.compile(work, p); err != nil {
			return err
		}
	}
	if err := r.document(work); err != nil {
		return err
	}
	for _, p := range r.platforms {
		if err := r.pack(work, p); err != nil {
			return fmt.Errorf("archive for %s: %w", p, err)
		}
	}
	if err := r.image(work); err != nil {
		return fmt.Errorf("container image: %w", err)
	}
	return r.checksums()
}

// binaries returns the directory of the programs for a platform.
func binaries(work string, p platform) string { return filepath.Join(work, p.os+"_"+p.arch) }

// compile builds the programs for a platform, unless they exist.
func (r *release) compile(work string, p platform) error {
	dir := binaries(work, p)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	log.Printf("compiling for %s", p)
	const set = " -X github.com/unforked/kcp/internal/build."
	args := []string{
		"build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid=" + set + "version=" + r.version + set + "commit=" + r.commit + set + "date=" + r.time.Format(time.RFC3339),
		"-o", dir + string(filepath.Separator),
	}
	for _, name := range programs() {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOFLAGS=", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// document writes the completions and the manual pages, which are the same for all
// platforms: the programs for this machine print them.
func (r *release) document(work string) error {
	kcp := filepath.Join(binaries(work, host()), host().program("kcp"))
	for shell, name := range map[string]string{"bash": "kcp.bash", "zsh": "_kcp", "fish": "kcp.fish", "powershell": "kcp.ps1"} {
		text, err := exec.Command(kcp, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("completion for %s: %w", shell, err)
		}
		if err := write(filepath.Join(work, "completions", name), text); err != nil {
			return err
		}
	}
	for _, name := range programs() {
		cmd := exec.Command(filepath.Join(binaries(work, host()), host().program(name)), "man", filepath.Join(work, "man", "man1"))
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.time.Unix(), 10))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("manual pages of %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// checksums writes the SHA-256 sums of all files, in the format of sha256sum.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(text), e.Name()))
	}
	slices.Sort(lines)
	return write(filepath.Join(r.out, "SHA256SUMS"), []byte(strings.Join(lines, "")))
}

// write writes a file, and creates its directory.
func write(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}
