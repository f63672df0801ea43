package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/compatibility"
)

// An Operation is what those choose who run a server, in the words of an API server
// of Kubernetes. Its zero value works; [DefaultOperation] has the same, spelled out.
type Operation struct {
	// Serving has the certificates and what TLS connections must be like. Its address
	// and listener count for nothing. Without a certificate the server makes its own.
	Serving *options.SecureServingOptions
	// Audit says which requests are recorded, and where.
	Audit *options.AuditOptions
	// Tracing says where traces of requests go.
	Tracing *options.TracingOptions
	// Encryption says how objects are encrypted in etcd.
	Encryption Encryption
	// Requests bounds requests, and says how the server stops. Its addresses and
	// versions count for nothing.
	Requests *options.ServerRunOptions
	// Profiling says who can look into the running process.
	Profiling *options.FeatureOptions
	// ProfilerAddress is where profiles are shown to everybody, as at a port of this
	// machine; empty for nowhere.
	ProfilerAddress string
	// Plugins says which admission rules are on.
	Plugins Plugins
	// DeleteCollectionWorkers is how many objects a request to delete many deletes at
	// once. The default is one.
	DeleteCollectionWorkers int
	// EventTTL is how long events are kept. The default is an hour.
	EventTTL time.Duration
}

// DefaultOperation returns the choices that the zero value of an Operation stands
// for, to begin from.
func DefaultOperation() Operation {
	o := Operation{
		Serving: options.NewSecureServingOptions(),
		Audit:   options.NewAuditOptions(),
		Tracing: options.NewTracingOptions(),
		// With a registry of its own, as the library's would be shared by all servers.
		Requests:  options.NewServerRunOptionsForComponent("kcp", ownRegistry()),
		Profiling: options.NewFeatureOptions(),
		EventTTL:  time.Hour,

		DeleteCollectionWorkers: 1,
	}
	o.Serving.ServerCert.CertDirectory = ""
	o.Serving.HTTP2MaxStreamsPerConnection = maxStreams
	o.Requests.MaxRequestsInFlight, o.Requests.MaxMutatingRequestsInFlight = maxReads, maxWrites
	o.Requests.ShutdownWatchTerminationGracePeriod = drain
	o.Profiling.EnablePriorityAndFairness = false
	return o
}

// ownRegistry is where the options of a server look for versions and feature gates
// that they do not decide on here.
func ownRegistry() compatibility.ComponentGlobalsRegistry {
	r := compatibility.NewComponentGlobalsRegistry()
	_ = r.Set() // of an empty registry it only notes that it was done
	return r
}

// complete fills in what was not chosen.
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
		requests.ComponentGlobalsRegistry = ownRegistry()
		o.Requests = &requests
	}
	if o.Profiling == nil {
		o.Profiling = d.Profiling
	}
	if o.DeleteCollectionWorkers == 0 {
		o.DeleteCollectionWorkers = d.DeleteCollectionWorkers
	}
	if o.EventTTL == 0 {
		o.EventTTL = d.EventTTL
	}
}

// check finds all that is wrong with what was chosen, before anything is started.
func (o *Operation) check() error {
	var all []error
	all = append(all, o.Serving.Validate()...)
	all = append(all, checkServing(o.Serving), o.checkAudit(), o.checkTracing(), o.Encryption.check())
	all = append(all, o.Requests.Validate()...)
	if o.EventTTL < time.Second {
		all = append(all, fmt.Errorf("--event-ttl %s is too short; keep events for a second at least", o.EventTTL))
	}
	if o.DeleteCollectionWorkers < 1 {
		all = append(all, fmt.Errorf("--delete-collection-workers %d is too few; one at least", o.DeleteCollectionWorkers))
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
			return errors.New("there is an audit log or webhook but nothing to record; say what to record with --audit-policy-file")
		}
		return nil
	}
	if !writes {
		return errors.New("--audit-policy-file is set but events go nowhere; give --audit-log-path or --audit-webhook-config-file")
	}
	if _, err := auditpolicy.LoadPolicyFromFile(a.PolicyFile); err != nil {
		return fmt.Errorf("--audit-policy-file: %w; write it as https://kubernetes.io/docs/tasks/debug/debug-cluster/audit says", err)
	}
	if err := readable(a.WebhookOptions.ConfigFile); err != nil {
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

// apply sets on cfg what was chosen.
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
