package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/embedded"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

const (
	fsyncs   = 40
	slowSync = 10 * time.Millisecond // etcd recommends less
	badSync  = 100 * time.Millisecond
	lowDisk  = 1 << 30
	badDisk  = 192 << 20 // the server refuses creates below it
)

// directory checks the root directory, and reports whether a server runs on it.
func (s Server) directory(r *report) (running bool) {
	info, err := os.Stat(s.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.warn("name the directory of the server with --root-directory, or start one: kcp start creates it", "%s does not exist", s.Dir)
		return false
	case err != nil:
		r.problem("make it readable for the user of the server", "%v", err)
		return false
	case !info.IsDir():
		r.problem("name a directory with --root-directory", "%s is not a directory", s.Dir)
		return false
	}
	private(r, s.Dir, info)
	for _, name := range []string{"admin.kubeconfig", ".admin-token-store", "sa.key", "apiserver.key", "apiserver-ca.key", "etcd-server"} {
		if info, err := os.Lstat(filepath.Join(s.Dir, name)); err == nil {
			private(r, filepath.Join(s.Dir, name), info)
		}
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "lock")); errors.Is(err, fs.ErrNotExist) {
		r.ok("%s has no lock: no server has run on it", s.Dir)
		return false
	}
	unlock, err := etcd.LockDir(s.Dir)
	switch {
	case errors.Is(err, etcd.ErrInUse):
		r.ok("a server runs on %s", s.Dir)
		return true
	case err != nil:
		r.problem("make it writable for the user of the server", "%v", err)
	default:
		unlock()
		r.ok("%s is writable, and no server runs on it", s.Dir)
	}
	return false
}

// private warns about a file that other users can read.
func private(r *report, path string, info fs.FileInfo) {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		r.problem("chmod go-rwx "+path, "%s has the mode %#o: other users of this machine can reach credentials or data", path, mode)
	}
}

// disk measures the disk of the data.
func (s Server) disk(r *report) {
	if s.external() {
		r.ok("the data is in an external etcd")
		return
	}
	dir := s.data()
	if _, err := os.Stat(dir); err != nil {
		dir = s.Dir
	}
	if _, err := os.Stat(dir); err != nil {
		return // the check of the directory says so
	}
	if free, err := space.Free(dir); err == nil {
		const advice = "free space on the volume, or move the directory to a larger one"
		switch {
		case free < badDisk:
			r.problem(advice, "%d MiB are free: the server refuses writes", free>>20)
		case free < max(lowDisk, embedded.DatabaseSize(dir)):
			r.warn(advice, "%d MiB are free; the database has %d MiB, and a defragmentation writes a copy", free>>20, embedded.DatabaseSize(dir)>>20)
		default:
			r.ok("%d MiB are free", free>>20)
		}
	}
	took, err := syncs(dir)
	if err != nil {
		r.problem("make the volume writable", "cannot write: %v", err)
		return
	}
	slow, middle := took[len(took)*9/10].Round(time.Microsecond), took[len(took)/2].Round(time.Microsecond)
	const advice = "use a faster disk, such as a local SSD; each write of a client waits for an fsync"
	switch {
	case middle > badSync:
		r.problem(advice, "an fsync takes %s", middle)
	case slow > slowSync:
		r.warn(advice, "one of ten fsyncs takes %s or more, the median %s", slow, middle)
	default:
		r.ok("nine of ten fsyncs take at most %s, the median %s", slow, middle)
	}
}

// syncs writes to a temporary file as etcd writes its log. It returns the times, sorted.
func syncs(dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".doctor-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4<<10)
	for range fsyncs {
		begun := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took, nil
}
