package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestRelease builds a release for this machine, and starts the server of the archive and
// of the container image. A second build from another folder must have equal checksums. With
// NIGHTLY it starts from an empty build cache.
func TestRelease(t *testing.T) {
	first := &release{root: filepath.Join("..", ".."), out: filepath.Join(t.TempDir(), "dist"), version: "v9.8.7"}
	if err := errors.Join(first.choose("host"), first.describe()); err != nil {
		t.Fatal(err)
	}
	if err := first.make(); err != nil {
		t.Fatal(err)
	}
	name := "kcp_" + first.version + "_linux_" + runtime.GOARCH
	unpacked := filepath.Join(unpackArchive(t, filepath.Join(first.out, name+".tar.gz")), name)
	checkArchive(t, first, unpacked)
	checkBill(t, filepath.Join(first.out, name+".cdx.json"), first.version)
	t.Run("archive", func(t *testing.T) {
		dir := t.TempDir()
		serve(t, place{bin: unpacked, dir: dir, env: []string{"HOME=" + dir, "KUBECONFIG=.kcp/admin.kubeconfig"}},
			"kcp start --secure-port=0", "kubectl-ws create plugin", "kubectl-kcp ws tree :root")
	})
	t.Run("image", func(t *testing.T) { checkImage(t, first) })
	t.Run("again", func(t *testing.T) {
		if os.Getenv("NIGHTLY") != "" {
			t.Setenv("GOCACHE", t.TempDir())
		}
		second := *first
		second.root, second.out = copied(t, first.root), t.TempDir()
		if err := second.make(); err != nil {
			t.Fatal(err)
		}
		sums := read(t, filepath.Join(first.out, "SHA256SUMS"))
		if again := read(t, filepath.Join(second.out, "SHA256SUMS")); again != sums {
			t.Errorf("two builds of the same source differ:\n%s\n%s", sums, again)
		}
	})
}

// copied returns a directory with a copy of the files of a checkout that git does not ignore.
func copied(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range strings.Split(output(t, "git", "-C", root, "ls-files", "-coz", "--exclude-standard"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if name == "" || errors.Is(err, fs.ErrNotExist) { // the latter was deleted, but not in git yet
			continue
		}
		if err == nil {
			err = write(filepath.Join(dir, name), content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// checkImage unpacks the container image, checks its configuration and runs it.
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
	p := container(t, files, config.Config)
	serve(t, p, strings.Join(append(config.Config.Entrypoint, config.Config.Cmd...), " ")+" --secure-port=0")
	data, err := os.Stat(filepath.Join(files, homeDir, ".kcp", "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	owner := p.system.Credential.Uid
	if os.Geteuid() != 0 {
		owner = uint32(os.Geteuid()) // which is user 65532 in the user namespace
	}
	if got := data.Sys().(*syscall.Stat_t).Uid; got != owner {
		t.Errorf("the data of the server belongs to user %d, want %d", got, owner)
	}
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

// A place is where programs run.
type place struct {
	bin    string // their directory
	dir    string // the working directory
	env    []string
	system *syscall.SysProcAttr
}

// container returns a place with a directory as its root, and the user, the working directory
// and the environment of an image. Without root's rights it needs a user namespace.
func container(t *testing.T, root string, c v1.Config) place {
	t.Helper()
	var u, g uint32
	if _, err := fmt.Sscanf(c.User, "%d:%d", &u, &g); err != nil || u == 0 || g == 0 {
		t.Fatalf("the image's user is %q: %v", c.User, err)
	}
	system := &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: u, Gid: g}}
	if os.Geteuid() != 0 {
		system.Cloneflags = syscall.CLONE_NEWUSER
		system.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(u), HostID: os.Geteuid(), Size: 1}}
		system.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(g), HostID: os.Getegid(), Size: 1}}
		system.Credential.NoSetGroups = true
	}
	p := place{bin: "/", dir: c.WorkingDir, env: c.Env, system: system}
	if err := p.command(t.Context(), "kcp --version").Run(); errors.Is(err, syscall.EPERM) {
		t.Skipf("this system allows neither chroot nor user namespaces: %v", err)
	}
	return p
}

// command returns a command, which is a line without quotes.
func (p place) command(ctx context.Context, line string) *exec.Cmd {
	words := strings.Fields(line)
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, words[0]), words[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = p.dir, p.env, p.system
	return cmd
}

// serve starts a server, works with it, stops it, starts it again, and checks that it has
// its data. The lines in more run once.
func serve(t *testing.T, p place, start string, more ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, lines := range [][]string{
		append([]string{"kcp kubectl get --raw /readyz --context base", "kcp kubectl ws create smoke --enter", "kcp kubectl create configmap hello"}, more...),
		{"kcp kubectl ws :root:smoke", "kcp kubectl get configmap hello"},
	} {
		stop := begin(t, p.command(ctx, start))
		for _, line := range lines {
			if out, err := p.command(ctx, line).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
		stop()
	}
}

// begin starts a server and returns when it is ready. The returned function stops it.
func begin(t *testing.T, server *exec.Cmd) func() {
	t.Helper()
	stderr, err := server.StderrPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	lines := bufio.NewScanner(io.TeeReader(stderr, &log))
	ready := false
	for !ready && lines.Scan() {
		ready = strings.HasPrefix(lines.Text(), "kcp serves at ")
	}
	if !ready {
		t.Fatalf("the server ended: %v\n%s", server.Wait(), log.String())
	}
	return func() {
		if err := server.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, stderr)
		if err := server.Wait(); err != nil {
			t.Errorf("the server ends with %v", err)
		}
	}
}
