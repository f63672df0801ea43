// Package mounts proxies requests to workspaces that another server serves. The other server
// gets the user in headers and authorizes the request.
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
	"k8s.io/streaming/pkg/httpstream"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/dial"
	"github.com/unforked/kcp/internal/edge"
	"github.com/unforked/kcp/internal/tenancy"
)

// A Proxy proxies the requests to mounted workspaces.
type Proxy struct {
	// Certificate authenticates this server to the others.
	Certificate Certificate
	// At returns the mounted Workspace that a path leads to, and the cluster that it is in. The
	// mount is nil if the path leads to none.
	At func(cluster.Path) (parent cluster.Name, name string, m *tenancy.Mount)
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

type mountKey struct{}

// A mountedAt is the mounted workspace that a request is for.
type mountedAt struct {
	parent cluster.Name
	name   string
	*tenancy.Mount
}

func mountOf(ctx context.Context) (mountedAt, bool) {
	at, ok := ctx.Value(mountKey{}).(mountedAt)
	return at, ok
}

// mountAt returns the mounted workspace at a path. If it is not ready in the cache, mountAt
// looks again after the cache is current.
func (p *Proxy) mountAt(ctx context.Context, path cluster.Path) (mountedAt, bool) {
	find := func() (at mountedAt) {
		at.parent, at.name, at.Mount = p.At(path)
		return at
	}
	at := find()
	if at.Mount != nil && !at.Ready && p.Fresh(ctx) {
		at = find()
	}
	return at, at.Mount != nil
}

// WithMount stores the mounted workspace in the context of requests whose path leads to
// one. These requests belong to no cluster of this server. Their users have the identity
// that they have outside of all clusters.
func (p *Proxy) WithMount(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if broken, ok := edge.Broken(ctx); ok {
			if at, ok := p.mountAt(ctx, broken.Path); ok {
				req = req.WithContext(context.WithValue(ctx, mountKey{}, at))
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
		_, mounted := mountOf(req.Context())
		return mounted && httpstream.IsUpgradeRequest(req)
	}
}

// WithProxy proxies the requests that [Proxy.WithMount] has found to be for a mounted workspace.
// The filter is inside authentication and outside all filters that depend on a cluster of this
// server.
func (p *Proxy) WithProxy(next http.Handler) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      roundTripper(p.relay),
		FlushInterval:  -1, // watches
		ErrorLog:       log.New(io.Discard, "", 0),
		ModifyResponse: func(resp *http.Response) error { return cleanAnswer(resp.Header) },
		ErrorHandler:   refuse,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at, ok := mountOf(req.Context())
		switch hops, _ := strconv.Atoi(req.Header.Get(hopsHeader)); {
		case !ok:
			next.ServeHTTP(w, req)
		case !at.Ready:
			http.Error(w, "Not available.", http.StatusServiceUnavailable)
		case hops >= maxHops || hops < 0:
			edge.Refuse(w, req, unreachable(http.StatusLoopDetected, "its mount leads back to itself"))
		default:
			defer forgiveLeaving(req.Context())
			proxy.ServeHTTP(w, req)
		}
	})
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

// relay sends a proxied request. It counts for the cluster that the Workspace is in.
func (p *Proxy) relay(req *http.Request) (*http.Response, error) {
	at, _ := mountOf(req.Context())
	through, err := p.Relay(at.parent, at.CA, p.Certificate.loader())
	if err != nil {
		return nil, err
	}
	return through.RoundTrip(req)
}

// rewrite builds the proxied request. It removes the client's credentials, and
// sets the user in headers that a client cannot set.
func rewrite(p *httputil.ProxyRequest) {
	at, _ := mountOf(p.In.Context())
	to, err := url.Parse(at.URL)
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
		tellUser(out.Header, auth.Elsewhere(c, u))
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

// tellUser sets the X-Remote headers of an authenticating proxy to the user. It sets none
// for anonymous users.
func tellUser(h http.Header, u user.Info) {
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
		strings.HasPrefix(group, "system:kcp:initializer:") || strings.HasPrefix(group, "system:kcp:terminator:")
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
	switch {
	case errors.Is(err, dial.ErrBusy):
		w.Header().Set("Retry-After", "1")
		edge.Refuse(w, req, apierrors.NewTooManyRequests(err.Error(), 1))
	case errors.As(err, &timeout) && timeout.Timeout():
		edge.Refuse(w, req, unreachable(http.StatusGatewayTimeout, err.Error()))
	default:
		edge.Refuse(w, req, unreachable(http.StatusBadGateway, err.Error()))
	}
}

func unreachable(code int32, why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReason(strings.ReplaceAll(http.StatusText(int(code)), " ", "")),
		Message: "the mounted workspace cannot be reached: " + why,
	}}
}
