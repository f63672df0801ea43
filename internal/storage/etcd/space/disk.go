package space

import (
	"context"
	"errors"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Etcd ends the process when a write fails. It needs free space for the next segment of its
// log, which it allocates in advance, and for the growth of its database.
const (
	// DiskGrowth is the space in bytes that is reserved for the database, which grows by 16 MiB at a time.
	DiskGrowth = 32 << 20

	diskEvery = 250 * time.Millisecond
)

// A diskLevel is the set of writes that the disk has space for.
type diskLevel int32

const (
	diskSpacious diskLevel = iota
	diskLow                // space for deletions and the server's own writes
	diskFull               // space for no writes
)

// diskLevelOf returns the level for the given free space and the size of a log segment, in
// bytes. The space left at diskFull must be enough for the writes between two measurements.
func diskLevelOf(free, segment int64) diskLevel {
	switch full := segment + DiskGrowth; {
	case free < full:
		return diskFull
	case free < 2*full:
		return diskLow
	default:
		return diskSpacious
	}
}

// A Disk measures the free space on the volume of an etcd in this process.
type Disk struct {
	*Capacity
	// Free returns the free bytes of the volume of a directory, as [Free] does.
	Free func(dir string) (int64, error)

	dir  string
	file string // of the database
	// reserves enables Reserve. It is false without fsync, where a crash may lose writes
	// anyway.
	reserves bool
	reserved os.FileInfo // the database file at the last reservation
}

// NewDisk returns the disk of the database file of an etcd with its data in dir. With reserves, it
// allocates space beyond the end of the file.
func NewDisk(c *Capacity, dir, file string, reserves bool) *Disk {
	return &Disk{Capacity: c, dir: dir, file: file, Free: Free, reserves: reserves}
}

// Run measures the free space until ctx ends.
func (d *Disk) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		d.Measure(ctx)
		d.Reserve(ctx)
		d.Publish()
	}, diskEvery)
}

// Reserve allocates disk space beyond the end of the database file. So etcd can write
// acknowledged changes to its database, and can start, even if other programs fill the disk.
func (d *Disk) Reserve(ctx context.Context) {
	if !d.reserves {
		return
	}
	now, err := os.Stat(d.file)
	if err != nil || d.reserved != nil && os.SameFile(now, d.reserved) && now.Size() == d.reserved.Size() {
		return
	}
	f, err := os.OpenFile(d.file, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	err = errors.Join(fileutil.Preallocate(f, now.Size()+DiskGrowth, false), f.Close())
	if err != nil {
		klog.FromContext(ctx).V(4).Info("No space reserved for the database", "reason", err.Error())
		return // retried at the next measurement
	}
	d.reserved = now
}

// Measure updates the disk level, and logs a change.
func (d *Disk) Measure(ctx context.Context) {
	free, err := d.Free(d.dir)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Free space not measured", "reason", err.Error())
		return
	}
	now := diskLevelOf(free, wal.SegmentSizeBytes)
	before := diskLevel(d.disk.Swap(int32(now)))
	log := klog.FromContext(ctx).WithValues("directory", d.dir, "freeBytes", free)
	switch {
	case now == before:
	case now == diskFull:
		log.Error(nil, "The disk of the database is full: all writes are refused with 507, deletions too. Free some space; the server needs no restart")
	case now == diskLow:
		log.Error(nil, "The disk of the database is nearly full: writes of tenants are refused with 507. Free some space; the server needs no restart")
	default:
		log.Info("The disk of the database has space again")
	}
}

// HasSpaceFor reports whether the disk has the given free space, in bytes, besides its
// reserve.
func (d *Disk) HasSpaceFor(bytes int64) bool {
	free, err := d.Free(d.dir)
	return err != nil || free-bytes >= wal.SegmentSizeBytes+DiskGrowth
}
