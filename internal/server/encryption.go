package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/value"
)

// Encryption says how objects are encrypted in etcd. Its zero value is not at all.
type Encryption struct {
	// ConfigFile is an EncryptionConfiguration of apiserver.config.k8s.io/v1. What it
	// says of a resource holds for it in every logical cluster.
	ConfigFile string
	// Reload has the file read again when it changes.
	Reload bool
}

// serverID tells servers apart in the metrics of the libraries.
const serverID = "kcp"

const pluginPoll = 100 * time.Millisecond

func (e Encryption) check() error {
	if e.Reload && e.ConfigFile == "" {
		return errors.New("--encryption-provider-config-automatic-reload needs --encryption-provider-config; name the file to read again")
	}
	if err := readable(e.ConfigFile); err != nil {
		return fmt.Errorf("--encryption-provider-config: %w; name a file that the server can read", err)
	}
	return nil
}

// encryption is how a running server encrypts. Nil is not at all.
type encryption struct {
	file    string
	loaded  *encryptionconfig.EncryptionConfiguration
	dynamic *encryptionconfig.DynamicTransformers // nil if the file is read once
}

// prepareEncryption reads the configuration, and waits for the plugins that it names:
// what cannot be decrypted while the server reads everything counts as lost.
func (s *Server) prepareEncryption(ctx context.Context) error {
	chosen := s.config.Encryption
	if chosen.ConfigFile == "" {
		return nil
	}
	transformers, end := context.WithCancel(s.ctx)
	loaded, err := encryptionconfig.LoadEncryptionConfig(transformers, chosen.ConfigFile, chosen.Reload, serverID)
	if err != nil {
		end()
		return fmt.Errorf("--encryption-provider-config %s: %w; correct the file", chosen.ConfigFile, err)
	}
	context.AfterFunc(s.ctx, end)
	s.encryption = &encryption{file: chosen.ConfigFile, loaded: loaded}
	if chosen.Reload {
		s.encryption.dynamic = encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], end, loaded.KMSCloseGracePeriod)
	}
	return s.encryption.awaitPlugins(ctx)
}

func (e *encryption) awaitPlugins(ctx context.Context) error {
	tick := time.NewTicker(pluginPoll)
	defer tick.Stop()
	for {
		var errs []error
		for _, check := range e.loaded.HealthChecks {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+check.Name(), nil)
			if err != nil {
				return err
			}
			errs = append(errs, check.Check(req))
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("--encryption-provider-config %s: %w; start the plugin that it names", e.file, err)
		}
	}
}

// transformers returns what the store encrypts with.
func (e *encryption) transformers() value.ResourceTransformers {
	switch {
	case e == nil:
		return nil
	case e.dynamic != nil:
		return e.dynamic
	default:
		return encryptionconfig.StaticTransformers(e.loaded.Transformers)
	}
}

// health returns checks of the plugins.
func (e *encryption) health() []healthz.HealthChecker {
	switch {
	case e == nil:
		return nil
	case e.dynamic != nil:
		return []healthz.HealthChecker{e.dynamic}
	default:
		return e.loaded.HealthChecks
	}
}

// reload reads the configuration again when it changes, until ctx ends.
func (e *encryption) reload(ctx context.Context) {
	if e == nil || e.dynamic == nil {
		return
	}
	encryptioncontroller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload", e.file, e.dynamic, e.loaded.EncryptionFileContentHash, serverID).Run(ctx)
}
