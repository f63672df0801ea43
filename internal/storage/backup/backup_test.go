package backup_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/backup"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/embedded"
)

// opened starts an etcd in dir.
func opened(t *testing.T, dir string) *etcd.Backend {
	t.Helper()
	b, err := etcd.Open(t.Context(), etcd.Config{}, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// saved returns a backup of an etcd with n keys.
func saved(t *testing.T, n int) []byte {
	t.Helper()
	b := opened(t, t.TempDir())
	defer b.Close()
	for i := range n {
		if _, err := b.Client.Put(t.Context(), fmt.Sprintf("/registry/n/core/configmaps/-/c/default/%d", i), strings.Repeat("x", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Client.Put(t.Context(), "/registryother", "of another program"); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := backup.Write(t.Context(), backup.Source{Backend: b, Prefix: "/registry", Version: "v1"}, &file); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// A backup that is cut anywhere, or whose content is changed by any byte, is refused, and leaves nothing.
func TestDamagedBackup(t *testing.T) {
	t.Parallel()
	whole := saved(t, 40)
	check := func(file []byte) error {
		r, err := backup.NewReader(bytes.NewReader(file))
		if err != nil {
			return err
		}
		return r.Check(nil)
	}
	if err := check(whole); err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		if err := check(whole[:i]); err == nil {
			t.Fatalf("a backup with %d of %d bytes is accepted", i, len(whole))
		}
		changed := bytes.Clone(whole)
		changed[i] ^= 0x21
		if err := check(changed); err == nil && !bytes.Equal(unpacked(t, changed), unpacked(t, whole)) {
			t.Fatalf("a backup with another byte at %d of %d is accepted", i, len(whole))
		}
	}
	if err := check(append(bytes.Clone(whole), 'x')); err == nil {
		t.Error("a backup with a byte too many is accepted")
	}
	dir := filepath.Join(t.TempDir(), "data")
	r, err := backup.NewReader(bytes.NewReader(whole[:len(whole)-20]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Restore(t.Context(), backup.Target{Dir: dir}); err == nil {
		t.Error("an incomplete backup is restored")
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) > 0 {
		t.Errorf("a failed restore leaves %v", left)
	}
}

// unpacked returns the content of a backup that can be read. Some bits of a compressed file have no
// meaning for the content: those of the header of gzip, and codes that nothing uses.
func unpacked(t *testing.T, file []byte) []byte {
	t.Helper()
	begin := bytes.IndexByte(file, '\n') + 1
	records, err := gzip.NewReader(bytes.NewReader(file[begin:]))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(records)
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.Clone(file[:begin]), content...)
}

// A backup of another format is refused with the version that wrote it.
func TestFormatOfBackup(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`kcp-backup {"format":2,"kcp":"v9"}` + "\n": "format 2, written by kcp v9",
		"something else":                       "not a backup of kcp",
		"":                                     "not a backup of kcp",
		strings.Repeat("kcp-backup ", 100_000): "not a backup of kcp",
		"kcp-backup {]\n":                      "damaged",
		`kcp-backup {"format":1,"keys":1}` + "\n" + "\x1f\x8b": "incomplete",
	} {
		if _, err := backup.NewReader(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, not %q", text, err, want)
		}
	}
}

// Keys are restored below another prefix, at a revision that is higher than before. The
// directory is only for the owner, and is never overwritten.
func TestRestore(t *testing.T) {
	t.Parallel()
	file := saved(t, 300)
	dir := t.TempDir()
	target := backup.Target{Dir: filepath.Join(dir, "etcd-server"), Prefix: "/other", Without: func(key string) bool { return strings.HasSuffix(key, "/7") }}
	restore := func() (int64, error) {
		r, err := backup.NewReader(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		return r.Restore(t.Context(), target)
	}
	rev, err := restore()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := restore(); err == nil || !strings.Contains(err.Error(), "has data") {
		t.Errorf("a second restore into the directory: %v", err)
	}
	for range 2 { // also after a restart
		b := opened(t, dir)
		all, err := b.Client.Get(t.Context(), "\x00", clientv3.WithFromKey())
		if err != nil {
			t.Fatal(err)
		}
		if len(all.Kvs) != 299 || string(all.Kvs[0].Key) != "/other/n/core/configmaps/-/c/default/0" || all.Header.Revision < rev {
			t.Errorf("%d keys from %s at %d; restored at %d", len(all.Kvs), all.Kvs[0].Key, all.Header.Revision, rev)
		}
		if _, err := b.Client.Put(t.Context(), "/other/n/core/configmaps/-/c/default/8", "again"); err != nil {
			t.Error(err)
		}
		if _, err := b.Client.Delete(t.Context(), "/other/n/core/configmaps/-/c/default/none"); err != nil {
			t.Error(err)
		}
		b.Close()
	}
	if info, err := os.Stat(embedded.DatabaseFile(target.Dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the database has the mode %v; %v", info.Mode(), err)
	}
}

// Save leaves a complete file, or none.
func TestSave(t *testing.T) {
	t.Parallel()
	whole := saved(t, 10)
	file := filepath.Join(t.TempDir(), "b")
	none := func(_, _ int64) {}
	if _, err := backup.Save(opens(whole[:len(whole)/2]), file, none); err == nil {
		t.Error("an incomplete backup is saved")
	}
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
	if header, err := backup.Save(opens(whole), file, none); err != nil || header.Keys != 10 {
		t.Errorf("%+v, %v", header, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() != int64(len(whole)) {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := backup.Save(opens(whole), file, none); err == nil {
		t.Error("a file is overwritten")
	}
	for _, bad := range []string{file, filepath.Join(t.TempDir(), "nothing", "b")} {
		_, err := backup.Save(func() (io.ReadCloser, error) {
			t.Errorf("a backup is made for %s, which cannot be written", bad)
			return opens(whole)()
		}, bad, none)
		if err == nil {
			t.Errorf("saved in %s", bad)
		}
	}
}

// opens returns a function that opens a backup.
func opens(whole []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(whole)), nil }
}

// A backup that fails halfway says why, and is refused with that.
func TestInterruptedBackup(t *testing.T) {
	t.Parallel()
	b := opened(t, t.TempDir())
	defer b.Close()
	for i := range 500 {
		if _, err := b.Client.Put(t.Context(), fmt.Sprint("/registry/", i), strings.Repeat("x", 20_000)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var file bytes.Buffer
	err := backup.Write(ctx, backup.Source{Backend: b, Prefix: "/registry", Version: "v1"}, cancels{&file, cancel})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled backup: %v", err)
	}
	r, err := backup.NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(nil); err == nil || !strings.Contains(err.Error(), "the server failed: context canceled") {
		t.Errorf("it is read with %v", err)
	}
}

// cancels cancels at the first write.
type cancels struct {
	*bytes.Buffer
	cancel func()
}

func (c cancels) Write(b []byte) (int, error) {
	c.cancel()
	return c.Buffer.Write(b)
}

// The snapshot for an external etcd is one that etcd's own program restores.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	bin, dir := t.TempDir(), t.TempDir()
	run := func(dir string, args ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		if c.Dir = dir; dir == "../../../test/tools" {
			c.Env = append(os.Environ(), "GOFLAGS=") // without the race detector
		}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	run("../../../test/tools", "go", "build", "-o", bin, "go.etcd.io/etcd/etcdutl/v3")
	r, err := backup.NewReader(bytes.NewReader(saved(t, 300)))
	if err != nil {
		t.Fatal(err)
	}
	rev, err := r.Restore(t.Context(), backup.Target{Snapshot: filepath.Join(dir, "snapshot.db")})
	if err != nil {
		t.Fatal(err)
	}
	run(dir, filepath.Join(bin, "etcdutl"), "snapshot", "restore", "snapshot.db", "--data-dir=etcd-server",
		"--name=kcp", "--initial-cluster=kcp=http://localhost:0", "--initial-advertise-peer-urls=http://localhost:0")
	b := opened(t, dir)
	defer b.Close()
	all, err := b.Client.Get(t.Context(), "\x00", clientv3.WithFromKey())
	if err != nil || len(all.Kvs) != 300 || all.Header.Revision < rev {
		t.Errorf("%d keys at %d; restored at %d; %v", len(all.Kvs), all.Header.Revision, rev, err)
	}
}

// An interrupted restore leaves nothing, and does not call the backup damaged.
func TestInterruptedRestore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	r, err := backup.NewReader(bytes.NewReader(saved(t, 300)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = r.Restore(ctx, backup.Target{Dir: dir, Progress: func(keys int64) {
		if keys == 100 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "damaged") {
		t.Errorf("an interrupted restore: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
}
