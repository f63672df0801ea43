package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/storetest"
)

func tryOpen(t testing.TB, dir, version string) (*Store, error) {
	t.Helper()
	return Open(t.Context(), Options{Dir: dir, Version: version, NoSync: true})
}

// refused checks that a store does not open, that the error contains all texts, and that the
// directory is unlocked afterwards.
func refused(t *testing.T, dir, version string, says ...string) {
	t.Helper()
	s, err := tryOpen(t, dir, version)
	if err == nil {
		s.Close()
		t.Errorf("opened, want an error that says %q", says)
		return
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %q, want %q in it", err, part)
		}
	}
	if unlock, err := etcd.LockDir(dir); err == nil {
		unlock()
	} else if info, _ := os.Stat(dir); info != nil && info.IsDir() {
		t.Errorf("the directory is still locked: %v", err)
	}
}

// Only one store can use a directory at a time.
func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	s, err := tryOpen(t, dir, "1.36")
	if err != nil {
		t.Fatal(err)
	}
	_, err = tryOpen(t, dir, "1.36")
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid(), ";")) || !strings.Contains(err.Error(), "--root-directory") {
		t.Errorf("a second store: %v", err)
	}
	s.Close()
	s, err = tryOpen(t, dir, "1.36")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// The error for an unusable directory has a remedy.
func TestUnusableDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, file, "1.36", file, "--root-directory")
	refused(t, filepath.Join(file, "below"), "1.36", file, "--root-directory")
	refused(t, "", "1.36", "--root-directory")
	blocked := t.TempDir()
	if err := os.WriteFile(filepath.Join(blocked, "etcd-server"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, blocked, "1.36", blocked)
	if os.Getuid() != 0 { // root may write to any directory
		readOnly := t.TempDir()
		if err := os.Chmod(readOnly, 0o500); err != nil {
			t.Fatal(err)
		}
		refused(t, readOnly, "1.36", readOnly, "not writable", "--root-directory")
	}
}

// Data of another program or of an unsupported version is not changed.
func TestFormat(t *testing.T) {
	dir := t.TempDir()
	var key string
	with := func(value string, f func(*Store)) {
		t.Helper()
		s, err := tryOpen(t, dir, "1.36")
		if err != nil {
			t.Fatal(err)
		}
		key = s.prefix + "/s/meta"
		f(s)
		if _, err := s.RawClient().Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	set := func(value string) { t.Helper(); with(value, func(*Store) {}) }
	meta := func(layout, reader int, version string) string {
		return fmt.Sprintf(`{"layout":%d,"minimumReader":%d,"kubernetes":%q}`, layout, reader, version)
	}
	restore := func() { // directly, because no store opens such data
		t.Helper()
		b, err := etcd.Open(t.Context(), etcd.Config{}, dir, false)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if _, err := b.Client.Put(t.Context(), key, meta(1, 1, "1.36")); err != nil {
			t.Fatal(err)
		}
	}
	for value, says := range map[string][]string{
		meta(9, 7, "1.36"): {"layout 9", "reads layout 7", "version of kcp that wrote it"},
		meta(0, 0, "1.36"): {"layout 0"},
		meta(1, 1, "1.37"): {"1.37", "1.36"},
		meta(1, 1, "1.34"): {"1.34", "1.36"},
		meta(1, 1, "x"):    {`"x"`, "restore a backup"},
		"{":                {"damaged", "restore a backup"},
		// Some data is encoded in the version before the last.
		`{"layout":1,"minimumReader":1,"kubernetes":"1.35","oldestKubernetes":"1.34"}`: {"1.34", "1.36"},
	} {
		set(value)
		refused(t, dir, "1.36", says...)
		restore()
	}
	refused(t, dir, "", "version")
	refused(t, dir, "1.38", "1.36", "1.38")

	set(meta(2, 1, "1.35")) // a later layout that this program can read, and the previous minor version
	s, err := tryOpen(t, dir, "1.36")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.RawClient().Get(t.Context(), key)
	if err != nil || string(resp.Kvs[0].Value) != `{"layout":2,"minimumReader":1,"kubernetes":"1.36","oldestKubernetes":"1.35"}` {
		t.Errorf("the description is now %s, %v", resp.Kvs[0].Value, err)
	}
	if _, err := s.RawClient().Put(t.Context(), "/registry/configmaps/default/x", "v"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RawClient().Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	s.Close()
	refused(t, dir, "1.36", "/registry", "not written by this program", "--etcd-prefix")
	other, err := Open(t.Context(), Options{Dir: dir, Version: "1.36", NoSync: true, Prefix: "/other"})
	if err != nil {
		t.Fatalf("beside it: %v", err)
	}
	other.Close()
}

// filled creates a directory with a store of some objects. With many objects, its etcd has
// written a snapshot of its log.
func filled(t *testing.T, objects int) string {
	t.Helper()
	dir := t.TempDir()
	s, cm, stop := open(t, dir)
	create(t, s, "c1")
	for i := range objects {
		name := fmt.Sprint("x", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, strings.Repeat(name, 50)), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	return dir
}

func count(t *testing.T, cm storage.Interface) int {
	t.Helper()
	var l corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, everything(""), &l); err != nil {
		t.Fatal(err)
	}
	return len(l.Items)
}

// Damaged files cause an error with their names and a remedy, or no error and no loss. They
// never cause a panic or a silent loss of objects.
func TestDamagedFiles(t *testing.T) {
	const objects = 200
	whole := filled(t, objects)
	truncated := func(part int64) func(string) error {
		return func(file string) error {
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			return os.Truncate(file, info.Size()*part/100)
		}
	}
	garbled := func(from, to int) func(string) error {
		return func(file string) error {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for i := len(b) * from / 100; i < len(b)*to/100; i++ {
				b[i] ^= 0x5a
			}
			return os.WriteFile(file, b, 0o600)
		}
	}
	damages := map[string]func(string) error{
		"removed": os.Remove, "empty": truncated(0), "half": truncated(50), "short": truncated(10),
		"begins with garbage": garbled(0, 5), "cut": func(file string) error { return os.Truncate(file, 64<<10) }, "garbage": garbled(0, 100), "another file": func(file string) error {
			return os.WriteFile(file, bytes.Repeat([]byte("not etcd's\n"), 1000), 0o600)
		},
	}
	for _, pattern := range []string{"etcd-server/member/snap/db", "etcd-server/member/wal/*.wal"} {
		for name, damage := range damages {
			t.Run(filepath.Base(pattern)+" "+name, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "data")
				if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
					t.Fatal(err)
				}
				files, err := filepath.Glob(filepath.Join(dir, pattern))
				if err != nil || len(files) == 0 {
					t.Fatal(files, err)
				}
				if err := damage(slices.Max(files)); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // without the end of its log, etcd never becomes ready
				defer cancel()
				if name != "cut" {
					ctx = t.Context()
				}
				s, err := Open(ctx, Options{Dir: dir, Version: "1.36", NoSync: true})
				if err == nil {
					defer s.Close()
					cm := configMapsOf(t, s)
					if n := count(t, cm); n != objects {
						t.Errorf("opened with %d of %d objects", n, objects)
					}
					if err := cm.Create(in("c1"), cmRoot+"/ns/new", configMap("ns", "new", ""), nil, 0); err != nil {
						t.Errorf("create in what was opened: %v", err)
					}
					if n := count(t, cm); n != objects+1 {
						t.Errorf("%d objects after one more, want %d", n, objects+1)
					}
					return
				}
				t.Log(err)
				if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "restore a backup") {
					t.Errorf("the error does not say where and what to do: %v", err)
				}
				if unlock, err := etcd.LockDir(dir); err != nil {
					t.Errorf("still locked: %v", err)
				} else {
					unlock()
				}
			})
		}
	}
}

// A start that is cancelled leaves the directory unlocked and usable.
func TestOpenCalledOff(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := Open(ctx, Options{Dir: dir, Version: "1.36", NoSync: true}); err == nil {
		s.Close()
		t.Error("opened though it was called off")
	}
	s, err := tryOpen(t, dir, "1.36")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// An interrupted first start is repeated from the beginning, but never deletes data.
func TestFirstStartCutShort(t *testing.T) {
	dir := filled(t, 3)
	mark := filepath.Join(dir, "etcd-server", "first-start")
	if _, err := os.Stat(mark); err == nil {
		t.Error("the mark of the first start is left")
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, cm, stop := open(t, dir)
	if n := count(t, cm); n != 3 {
		t.Errorf("%d of 3 objects are left", n)
	}
	stop()
	if _, err := os.Stat(mark); err == nil {
		t.Error("the mark is left")
	}
	unfinished := t.TempDir()
	for _, file := range []string{"first-start", "member/wal/0000000000000000-0000000000000000.wal"} {
		path := filepath.Join(unfinished, "etcd-server", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("unfinished"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := tryOpen(t, unfinished, "1.36")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// Two stores in one process are independent.
func TestTwoStores(t *testing.T) {
	for i := range 2 {
		s, cm, stop := open(t, t.TempDir())
		defer stop()
		create(t, s, "c1")
		for j := range i + 1 {
			name := fmt.Sprint("x", j)
			if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			if n := count(t, cm); n != i+1 {
				t.Errorf("store %d has %d objects", i, n)
			}
			if st, err := s.State(t.Context(), cluster.Name("c1")); err != nil || st != Active {
				t.Errorf("store %d: %v, %v", i, st, err)
			}
		}()
	}
}

// A store that fails to open leaves no goroutines.
func TestFailedOpenLeavesNothing(t *testing.T) {
	dir := filled(t, 1)
	used := t.TempDir()
	unlock, err := etcd.LockDir(used)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	storetest.NoneLeft(t, func() {
		for _, test := range [][2]string{{dir, "1.30"}, {used, "1.36"}, {dir, ""}} {
			if s, err := tryOpen(t, test[0], test[1]); err == nil {
				s.Close()
				t.Errorf("%v opened", test)
			}
		}
	})
}
