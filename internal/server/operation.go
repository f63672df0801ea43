package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/request/flow"
	"github.com/unforked/kcp/internal/storage/encryption"
	"github.com/unforked/kcp/internal/upstream"
)

// An Operation holds the options for operators, mostly those of kube-apiserver. A nil or
// zero field means its default in [DefaultOperation].
type Operation struct {
	// Serving holds the certificates and the TLS options. Its address and listener are
	// ignored. Without a certificate the server makes its own.
	Serving *options.SecureServingOptions
	// Audit selects the requests that are recorded, and the destination of the records.
	Audit *options.AuditOptions
	// Tracing configures where traces of requests are sent.
	Tracing *options.TracingOptions
	// Encryption configures the encryption of objects in etcd.
	Encryption encryption.Options
	// Requests limits requests and configures the shutdown. Its addresses and versions are
	// ignored.
	Requests *options.ServerRunOptions
	// Profiling enables profiles at /debug/pprof, for users whom RBAC allows them.
	Profiling *options.FeatureOptions
	// ProfilerAddress is the address of a listener that serves profiles without
	// authentication. Empty disables it.
	ProfilerAddress string
	// Plugins enables and disables admission rules.
	Plugins admit.Plugins
	// DeleteCollectionWorkers is how many objects a deletecollection request deletes in
	// parallel. The default is 1.
	DeleteCollectionWorkers int
	// TotalObjectLimit is the maximum number of objects in a logical cluster, 0 for none.
	TotalObjectLimit int64
	// TenantStoragePercent is the maximum part of the database for one tenant: everything
	// below one topmost workspace or one home. The default is 25 percent.
	TenantStoragePercent int
	// EventTTL is how long events are kept. The default is one hour; the minimum is one
	// second.
	EventTTL time.Duration
	// ConversionTimeout is the time that the rules of an APIConversion may take for one object or
	// one list. The default is three seconds.
	ConversionTimeout time.Duration
}

// DefaultOperation returns an Operation with all defaults set.
func DefaultOperation() Operation {
	o := Operation{
		Serving:   options.NewSecureServingOptions(),
		Audit:     options.NewAuditOptions(),
		Tracing:   options.NewTracingOptions(),
		Requests:  options.NewServerRunOptionsForComponent("kcp", upstream.NewRegistry()),
		Profiling: options.NewFeatureOptions(),
		EventTTL:  time.Hour,

		ConversionTimeout: 3 * time.Second,

		DeleteCollectionWorkers: 1, TenantStoragePercent: quota.DefaultShare,
	}
	o.Serving.ServerCert.CertDirectory = ""
	o.Serving.HTTP2MaxStreamsPerConnection = maxStreams
	o.Requests.MaxRequestsInFlight, o.Requests.MaxMutatingRequestsInFlight = flow.MaxReads, flow.MaxWrites
	o.Requests.ShutdownWatchTerminationGracePeriod = drain
	o.Profiling.EnablePriorityAndFairness = false
	return o
}

// complete sets unset fields to their defaults.
func (o *Operation) complete() {
	d := DefaultOperation()
	if o.Serving == nil {
		o.Serving = d.Serving
	}
	if o.Audit == nil {
		o.Audit = d.Audit
	}
	if o.Tracing == nil {
		o.Tracing = d.Tracing
	}
	if o.Requests == nil {
		o.Requests = d.Requests
	}
	if o.Requests.ComponentGlobalsRegistry == nil {
		requests := *o.Requests
		requests.ComponentGlobalsRegistry = upstream.NewRegistry()
		o.Requests = &requests
	}
	if o.Profiling == nil {
		o.Profiling = d.Profiling
	}
	if o.DeleteCollectionWorkers == 0 {
		o.DeleteCollectionWorkers = d.DeleteCollectionWorkers
	}
	if o.TenantStoragePercent == 0 {
		o.TenantStoragePercent = d.TenantStoragePercent
	}
	if o.EventTTL == 0 {
		o.EventTTL = d.EventTTL
	}
	if o.ConversionTimeout == 0 {
		o.ConversionTimeout = d.ConversionTimeout
	}
}

// check returns all errors in the options, before anything is started.
func (o *Operation) check() error {
	var all []error
	all = append(all, o.Serving.Validate()...)
	all = append(all, credentials.CheckFiles(o.Serving), o.checkAudit(), o.checkTracing(), o.Encryption.Check())
	all = append(all, o.Requests.Validate()...)
	if o.EventTTL < time.Second {
		all = append(all, fmt.Errorf("--event-ttl %s is too short; set at least 1s", o.EventTTL))
	}
	if o.ConversionTimeout < 0 {
		all = append(all, fmt.Errorf("--conversion-cel-transformation-timeout %s is negative; set a longer time", o.ConversionTimeout))
	}
	if o.DeleteCollectionWorkers < 1 {
		all = append(all, fmt.Errorf("--delete-collection-workers %d is too few; set at least 1", o.DeleteCollectionWorkers))
	}
	if o.TotalObjectLimit < 0 {
		all = append(all, errors.New("--logical-cluster-total-object-limit must not be negative; 0 means no limit"))
	}
	if p := o.TenantStoragePercent; p < 1 || p > 100 {
		all = append(all, fmt.Errorf("--tenant-storage-percent %d is invalid; choose a percentage from 1 to 100", p))
	}
	return errors.Join(all...)
}

func (o *Operation) checkAudit() error {
	a := o.Audit
	if err := errors.Join(a.Validate()...); err != nil {
		return fmt.Errorf("%w; correct the flags --audit-*", err)
	}
	writes := a.LogOptions.Path != "" || a.WebhookOptions.ConfigFile != ""
	if a.PolicyFile == "" {
		if writes {
			return errors.New("an audit log or webhook is set but no policy; select the requests to record with --audit-policy-file")
		}
		return nil
	}
	if !writes {
		return errors.New("--audit-policy-file is set but no destination; set --audit-log-path or --audit-webhook-config-file")
	}
	if _, err := auditpolicy.LoadPolicyFromFile(a.PolicyFile); err != nil {
		return fmt.Errorf("--audit-policy-file: %w; write it as https://kubernetes.io/docs/tasks/debug/debug-cluster/audit says", err)
	}
	if err := credentials.Readable(a.WebhookOptions.ConfigFile); err != nil {
		return fmt.Errorf("--audit-webhook-config-file: %w; name a kubeconfig that the server can read", err)
	}
	return nil
}

func (o *Operation) checkTracing() error {
	if o.Tracing.ConfigFile == "" {
		return nil
	}
	if _, err := options.ReadTracingConfiguration(o.Tracing.ConfigFile); err != nil {
		return fmt.Errorf("--tracing-config-file: %w; write a TracingConfiguration of apiserver.config.k8s.io/v1", err)
	}
	return nil
}

// apply copies the options to cfg. It keeps the version, feature gates and address of cfg.
func (o *Operation) apply(ctx context.Context, cfg *genericapiserver.Config) error {
	version, gates, address := cfg.EffectiveVersion, cfg.FeatureGate, cfg.ExternalAddress
	if err := o.Requests.ApplyTo(cfg); err != nil {
		return err
	}
	cfg.EffectiveVersion, cfg.FeatureGate, cfg.ExternalAddress = version, gates, address
	cfg.EnableProfiling = o.Profiling.EnableProfiling
	cfg.EnableContentionProfiling = o.Profiling.EnableProfiling && o.Profiling.EnableContentionProfiling
	cfg.DebugSocketPath = o.Profiling.DebugSocketPath
	if err := o.Audit.ApplyTo(cfg); err != nil {
		return fmt.Errorf("%w; correct the flags --audit-*", err)
	}
	if err := o.Tracing.ApplyTo(nil, cfg); err != nil {
		return fmt.Errorf("--tracing-config-file: %w", err)
	}
	return ctx.Err()
}
