package server

import (
	"context"
	"errors"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// kubeconfigEvery is how often a kubeconfig for which the disk has no space is tried again.
const kubeconfigEvery = 2 * time.Second

// writeKubeconfig writes the kubeconfig of the administrators. A full disk does not keep
// the server from starting: the file is written once there is space.
func (s *Server) writeKubeconfig(ctx context.Context) error {
	write := func() error {
		return s.adminFiles().WriteKubeconfig(s.admins, s.config.ExternalURL, []byte(s.ca.Text()))
	}
	err := write()
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	klog.FromContext(ctx).Error(err, "The disk is full; the kubeconfig is written once there is space")
	s.running.Go(func() {
		tick := time.NewTicker(kubeconfigEvery)
		defer tick.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
				if write() == nil {
					return
				}
			}
		}
	})
	return nil
}
