package server

import (
	"cmp"
	"context"
	"path/filepath"
	"reflect"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/credentials"
)

// signingKeysEvery is how often the files of the keys of service accounts are read.
const signingKeysEvery = 10 * time.Second

// followSigningKeys takes in changes of the files with the keys of service account tokens, until
// ctx ends. While the files are missing or invalid, the present keys stay.
func (s *Server) followSigningKeys(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(s.config.Access.SigningKeysEvery, signingKeysEvery))
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.rotateSigningKeys(ctx)
		if err != nil && err.Error() != last {
			klog.FromContext(ctx).Error(err, "The keys of service accounts stay as they are")
		}
		if last = ""; err != nil {
			last = err.Error()
		}
	}
}

// rotateSigningKeys takes in the keys that the files have now.
func (s *Server) rotateSigningKeys(ctx context.Context) error {
	now := s.signing
	now.VerifyKeys = nil
	now, err := now.WithFlags(s.config.Access.Authentication)
	if err != nil {
		return err
	}
	if file := s.config.Access.SigningKeyFile; file != "" || !s.store.Several() { // or else the key is in etcd
		if now.Key, err = auth.SigningKey(cmp.Or(file, filepath.Join(s.config.Dir, signingKeyFile))); err != nil {
			return err
		}
	}
	if reflect.DeepEqual(now.Key.Public(), s.signing.Key.Public()) && reflect.DeepEqual(now.VerifyKeys, s.signing.VerifyKeys) {
		return nil
	}
	if err := credentials.AgreeOnSigner(ctx, s.store, now); err != nil {
		return err
	}
	if err := s.accounts.Rotate(now.Key, now.VerifyKeys); err != nil {
		return err
	}
	s.signing = now
	klog.FromContext(ctx).Info("The keys of service accounts have changed", "further", len(now.VerifyKeys))
	return nil
}
