package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

func defragmentCommand() *cobra.Command {
	s := &source{}
	cmd := &cobra.Command{
		Use:   "defragment",
		Short: "Give the free space in the database back to the disk",
		Long: `Give the free space in the database back to the disk. The server can run meanwhile: requests wait
until it is done, a few seconds for each GiB. Of an external etcd, all members are defragmented one
after the other. If etcd is full and has enough space afterwards, its alarm is disarmed.

The embedded etcd does this by itself when its file reaches the quota.`,
		Example: `  # Defragment the database of the server on .kcp, whether it runs or not
  kcp defragment

  # Defragment an external etcd without a server
  kcp defragment --etcd-servers=https://etcd-1:2379,https://etcd-2:2379 --etcd-cafile=ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			quietLog()
			done, err := s.defragment(ctx)
			return errors.Join(printDefragmented(cmd.OutOrStdout(), done), err)
		},
	}
	s.flags(cmd.Flags())
	return cmd
}

func (s *source) defragment(ctx context.Context) (done []space.Defragmented, err error) {
	if err := s.etcd.apply(&s.server.Etcd); err != nil {
		return nil, err
	}
	unlock, err := s.find()
	if err != nil {
		return nil, err
	}
	if unlock == nil {
		body, err := s.ask(ctx, http.MethodPost, "/defragment")
		if err != nil {
			return nil, err
		}
		err = errors.Join(json.NewDecoder(body).Decode(&done), body.Close())
		return done, err
	}
	defer unlock()
	backend, err := etcd.Open(ctx, s.server.Etcd, s.server.Dir, true)
	if err != nil {
		return nil, err
	}
	defer backend.Close()
	return backend.Defragment(ctx)
}

func printDefragmented(out io.Writer, done []space.Defragmented) error {
	for _, d := range done {
		if _, err := fmt.Fprintf(out, "%s: %.1f MiB, before %.1f MiB, after %.1f s\n", d.Member, mebibytes(d.After), mebibytes(d.Before), d.Seconds); err != nil {
			return err
		}
	}
	return nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
