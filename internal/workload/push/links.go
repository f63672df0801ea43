package push

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/pods"
)

// linkLife is how long a link is kept after its last use. Idle connections close before.
const linkLife = time.Minute

// Links reach physical clusters for requests of tenants: in push mode with the stored
// kubeconfig, in pull mode through the tunnel of an agent.
type Links struct {
	tunnel func(target string) http.RoundTripper
	server atomic.Pointer[kcp.Server]

	mu    sync.Mutex
	links map[string]*reached // by the key of the target; guarded by mu
	swept time.Time           // guarded by mu
}

// NewLinks returns links without a server, which reach nothing. tunnel returns the way to the target
// with a key, in pull mode.
func NewLinks(tunnel func(target string) http.RoundTripper) *Links {
	return &Links{tunnel: tunnel, links: map[string]*reached{}}
}

// Start sets the server.
func (r *Links) Start(s *kcp.Server) { r.server.Store(s) }

// reached is a link and what it was made from.
type reached struct {
	*pods.Link
	credentials string
	used        time.Time
}

// Reach implements [pods.Reach].
func (r *Links) Reach(ctx context.Context, compute kcp.ClusterName, t *workload.SyncTarget) (*pods.Link, error) {
	s := r.server.Load()
	key := engine.TargetKey(string(compute), t.Name, string(t.UID))
	if s != nil && t.Spec.Mode == workload.PullMode {
		return r.link(key, "", func() (*pods.Link, error) {
			return &pods.Link{Server: &url.URL{Scheme: "http", Host: "physical"}, Through: r.tunnel(key)}, nil
		})
	}
	if s == nil || t.Spec.Push == nil {
		return nil, errors.New("the physical cluster has no kubeconfig")
	}
	text, err := Workspace{s, compute}.Kubeconfig(ctx, t)
	if err != nil {
		return nil, err
	}
	return r.link(key, Fingerprint(text), func() (*pods.Link, error) { return pushLink(s, compute, text) })
}

// link returns the link to a target that was made with the same credentials, or makes one.
func (r *Links) link(key, credentials string, made func() (*pods.Link, error)) (*pods.Link, error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(now)
	if have := r.links[key]; have != nil && have.credentials == credentials {
		have.used = now
		return have.Link, nil
	}
	link, err := made()
	if err != nil {
		return nil, err
	}
	r.links[key] = &reached{Link: link, credentials: credentials, used: now}
	return link, nil
}

// sweep forgets unused links.
func (r *Links) sweep(now time.Time) {
	if now.Sub(r.swept) < linkLife/2 {
		return
	}
	r.swept = now
	for k, l := range r.links {
		if now.Sub(l.used) > linkLife {
			delete(r.links, k)
		}
	}
}

// pushLink returns a link for a kubeconfig.
func pushLink(s *kcp.Server, compute kcp.ClusterName, text []byte) (*pods.Link, error) {
	k, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	config, err := configOf(k, func(ca []byte, certificate certificate) (http.RoundTripper, error) {
		return s.Egress(compute, ca, certificate)
	})
	if err != nil {
		return nil, err
	}
	if of, ok := config.Transport.(bounded); ok {
		config.Transport = of.through // logs have no bound; lists have one of their own
	}
	at, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	how, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	through, err := transport.HTTPWrappersForConfig(how, config.Transport)
	if err != nil {
		return nil, err
	}
	return &pods.Link{Server: &url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path}, Through: plainTransport{through}}, nil
}

// plainTransport hides what upstream's wrappers can do besides, such as dialing.
type plainTransport struct{ http.RoundTripper }
