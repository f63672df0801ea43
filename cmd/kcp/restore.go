package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/backup"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
)

// restore holds the flags of kcp restore.
type restore struct {
	dir, data, prefix, snapshot string
	newCredentials, check       bool
}

func restoreCommand() *cobra.Command {
	r := &restore{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore the objects of a backup into an empty directory",
		Long: `Restore the objects of a backup into an empty directory, for kcp start. Objects keep
everything, with status, UIDs and owner references. New resource versions are higher than any
that the server of the backup, or an earlier restore, has reached. So clients that knew that
server get 410 for their watches and list again. The server may have another URL and CA.

For an external etcd, --etcd-snapshot writes a file for the command etcdutl snapshot restore.`,
		Example: `  # Restore into .kcp, and start
  kcp restore monday.kcp
  kcp start

  # Only check that a backup is complete
  kcp restore monday.kcp --check

  # Restore for an external etcd
  kcp restore monday.kcp --etcd-snapshot=monday.db
  etcdutl snapshot restore monday.db --data-dir=/var/lib/etcd`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			quietLog()
			return r.run(ctx, args[0], cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.dir, "root-directory", rootDirectory, "Directory for the restored server. It must have no data.")
	f.StringVar(&r.data, "embedded-etcd-directory", "", "Directory for the data of the embedded etcd. (default <root-directory>/etcd-server)")
	f.StringVar(&r.prefix, "etcd-prefix", "", "Prefix of the restored keys in etcd. (default that of the backup)")
	f.StringVar(&r.snapshot, "etcd-snapshot", "", "Write a snapshot file for an external etcd instead.")
	f.BoolVar(&r.newCredentials, "new-credentials", false, "Leave out the keys and tokens that servers share in an external etcd: the first one makes new ones.")
	f.BoolVar(&r.check, "check", false, "Only check the backup, and print what it is.")
	cmd.MarkFlagsMutuallyExclusive("etcd-snapshot", "root-directory")
	cmd.MarkFlagsMutuallyExclusive("etcd-snapshot", "embedded-etcd-directory")
	return cmd
}

func (r *restore) run(ctx context.Context, file string, out io.Writer) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	from, err := backup.NewReader(in)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	h := from.Header
	_, _ = fmt.Fprintf(out, "The backup has %d keys below %s at revision %d, saved at %s by kcp %s.\n", h.Keys, h.Prefix, h.Revision, h.Time.Format("2006-01-02 15:04:05 MST"), h.Version)
	report := every(reportEvery, func(keys, all int64) { _, _ = fmt.Fprintf(out, "%d of %d keys\n", keys, all) })
	progress := func(keys int64) { report(keys, h.Keys) }
	if r.check {
		if err := from.Check(progress); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		_, err = fmt.Fprintln(out, "It is complete.")
		return err
	}
	target := r.target()
	target.Progress = progress
	if r.snapshot == "" {
		unlock, err := etcd.LockDir(r.dir)
		if err != nil {
			return err
		}
		defer unlock()
	}
	revision, err := from.Restore(ctx, target)
	if err != nil {
		return fmt.Errorf("%s was not restored: %w", file, err)
	}
	return r.next(out, target, h, revision)
}

// target returns where the flags restore to.
func (r *restore) target() backup.Target {
	target := backup.Target{Snapshot: r.snapshot}
	if r.prefix != "" {
		target.Prefix = path.Join("/", r.prefix)
	}
	if r.newCredentials {
		shared := keys.SystemKey(cluster.Admin, "common", "").Resource.Prefix() + "/"
		target.Without = func(key string) bool { return strings.HasPrefix(key, shared) }
	}
	if r.snapshot == "" {
		target.Dir = cmp.Or(r.data, filepath.Join(r.dir, "etcd-server"))
	}
	return target
}

// next prints what to do with the restored data.
func (r *restore) next(out io.Writer, t backup.Target, h backup.Header, revision int64) error {
	if r.snapshot != "" {
		_, err := fmt.Fprintf(out, "Wrote the snapshot %s, at revision %d. Restore it on each member of etcd: etcdutl snapshot restore %s --data-dir=…\n", r.snapshot, revision, quoted(r.snapshot))
		return err
	}
	start := self() + " start"
	if r.dir != rootDirectory {
		start += " --root-directory=" + quoted(r.dir)
	}
	if r.data != "" {
		start += " --embedded-etcd-directory=" + quoted(r.data)
	}
	if prefix := cmp.Or(t.Prefix, h.Prefix); prefix != "/registry" {
		start += " --etcd-prefix=" + quoted(prefix)
	}
	_, err := fmt.Fprintf(out, "Restored into %s, at revision %d. Start the server: %s\n", t.Dir, revision, start)
	return err
}
