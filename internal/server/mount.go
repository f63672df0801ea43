package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
	"github.com/unforked/kcp/internal/tenancy"
)

// MountProxy says who the server is to those that it passes requests on to.
type MountProxy struct {
	// CertFile and KeyFile have, in PEM, a certificate that is shown to the servers of
	// mounted workspaces, and its key. They are read whenever a connection is opened.
	CertFile, KeyFile string
}

// Validate reports what keeps p from being used.
func (p MountProxy) Validate() error {
	switch {
	case p.CertFile == "" && p.KeyFile == "":
		return nil
	case p.CertFile == "" || p.KeyFile == "":
		return errors.New("--mount-proxy-client-cert-file and --mount-proxy-client-key-file go together: give both, or none")
	}
	if _, err := p.load(); err != nil {
		return fmt.Errorf("--mount-proxy-client-cert-file, --mount-proxy-client-key-file: %w", err)
	}
	return nil
}

func (p MountProxy) load() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	return &pair, err
}

// certificate returns what loads the certificate, nil if there is none.
func (p MountProxy) certificate() func() (*tls.Certificate, error) {
	if p.CertFile == "" {
		return nil
	}
	return p.load
}

const (
	// mountHops counts, in requests that are passed on, how often they were.
	mountHops    = "X-Kcp-Mount-Hops"
	maxMountHops = 4

	remoteUser        = "X-Remote-User"
	remoteUID         = "X-Remote-Uid"
	remoteGroup       = "X-Remote-Group"
	remoteExtraPrefix = "X-Remote-Extra-"
)

type mountKey struct{}

// A mountedAt is the workspace that a request is for, if something else serves it.
type mountedAt struct {
	parent cluster.Name
	name   string
	*tenancy.Mount
}

func mountOf(ctx context.Context) (mountedAt, bool) {
	at, ok := ctx.Value(mountKey{}).(mountedAt)
	return at, ok
}

// mountAt finds the workspace at a path if something else serves it. That it is not ready
// is said on fresh evidence only.
func (s *Server) mountAt(ctx context.Context, p cluster.Path) (mountedAt, bool) {
	find := func() (at mountedAt) {
		at.parent, at.name, at.Mount = s.tree.MountAt(p)
		return at
	}
	at := find()
	if at.Mount != nil && !at.Ready && s.store.Spine().Fresh(ctx) {
		at = find()
	}
	return at, at.Mount != nil
}

// withMountAt remembers, of requests whose path leads to no cluster, that it leads to a
// workspace that something else serves. They are for no cluster of this server: everybody
// is in them who he is outside of all clusters.
func (s *Server) withMountAt(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if broken, ok := ctx.Value(nowhereKey{}).(brokenPath); ok {
			if at, ok := s.mountAt(ctx, broken.path); ok {
				req = req.WithContext(context.WithValue(ctx, mountKey{}, at))
			}
		}
		next.ServeHTTP(w, req)
	})
}

// orUpgrade counts requests for connections to mounted workspaces as long running, too:
// they last as long as their ends like.
func orUpgrade(longRunning request.LongRunningRequestCheck) request.LongRunningRequestCheck {
	return func(req *http.Request, info *request.RequestInfo) bool {
		if longRunning(req, info) {
			return true
		}
		_, mounted := mountOf(req.Context())
		return mounted && httpstream.IsUpgradeRequest(req)
	}
}

// withMounts passes requests for mounted workspaces on to what serves them, which is told
// who asks and decides what he may do. It comes after authentication, and before anything
// that a cluster of this server has a say in.
func (s *Server) withMounts(next http.Handler) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:        rewriteForMount,
		Transport:      roundTripper(s.relay),
		FlushInterval:  -1, // watches
		ErrorLog:       log.New(io.Discard, "", 0),
		ModifyResponse: func(resp *http.Response) error { return cleanAnswer(resp.Header) },
		ErrorHandler:   refuseMount,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at, ok := mountOf(req.Context())
		switch hops, _ := strconv.Atoi(req.Header.Get(mountHops)); {
		case !ok:
			next.ServeHTTP(w, req)
		case !at.Ready:
			http.Error(w, "Not available.", http.StatusServiceUnavailable)
		case hops >= maxMountHops || hops < 0:
			refuse(w, req, mountError(http.StatusLoopDetected, "it is mounted from what leads back to it"))
		default:
			defer forgiveLeaving(req.Context())
			proxy.ServeHTTP(w, req)
		}
	})
}

// forgiveLeaving is deferred around the proxy, which panics to cut an answer that has begun
// and cannot be brought to its end: where it is the client who left there is nothing to cut,
// and nothing to log.
func forgiveLeaving(ctx context.Context) {
	r := recover()
	if err, _ := r.(error); r != nil && (!errors.Is(err, http.ErrAbortHandler) || ctx.Err() == nil) {
		panic(r)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// relay passes a request on, in the name of the cluster that the mount is in.
func (s *Server) relay(req *http.Request) (*http.Response, error) {
	at, _ := mountOf(req.Context())
	through, err := s.dialer.Relay(at.parent, at.CA, s.config.Mounts.certificate())
	if err != nil {
		return nil, err
	}
	return through.RoundTrip(req)
}

// rewriteForMount makes the request that is passed on. Of the credentials of the client
// nothing is left: who he is, is in headers that only the server sets.
func rewriteForMount(p *httputil.ProxyRequest) {
	at, _ := mountOf(p.In.Context())
	to, err := url.Parse(at.URL)
	if err != nil {
		to = &url.URL{} // which is refused
	}
	out := p.Out
	out.URL.Scheme, out.URL.Host, out.Host = to.Scheme, to.Host, ""
	out.URL.Path, out.URL.RawPath = strings.TrimRight(to.Path, "/")+p.In.URL.Path, ""
	hops, _ := strconv.Atoi(p.In.Header.Get(mountHops))
	for name := range out.Header {
		if isOurs(name) {
			delete(out.Header, name)
		}
	}
	out.Header.Set(mountHops, strconv.Itoa(hops+1))
	if u, ok := request.UserFrom(p.In.Context()); ok {
		c, _ := cluster.From(p.In.Context())
		tellUser(out.Header, auth.Elsewhere(c, u))
	}
}

// isOurs reports whether a header is not passed on: credentials, and what the server alone
// says. Some servers read "_" as "-".
func isOurs(name string) bool {
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	switch name {
	case "Authorization", "Proxy-Authorization", "Cookie", mountHops:
		return true
	}
	return strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "X-Kcp-Internal-")
}

// tellUser says in headers, as proxies do, who a request comes from. Nothing is said of
// somebody who is not known.
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
			if key != auth.WarrantKey { // rights on this server
				h.Add(remoteExtraPrefix+url.PathEscape(key), v)
			}
		}
	}
}

// staysHere reports whether a group makes its members mighty on this server, which is
// nothing to others.
func staysHere(group string) bool {
	return group == user.SystemPrivilegedGroup || group == auth.LogicalClusterAdminGroup ||
		strings.HasPrefix(group, "system:kcp:initializer:") || strings.HasPrefix(group, "system:kcp:terminator:")
}

// cleanAnswer takes out of an answer what would work beyond the workspace, as all of them
// have one origin to a browser.
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

func refuseMount(w http.ResponseWriter, req *http.Request, err error) {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, dial.ErrBusy):
		w.Header().Set("Retry-After", "1")
		refuse(w, req, apierrors.NewTooManyRequests(err.Error(), 1))
	case errors.As(err, &timeout) && timeout.Timeout():
		refuse(w, req, mountError(http.StatusGatewayTimeout, err.Error()))
	default:
		refuse(w, req, mountError(http.StatusBadGateway, err.Error()))
	}
}

func mountError(code int32, why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReason(strings.ReplaceAll(http.StatusText(int(code)), " ", "")),
		Message: "the mounted workspace cannot be reached: " + why,
	}}
}
