package provider

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/view/joint"
)

// A view is the view of the export at one URL, which is that of one shard. It has a cache for
// each kind that controllers read, for all tenants together.
type view struct {
	p        *Provider
	url      string
	config   *rest.Config // for all tenants
	mapper   meta.RESTMapper
	objects  dynamic.Interface
	metadata metadata.Interface
	bindings *kind // decides who is a tenant

	mu      sync.Mutex
	kinds   map[kindKey]*kind
	indexes map[kindKey][]index
	ctx     context.Context // nil before start
	joint   *joint.Watch    // nil before start
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newView(p *Provider, url string) (*view, error) {
	v := &view{p: p, url: url, config: rest.CopyConfig(p.config), kinds: map[kindKey]*kind{}, indexes: map[kindKey][]index{}}
	v.config.Host = url + "/clusters/*"
	var err error
	if v.mapper, err = apiutil.NewDynamicRESTMapper(v.config, p.http); err != nil {
		return nil, err
	}
	if v.objects, err = dynamic.NewForConfigAndClient(v.config, p.http); err != nil {
		return nil, err
	}
	if v.metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(v.config), p.http); err != nil {
		return nil, err
	}
	v.bindings, err = v.kind(kindKey{apisv1alpha2.GroupVersion.WithKind("APIBinding"), onlyIdentity})
	return v, err
}

// start fills the caches until stop is called or ctx ends.
func (v *view) start(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ctx, v.cancel = context.WithCancel(ctx)
	v.joint = joint.New(v.ctx, v.config.Host, v.p.http, v.running.Go)
	for _, k := range v.kinds {
		v.run(k)
	}
}

// run fills a cache. The caller holds the lock.
func (v *view) run(k *kind) { v.running.Go(func() { k.run(v.ctx) }) }

// stop ends all watches of the view, and returns when they have ended.
func (v *view) stop() {
	v.mu.Lock()
	if v.cancel != nil {
		v.cancel()
	}
	v.mu.Unlock()
	v.running.Wait()
}

// stopped reports whether the view is gone.
func (v *view) stopped() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ctx != nil && v.ctx.Err() != nil
}

// kind returns the cache of a kind. The first call starts its watch.
func (v *view) kind(key kindKey) (*kind, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if k := v.kinds[key]; k != nil {
		return k, nil
	}
	k, err := newKind(v, key)
	if err != nil {
		return nil, err
	}
	for _, i := range v.indexes[key] {
		if err := k.index(i); err != nil {
			return nil, err
		}
	}
	v.kinds[key] = k
	if v.ctx != nil && v.ctx.Err() == nil {
		v.run(k)
	}
	return k, nil
}

// index adds an index to the cache of a kind, as soon as there is one.
func (v *view) index(key kindKey, i index) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if k := v.kinds[key]; k != nil {
		if err := k.index(i); err != nil {
			return err
		}
	}
	v.indexes[key] = append(v.indexes[key], i)
	return nil
}

// tenantOf returns the name of the logical cluster of an object.
func tenantOf(o metav1.Object) string { return string(cluster.Of(o)) }
