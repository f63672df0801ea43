// Package mounts proxies requests to servers that tenants choose: those of mounted workspaces, and
// those with the objects of resources that are not stored here. The other server gets the user in
// headers and authorizes the request.
package mounts

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// A Proxy proxies requests to servers that tenants choose.
type Proxy struct {
	// Certificate authenticates this server to the others.
	Certificate Certificate
	// At returns the mounted Workspace that a path leads to, and the cluster that it is in. The
	// mount is nil if the path leads to none.
	At func(cluster.Path) (parent cluster.Name, name string, m *tree.Mount)
	// Fresh waits until At is current, and reports whether it is.
	Fresh func(context.Context) bool
	// Relay returns the transport to the server of a mounted workspace in a cluster.
	Relay func(parent cluster.Name, ca []byte, certificate func() (*tls.Certificate, error)) (http.RoundTripper, error)
}

const (
	// hopsHeader is the header that counts how often a request was proxied.
	hopsHeader = "X-Kcp-Mount-Hops"
	maxHops    = 4

	remoteUser        = "X-Remote-User"
	remoteUID         = "X-Remote-Uid"
	remoteGroup       = "X-Remote-Group"
	remoteExtraPrefix = "X-Remote-Extra-"
)

type targetKey struct{}

// A target is the server that a request is for.
type target struct {
	tenant cluster.Name // the cluster that requests count for
	what   string       // the server, for messages
	url    string
	ca     []byte
	ready  bool
}

func targetOf(ctx context.Context) (target, bool) {
	to, ok := ctx.Value(targetKey{}).(target)
	return to, ok
}

// mountAt returns the server of the mounted workspace at a path. If it is not ready in the cache,
// mountAt looks again after the cache is current.
func (p *Proxy) mountAt(ctx context.Context, path cluster.Path) (target, bool) {
	parent, _, m := p.At(path)
	if m != nil && !m.Ready && p.Fresh(ctx) {
		parent, _, m = p.At(path)
	}
	if m == nil {
		return target{}, false
	}
	return target{parent, "the mounted workspace", m.URL, m.CA, m.Ready}, true
}

// WithMount stores the mounted workspace in the context of requests whose path leads to
// one. These requests belong to no cluster of this server. Their users have the identity
// that they have outside of all clusters.
func (p *Proxy) WithMount(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if broken, ok := edge.Broken(ctx); ok {
			if at, ok := p.mountAt(ctx, broken.Path); ok {
				req = req.WithContext(context.WithValue(ctx, targetKey{}, at))
			}
		}
		next.ServeHTTP(w, req)
	})
}

// OrUpgrade extends a check for long-running requests to upgrades, such as exec, in mounted
// workspaces. Such connections have no time limit.
func OrUpgrade(longRunning request.LongRunningRequestCheck) request.LongRunningRequestCheck {
	return func(req *http.Request, info *request.RequestInfo) bool {
		if longRunning(req, info) {
			return true
		}
		_, mounted := targetOf(req.Context())
		return mounted && httpstream.IsUpgradeRequest(req)
	}
}

// WithProxy proxies the requests that [Proxy.WithMount] has found to be for a mounted workspace.
// The filter is inside authentication and outside all filters that depend on a cluster of this
// server.
func (p *Proxy) WithProxy(next http.Handler) http.Handler {
	proxy := p.proxy()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if at, ok := targetOf(req.Context()); ok {
			pass(proxy, at, w, req)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// To returns a handler that proxies requests to the server at a URL that a tenant has chosen. The
// requests count for the tenant. Error messages call the server what. The PEM certificates in ca
// verify it; if ca is empty, those of this machine do.
func (p *Proxy) To(tenant cluster.Name, what, at string, ca []byte) http.Handler {
	proxy, to := p.proxy(), target{tenant, what, at, ca, true}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		pass(proxy, to, w, req.WithContext(context.WithValue(req.Context(), targetKey{}, to)))
	})
}

func (p *Proxy) proxy() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     roundTripper(p.relay),
		FlushInterval: -1, // watches
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(resp *http.Response) error {
			flowcontrol.WatchInitialized(resp.Request.Context())
			return cleanAnswer(resp.Header)
		},
		ErrorHandler: refuse,
	}
}

// pass proxies a request, whose context has the target.
func pass(proxy http.Handler, to target, w http.ResponseWriter, req *http.Request) {
	switch hops, _ := strconv.Atoi(req.Header.Get(hopsHeader)); {
	case !to.ready:
		http.Error(w, "Not available.", http.StatusServiceUnavailable)
	case hops >= maxHops || hops < 0:
		edge.Refuse(w, req, unreachable(to, http.StatusLoopDetected, "the request comes back to this server"))
	default:
		defer forgiveLeaving(req.Context())
		proxy.ServeHTTP(w, req)
	}
}

// forgiveLeaving recovers a panic of the proxy if the client has disconnected. The proxy
// panics to abort a response that it cannot complete; without a client there is nothing to
// abort or to log.
func forgiveLeaving(ctx context.Context) {
	r := recover()
	if err, _ := r.(error); r != nil && (!errors.Is(err, http.ErrAbortHandler) || ctx.Err() == nil) {
		panic(r)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// relay sends a proxied request.
func (p *Proxy) relay(req *http.Request) (*http.Response, error) {
	to, _ := targetOf(req.Context())
	through, err := p.Relay(to.tenant, to.ca, p.Certificate.loader())
	if err != nil {
		return nil, err
	}
	return through.RoundTrip(req)
}

// rewrite builds the proxied request. It removes the client's credentials, and
// sets the user in headers that a client cannot set.
func rewrite(p *httputil.ProxyRequest) {
	at, _ := targetOf(p.In.Context())
	to, err := url.Parse(at.url)
	if err != nil {
		to = &url.URL{} // the transport refuses it
	}
	out := p.Out
	out.URL.Scheme, out.URL.Host, out.Host = to.Scheme, to.Host, ""
	out.URL.Path, out.URL.RawPath = strings.TrimRight(to.Path, "/")+p.In.URL.Path, ""
	hops, _ := strconv.Atoi(p.In.Header.Get(hopsHeader))
	for name := range out.Header {
		if isOurs(name) {
			delete(out.Header, name)
		}
	}
	out.Header.Set(hopsHeader, strconv.Itoa(hops+1))
	if u, ok := request.UserFrom(p.In.Context()); ok {
		c, _ := cluster.From(p.In.Context())
		setUserHeaders(out.Header, auth.Elsewhere(c, u))
	}
}

// isOurs reports whether a header of the client is removed: credentials, and headers that
// only this server may set. Some servers read "_" as "-".
func isOurs(name string) bool {
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	switch name {
	case "Authorization", "Proxy-Authorization", "Cookie", hopsHeader:
		return true
	}
	return strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "X-Kcp-Internal-")
}

// setUserHeaders sets the X-Remote headers of an authenticating proxy to the user. It sets none
// for anonymous users.
func setUserHeaders(h http.Header, u user.Info) {
	if u.GetName() == "" || u.GetName() == user.Anonymous {
		return
	}
	h.Set(remoteUser, u.GetName())
	if u.GetUID() != "" {
		h.Set(remoteUID, u.GetUID())
	}
	for _, g := range u.GetGroups() {
		if !staysHere(g) {
			h.Add(remoteGroup, g)
		}
	}
	for key, values := range u.GetExtra() {
		for _, v := range values {
			if key != auth.WarrantKey { // warrants grant rights on this server only
				h.Add(remoteExtraPrefix+url.PathEscape(key), v)
			}
		}
	}
}

// staysHere reports whether a group is not sent to other servers, because it grants special
// rights on this one.
func staysHere(group string) bool {
	return group == user.SystemPrivilegedGroup || group == auth.LogicalClusterAdminGroup ||
		strings.HasPrefix(group, auth.InitializerGroupPrefix) || strings.HasPrefix(group, auth.TerminatorGroupPrefix)
}

// cleanAnswer removes response headers that would affect other workspaces: to a browser all
// workspaces have one origin.
func cleanAnswer(h http.Header) error {
	for name := range h {
		switch {
		case strings.HasPrefix(name, "Access-Control-"):
			delete(h, name)
		case name == "Set-Cookie" || name == "Set-Cookie2" || name == "Clear-Site-Data" || name == "Alt-Svc" || name == "Strict-Transport-Security" || name == "Www-Authenticate":
			delete(h, name)
		}
	}
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("X-Content-Type-Options", "nosniff")
	return nil
}

func refuse(w http.ResponseWriter, req *http.Request, err error) {
	var timeout interface{ Timeout() bool }
	to, _ := targetOf(req.Context())
	switch {
	case errors.Is(err, dial.ErrBusy):
		w.Header().Set("Retry-After", "1")
		edge.Refuse(w, req, apierrors.NewTooManyRequests(err.Error(), 1))
	case errors.As(err, &timeout) && timeout.Timeout():
		edge.Refuse(w, req, unreachable(to, http.StatusGatewayTimeout, err.Error()))
	default:
		edge.Refuse(w, req, unreachable(to, http.StatusBadGateway, err.Error()))
	}
}

func unreachable(to target, code int32, why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReason(strings.ReplaceAll(http.StatusText(int(code)), " ", "")),
		Message: to.what + " cannot be reached: " + why,
	}}
}
