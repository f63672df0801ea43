package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/flow"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/storage/etcd"
)

// rightsEvery is how often the rights of an open watch or stream are checked again.
const rightsEvery = 30 * time.Second

// refusalsInARow is how many checks in a row must refuse the credentials: a webhook for tokens that does not
// answer for a moment refuses all.
const refusalsInARow = 2

// socketToken begins a WebSocket protocol that is a token, see k8s.io/apiserver/pkg/authentication/request/websocket.
const socketToken = "base64url.bearer.authorization.k8s.io."

type sentKey struct{}

// withSentHeader keeps the header of a request that has no timeout, as its client sent it. The filters inside
// remove credentials.
func (s *Server) withSentHeader(next http.Handler, c *genericapiserver.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		info, ok := request.RequestInfoFrom(ctx)
		if _, own := inprocess.User(ctx); !own && ok && c.LongRunningFunc(req, info) {
			req = req.WithContext(context.WithValue(ctx, sentKey{}, req.Header.Clone()))
		}
		next.ServeHTTP(w, req)
	})
}

// withRights ends watches, and streams such as commands in pods, whose user has lost their rights or their
// credentials, or whose requestor has lost the right to impersonate the user. It is inside authorization.
func (s *Server) withRights(next http.Handler, c *genericapiserver.Config, tenants *flow.Filters) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		header, ok := req.Context().Value(sentKey{}).(http.Header)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		ctx, cancel := context.WithCancel(req.Context())
		o := &open{server: s, config: c, tenants: tenants, req: req.Clone(ctx), end: cancel}
		o.req.Header = header
		o.next(cmp.Or(s.config.RightsEvery, rightsEvery))
		defer func() { serve.WhenServed(ctx, func() { cancel(); o.stop() }) }()
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// An open request has begun, and lasts.
type open struct {
	server  *Server
	config  *genericapiserver.Config
	tenants *flow.Filters
	req     *http.Request // with the header that the client sent
	end     func()
	refused int // checks of the credentials in a row

	mu    sync.Mutex
	over  bool        // guarded by mu
	timer *time.Timer // guarded by mu
	work  sync.WaitGroup
}

// next checks the request after about a time, unless it has ended.
func (o *open) next(every time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	// Many watches begin together after a restart. They are not checked together.
	o.timer = time.AfterFunc(every-time.Duration(rand.Int64N(int64(every)/4+1)), func() {
		if !o.begin() {
			return
		}
		defer o.work.Done()
		if !o.allowed() {
			o.end()
			return
		}
		o.next(every)
	})
}

// begin reports whether a check may begin. The caller then calls Done of the group.
func (o *open) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.work.Add(1)
	}
	return !o.over
}

// stop returns when no check runs any more.
func (o *open) stop() {
	o.mu.Lock()
	o.over = true
	o.timer.Stop()
	o.mu.Unlock()
	o.work.Wait()
}

// allowed reports whether the request may go on. While the server cannot decide, it may.
func (o *open) allowed() (allowed bool) {
	u, ok := request.UserFrom(o.req.Context())
	if !ok {
		return true // no request comes so far without a user
	}
	allowed = true
	err := o.tenants.AskAgain(o.req, u, func(ctx context.Context) {
		ctx = etcd.WithOutage(ctx)
		by, known := o.authenticated(ctx)
		allowed = known && o.impersonates(ctx, by) && o.authorized(ctx) || etcd.Outage(ctx) != nil
	})
	return allowed || err != nil
}

// authenticated returns the user that the credentials of the request are of, and reports whether they are still valid.
func (o *open) authenticated(ctx context.Context) (by user.Info, known bool) {
	by, impersonates := authz.Requestor(ctx)
	if !impersonates {
		by, _ = request.UserFrom(ctx)
	}
	if expired(o.req, time.Now()) {
		return by, true
	}
	req := o.req.Clone(ctx) // authenticators remove credentials
	resp, ok, err := quiet(o.config.Authentication.Authenticator).AuthenticateRequest(req)
	// Without a valid certificate, a client is anonymous.
	if ok && err == nil && resp.User.GetName() == by.GetName() {
		o.refused = 0
		return resp.User, true
	}
	o.refused++
	return by, o.refused < refusalsInARow
}

// impersonates reports whether a user, that of the credentials, still has the right to impersonate the user of the
// request.
func (o *open) impersonates(ctx context.Context, by user.Info) bool {
	may, err := authz.MayStillImpersonate(ctx, by, o.req.Header, o.config.Authorization.Authorizer)
	return may || err != nil
}

// authorized reports whether the user still has the right to the request.
func (o *open) authorized(ctx context.Context) bool {
	req := o.req.WithContext(ctx)
	if refused, ok := o.server.views.Refuses(req); ok {
		return !refused
	}
	a, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return true // it was authorized by them
	}
	decision, _, err := o.config.Authorization.Authorizer.Authorize(ctx, a)
	return decision == authorizer.DecisionAllow || err != nil
}

// expired reports whether the credentials of a request, which were valid when it began, have an end that is over.
// As in Kubernetes, that ends no request: a command in a pod may last longer than a token. Of several credentials it
// is not known which was valid: a client could add one that is forged and over, to keep another that is revoked.
func expired(req *http.Request, now time.Time) bool {
	certified := req.TLS != nil && len(req.TLS.PeerCertificates) > 0
	token := req.Header.Get("Authorization")
	if bySocket := strings.Contains(strings.Join(req.Header.Values("Sec-WebSocket-Protocol"), ","), socketToken); bySocket || certified && token != "" {
		return false
	}
	if certified {
		return now.After(req.TLS.PeerCertificates[0].NotAfter)
	}
	parts := strings.Split(strings.TrimPrefix(token, "Bearer "), ".")
	if len(parts) != 3 {
		return false
	}
	var claims struct {
		Expires float64 `json:"exp"`
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	return err == nil && json.Unmarshal(text, &claims) == nil && claims.Expires > 0 && float64(now.Unix()) > claims.Expires
}
