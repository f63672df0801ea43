// Package recheck ends watches, and streams such as commands in pods, whose user has lost their rights
// or their credentials since the request began. Authentication and authorization decide before a
// request begins; here they decide again while it lasts.
package recheck

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/flow"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

const (
	// defaultEvery is the default of [Checker.Every].
	defaultEvery = 30 * time.Second
	// refusalsInARow is the number of checks in a row that must refuse the credentials. A webhook
	// that does not answer for a moment refuses all tokens.
	refusalsInARow = 2
	// socketToken begins a WebSocket protocol that is a token, see
	// k8s.io/apiserver/pkg/authentication/request/websocket.
	socketToken = "base64url.bearer.authorization.k8s.io."
)

// A Checker checks the rights of open requests again. All fields but Every are required.
type Checker struct {
	// Every is about the interval between the checks of a request. The default is 30 seconds.
	Every time.Duration
	// LongRunning reports whether a request has no timeout: the others end before a check.
	LongRunning request.LongRunningRequestCheck
	// Authenticator and Authorizer are those of new requests.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Refuses is [view.Views.Refuses]: it decides on requests for views.
	Refuses func(*http.Request) (refused, ok bool)
	// Tenants limits the checks.
	Tenants *flow.Filters
}

// errLost is the cause of the context of a request that a check ends.
var errLost = errors.New("the user has lost the right to the request, or their credentials are not valid any more; log in again, or ask an administrator of the workspace for the right")

type sentKey struct{}

// WithSentHeader keeps the header of a long-running request as its client sent it, for [Checker.WithRights].
// The filters in between remove credentials.
func (c *Checker) WithSentHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		info, ok := request.RequestInfoFrom(ctx)
		if _, own := inprocess.User(ctx); !own && ok && c.LongRunning(req, info) {
			req = req.WithContext(context.WithValue(ctx, sentKey{}, req.Header.Clone()))
		}
		next.ServeHTTP(w, req)
	})
}

// WithRights ends long-running requests whose user has lost their rights or their credentials, or
// whose requestor has lost the right to impersonate the user. It is inside authorization.
func (c *Checker) WithRights(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		header, ok := req.Context().Value(sentKey{}).(http.Header)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		ctx, cancel := context.WithCancelCause(req.Context())
		o := &open{checker: c, req: req.Clone(ctx), end: func() { cancel(errLost) }}
		o.req.Header = header
		o.next(cmp.Or(c.Every, defaultEvery))
		defer func() { response.WhenServed(ctx, func() { cancel(nil); o.stop() }) }()
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// An open request is one that is being served.
type open struct {
	checker *Checker
	req     *http.Request // with the header that the client sent
	end     func()
	refused int // checks in a row that refused the credentials

	mu    sync.Mutex
	over  bool        // guarded by mu
	timer *time.Timer // guarded by mu
	work  sync.WaitGroup
}

// next schedules a check of the request, unless it has ended.
func (o *open) next(every time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	// Many watches begin together after a restart. Jitter spreads their checks.
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
	err := o.checker.Tenants.AskAgain(o.req, u, func(ctx context.Context) {
		ctx = outage.WithNote(ctx)
		by, known := o.authenticated(ctx)
		allowed = known && o.impersonates(ctx, by) && o.authorized(ctx) || outage.Noted(ctx) != nil
	})
	return allowed || err != nil
}

// authenticated returns the user whose credentials the request has, and whether these are still
// valid.
func (o *open) authenticated(ctx context.Context) (by user.Info, known bool) {
	by, impersonates := authz.Requestor(ctx)
	if !impersonates {
		by, _ = request.UserFrom(ctx)
	}
	if expired(o.req, time.Now()) {
		return by, true
	}
	req := o.req.Clone(ctx) // authenticators remove credentials
	resp, ok, err := o.checker.Authenticator.AuthenticateRequest(req)
	// Without a valid certificate, a client is anonymous.
	if ok && err == nil && resp.User.GetName() == by.GetName() {
		o.refused = 0
		return resp.User, true
	}
	o.refused++
	return by, o.refused < refusalsInARow
}

// impersonates reports whether the user of the credentials may still impersonate the user of the
// request.
func (o *open) impersonates(ctx context.Context, by user.Info) bool {
	may, err := authz.MayStillImpersonate(ctx, by, o.req.Header, o.checker.Authorizer)
	return may || err != nil
}

// authorized reports whether the user still has the right to the request.
func (o *open) authorized(ctx context.Context) bool {
	req := o.req.WithContext(ctx)
	if refused, ok := o.checker.Refuses(req); ok {
		return !refused
	}
	a, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return true // it was authorized by them
	}
	decision, _, err := o.checker.Authorizer.Authorize(ctx, a)
	return decision == authorizer.DecisionAllow || err != nil
}

// expired reports whether the credentials of a request have expired since it began. As in Kubernetes,
// that ends no request: a command in a pod may last longer than a token.
//
// It returns false for a request with several credentials, because any of them may have been the
// valid one. A client could add a forged one that has expired, to keep another one that is revoked.
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
