// Package encryption runs the encryption of objects in etcd: its configuration, the plugins that
// it names, and the reload of its file.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/value"
)

// Options configure the encryption of objects in etcd. The zero value disables it.
type Options struct {
	// ConfigFile is the file of an EncryptionConfiguration of apiserver.config.k8s.io/v1.
	// It applies to every logical cluster.
	ConfigFile string
	// Reload makes the server read the file again when it changes.
	Reload bool
}

// serverID identifies the server in metrics of the libraries.
const serverID = "kcp"

const pluginPoll = 100 * time.Millisecond

// Check returns an error if the options contradict each other or the file cannot be read.
func (e Options) Check() error {
	if e.Reload && e.ConfigFile == "" {
		return errors.New("--encryption-provider-config-automatic-reload needs --encryption-provider-config; name the file to read again")
	}
	if e.ConfigFile == "" {
		return nil
	}
	if _, err := os.ReadFile(e.ConfigFile); err != nil {
		return fmt.Errorf("--encryption-provider-config: %w; name a file that the server can read", err)
	}
	return nil
}

// Running is the encryption of a running server; nil disables it.
type Running struct {
	file    string
	loaded  *encryptionconfig.EncryptionConfiguration
	dynamic *encryptionconfig.DynamicTransformers // nil if the file is read once
}

// Start reads the configuration and waits, until ctx ends, for the plugins that it names. The
// server treats objects that it cannot decrypt at its start as lost. The transformers work until
// life ends. The result is nil if there is no configuration.
func (e Options) Start(ctx, life context.Context) (*Running, error) {
	if e.ConfigFile == "" {
		return nil, nil
	}
	transformers, end := context.WithCancel(life)
	loaded, err := encryptionconfig.LoadEncryptionConfig(transformers, e.ConfigFile, e.Reload, serverID)
	if err != nil {
		end()
		return nil, fmt.Errorf("--encryption-provider-config %s: %w; correct the file", e.ConfigFile, err)
	}
	context.AfterFunc(life, end)
	r := &Running{file: e.ConfigFile, loaded: loaded}
	if e.Reload {
		r.dynamic = encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], end, loaded.KMSCloseGracePeriod)
	}
	return r, r.awaitPlugins(ctx)
}

func (e *Running) awaitPlugins(ctx context.Context) error {
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

// Transformers returns the transformers that the store encrypts and decrypts with.
func (e *Running) Transformers() value.ResourceTransformers {
	switch {
	case e == nil:
		return nil
	case e.dynamic != nil:
		return e.dynamic
	default:
		return encryptionconfig.StaticTransformers(e.loaded.Transformers)
	}
}

// Health returns the health checks of the plugins.
func (e *Running) Health() []healthz.HealthChecker {
	switch {
	case e == nil:
		return nil
	case e.dynamic != nil:
		return []healthz.HealthChecker{e.dynamic}
	default:
		return e.loaded.HealthChecks
	}
}

// Reload reads the configuration again whenever it changes, until ctx ends.
func (e *Running) Reload(ctx context.Context) {
	if e == nil || e.dynamic == nil {
		return
	}
	encryptioncontroller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload", e.file, e.dynamic, e.loaded.EncryptionFileContentHash, serverID).Run(ctx)
}
