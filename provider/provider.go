// Package provider gives one controller-runtime manager all tenants of an APIExport: each
// logical cluster that binds the export is a cluster of the manager, as long as it binds it.
// Controllers are written for sigs.k8s.io/multicluster-runtime, so the same code also runs
// against ordinary clusters.
//
//	p, err := provider.New(cfg, provider.Options{Export: "widgets"}) // cfg is for the workspace of the export
//	mgr, err := mcmanager.New(cfg, p, manager.Options{})
//	err = provider.For(mgr, &Widget{}).Complete(reconciler)
//	err = mgr.Start(ctx)
//
// There is one cache for each kind, which all tenants share. All kinds are watched over one
// connection, or over one each if the server does not have that. A tenant reads its part of the
// caches, and writes to its own logical cluster.
package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
)

// Options configure a [Provider]. Only Export is required.
type Options struct {
	// Export is the name of the APIExport.
	Export string
	// EndpointSlice is the name of the APIExportEndpointSlice with the URLs of the view. The
	// default is the name of the export.
	EndpointSlice string
	// Scheme has the Go types of the kinds. The default is that of client-go.
	Scheme *runtime.Scheme
	// Replicas, if not nil, splits the tenants over several processes.
	Replicas *Replicas
	// Logger logs engagements and objects that are left out. The default is that of
	// controller-runtime.
	Logger logr.Logger
}

// A Provider finds the tenants of an export. It implements multicluster.Provider; the manager
// starts it. All methods are safe for concurrent use.
type Provider struct {
	config  *rest.Config
	http    *http.Client
	options Options
	scheme  *runtime.Scheme
	log     logr.Logger

	queue  workqueue.TypedRateLimitingInterface[string] // of the names of tenants
	shares *shares                                      // nil without replicas

	mu      sync.RWMutex
	started bool
	views   map[string]*view // by URL
	tenants map[multicluster.ClusterName]*tenant
	indexes []index
	sources []*wide
}

var (
	_ multicluster.Provider         = &Provider{}
	_ multicluster.ProviderRunnable = &Provider{}
)

// New returns a provider of the tenants of an export. cfg is a configuration for the workspace
// of the export. Its user needs the verbs of the controllers on "apiexports/content" of the
// export, and list and watch on "apiexportendpointslices"; with replicas, all verbs on leases.
func New(cfg *rest.Config, o Options) (*Provider, error) {
	if o.Export == "" {
		return nil, errors.New("provider: set Export to the name of the APIExport")
	}
	if o.EndpointSlice == "" {
		o.EndpointSlice = o.Export
	}
	p := &Provider{
		config: rest.CopyConfig(cfg), options: o, scheme: o.Scheme, log: o.Logger,
		views: map[string]*view{}, tenants: map[multicluster.ClusterName]*tenant{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedItemBasedRateLimiter[string]()),
	}
	p.config.QPS = -1 // the server limits requests
	if p.scheme == nil {
		p.scheme = scheme.Scheme
	}
	if p.log.GetSink() == nil {
		p.log = log.Log.WithName("provider")
	}
	p.log = p.log.WithValues("export", o.Export)
	var err error
	if p.http, err = rest.HTTPClientFor(p.config); err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	if o.Replicas != nil {
		if p.shares, err = newShares(p.config, o.Export, *o.Replicas, p.log); err != nil {
			return nil, fmt.Errorf("provider: %w", err)
		}
		p.shares.changed = func() {
			p.disengage()
			p.reconsider()
		}
	}
	return p, nil
}

// Get implements multicluster.Provider. It returns only tenants that this replica serves.
func (p *Provider) Get(_ context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t := p.tenants[name]; t != nil {
		return t, nil
	}
	return nil, multicluster.ErrClusterNotFound
}

// An index is an index of the objects of a kind, by the values of a function.
type index struct {
	object  client.Object
	field   string
	extract client.IndexerFunc
}

// IndexField implements multicluster.Provider. It adds an index to the shared cache of a kind,
// now and for later tenants. extract must not read the cache.
func (p *Provider) IndexField(_ context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	i := index{object, field, extract}
	key, err := kindOf(object, p.scheme)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.views {
		if err := v.index(key, i); err != nil {
			return err
		}
	}
	p.indexes = append(p.indexes, i)
	return nil
}

// Start implements multicluster.ProviderRunnable. It engages tenants until ctx ends.
func (p *Provider) Start(ctx context.Context, aware multicluster.Aware) error {
	p.mu.Lock()
	again := p.started
	p.started = true
	p.mu.Unlock()
	if again {
		return errors.New("provider: started twice; a provider belongs to one manager")
	}
	var running sync.WaitGroup
	running.Go(func() { // one engagement after the other: they do not block
		for p.next(ctx, aware) {
		}
	})
	if p.shares != nil {
		running.Go(func() { p.shares.run(ctx) })
	}
	err := p.followEndpoints(ctx) // until ctx ends
	p.queue.ShutDown()
	running.Wait()
	return err
}

func (p *Provider) next(ctx context.Context, aware multicluster.Aware) bool {
	name, stop := p.queue.Get()
	if stop {
		return false
	}
	defer p.queue.Done(name)
	if err := p.adjust(ctx, aware, name); err != nil && ctx.Err() == nil {
		p.log.Error(err, "cannot engage the tenant; will retry", "cluster", name)
		p.queue.AddRateLimited(name)
		return true
	}
	p.queue.Forget(name)
	return true
}

// adjust engages a tenant that is bound and belongs to this replica, and disengages others.
func (p *Provider) adjust(ctx context.Context, aware multicluster.Aware, name string) error {
	key := multicluster.ClusterName(name)
	var share *share
	if p.shares != nil {
		share = p.shares.of(name)
	}
	p.mu.Lock()
	want, have := p.viewOf(name), p.tenants[key]
	if !share.holds() {
		want = nil
	}
	if have != nil && have.view != want {
		p.log.V(1).Info("tenant disengaged", "cluster", name)
		have.cancel()
		delete(p.tenants, key)
		have = nil
	}
	if want == nil || have != nil {
		p.mu.Unlock()
		return nil
	}
	t := newTenant(ctx, p, want, share, name)
	p.tenants[key] = t // before Engage: controllers get it right away
	sources := slices.Clone(p.sources)
	p.mu.Unlock()
	err := aware.Engage(t.ctx, key, t)
	for _, s := range sources {
		err = errors.Join(err, s.engaged(t))
	}
	if err != nil {
		t.cancel()
		p.mu.Lock()
		if p.tenants[key] == t {
			delete(p.tenants, key)
		}
		p.mu.Unlock()
		return err
	}
	p.log.V(1).Info("tenant engaged", "cluster", name)
	return nil
}

// viewOf returns the view that has a binding in cluster name, nil if there is none. The caller
// holds the lock.
func (p *Provider) viewOf(name string) *view {
	var found *view
	for _, v := range p.views {
		if v.bindings.has(name) && (found == nil || v.url < found.url) {
			found = v
		}
	}
	return found
}

// disengage disengages the tenants of shares that this replica does not hold any more. adjust
// would do that too, but later.
func (p *Provider) disengage() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range p.tenants {
		if !t.share.holds() {
			t.cancel()
			delete(p.tenants, name)
		}
	}
}

// reconsider makes the provider adjust all tenants again, for example after this replica got
// or lost a share of them.
func (p *Provider) reconsider() {
	p.mu.RLock()
	var names []string
	for name := range p.tenants {
		names = append(names, string(name))
	}
	for _, v := range p.views {
		names = append(names, v.bindings.tenants()...)
	}
	p.mu.RUnlock()
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		p.queue.Add(name)
	}
}
