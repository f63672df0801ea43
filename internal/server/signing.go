package server

import (
	"cmp"
	"context"
	"path/filepath"
	"reflect"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/auth/credentials"
)

// keysEvery is how often files with keys and authorities, and those that servers share, are read.
const keysEvery = 10 * time.Second

// followKeys takes in changes of the keys of service accounts, of the authority of client
// certificates and of the server's own certificate, until ctx ends. While one of them is missing or
// invalid, the present ones stay.
func (s *Server) followKeys(ctx context.Context) {
	steps := []struct {
		of   string
		take func(context.Context) error
		last string // error
	}{
		{of: "service accounts", take: s.rotateSigningKeys},
		{of: "client certificates", take: s.refreshClients},
		{of: "serving certificates", take: s.refreshServing},
	}
	tick := time.NewTicker(cmp.Or(s.config.Access.KeysEvery, keysEvery))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i := range steps {
			step, now := &steps[i], ""
			if err := step.take(ctx); err != nil {
				now = err.Error()
			}
			if now != "" && now != step.last && ctx.Err() == nil {
				klog.FromContext(ctx).Info("Keys stay as they are", "of", step.of, "err", now)
			}
			step.last = now
		}
	}
}

// refreshClients takes in the authorities of client certificates of workspaces.
func (s *Server) refreshClients(ctx context.Context) error {
	all, err := credentials.SharedAuthorities(ctx, s.store, credentials.OfClients)
	if err == nil && s.clients.SetAuthorities(all.Signer(), all.Bundle()) && s.started {
		klog.FromContext(ctx).Info("The authorities of client certificates of workspaces have changed")
	}
	return err
}

// rotateSigningKeys takes in the keys that the files have now.
func (s *Server) rotateSigningKeys(ctx context.Context) error {
	now := s.signing
	now.VerifyKeys = nil
	now, err := now.WithFlags(s.config.Access.Authentication)
	if err != nil {
		return err
	}
	if file := s.config.Access.SigningKeyFile; file != "" || !s.store.Shared() { // or else the key is in etcd
		if now.Key, err = credentials.SigningKey(cmp.Or(file, filepath.Join(s.config.Dir, signingKeyFile))); err != nil {
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
