package flow

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/feed"
)

// sharedOut is the Filters of a server with two processors. Tenant "a" owns the clusters a1
// to a3, tenant "q" owns one. The next of newShared serves the requests.
type sharedOut struct {
	*Filters
	limits  fair.Limits
	handler http.Handler
	left    chan struct{} // receives a value when upstream's timeout filter has returned
}

// unlimited returns levels that are created outside of the test bubbles, because their queues
// outlive a test.
var unlimited = sync.OnceValue(func() Levels {
	return NewLevels(&genericapiserver.Config{MaxRequestsInFlight: 100_000})
})

func newShared(t *testing.T, next http.HandlerFunc) sharedOut {
	c := &genericapiserver.Config{
		MaxRequestsInFlight: MaxReads, MaxMutatingRequestsInFlight: MaxWrites, RequestTimeout: time.Minute, MaxRequestBodyBytes: 3 << 20,
		LongRunningFunc: func(_ *http.Request, info *request.RequestInfo) bool {
			return info.Verb == "watch" || info.Verb == "connect"
		},
	}
	limits := shareLimits(2)
	limits.Watches = 50
	f := &Filters{
		Shares: fair.New(limits), Stopped: t.Context(), MaxBody: c.MaxRequestBodyBytes,
		Tenant: func(c cluster.Name) (cluster.Name, bool) { return c[:1], strings.Contains("a1 a2 a3 q1", string(c)) },
		Usage:  func(cluster.Name, schema.GroupResource) feed.Usage { return feed.Usage{} },
	}
	h := f.Ask(f.Within(next, c, unlimited()))
	limited, left := genericfilters.WithTimeoutForNonLongRunningRequests(Ending(h), c.LongRunningFunc), make(chan struct{}, 10_000)
	return sharedOut{f, limits, f.UntilEnded(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		limited.ServeHTTP(w, req)
		left <- struct{}{}
	})), left}
}

func (s sharedOut) send(ctx context.Context, c cluster.Name, verb string, body io.Reader) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.serve(ctx, w, c, verb, body)
	return w
}

func (s sharedOut) serve(ctx context.Context, w http.ResponseWriter, c cluster.Name, verb string, body io.Reader) {
	ctx = request.WithRequestInfo(cluster.With(ctx, c), &request.RequestInfo{Verb: verb, IsResourceRequest: true, Resource: "configmaps", APIVersion: "v1"})
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "user-of-" + string(c), Groups: []string{user.AllAuthenticated}})
	if inprocess.IsLoop(ctx) {
		ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "loop", Groups: []string{user.SystemPrivilegedGroup}})
	}
	s.handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body))
}

func (s sharedOut) checkIdle(t *testing.T) {
	t.Helper()
	if !s.Shares.Idle() {
		t.Errorf("left: %+v", s.Shares)
	}
}

// All clusters of one owner share the limits of one tenant: for requests that wait for etcd,
// and for requests that compute. Requests above the limits get 429. Other tenants do not
// wait.
func TestOwnersOfManyClustersHaveOneShare(t *testing.T) {
	unlimited()
	synctest.Test(t, func(t *testing.T) {
		release, reached := make(chan struct{}), make(chan struct{}, 10_000)
		s := newShared(t, func(_ http.ResponseWriter, req *http.Request) {
			text, _ := io.ReadAll(req.Body)
			hold := func() { reached <- struct{}{}; <-release }
			switch string(text) {
			case "wait":
				fair.Wait(req.Context(), hold)
			case "compute":
				hold()
			}
		})
		answers := make(chan *httptest.ResponseRecorder, 10_000)
		storm := func(kind string, most int) {
			t.Helper()
			for i := range 3 * (tenantPresent + tenantQueue) {
				go func() {
					answers <- s.send(t.Context(), cluster.Name("a"+string(rune('1'+i%3))), "create", strings.NewReader(kind))
				}()
			}
			synctest.Wait()
			if len(reached) != most {
				t.Errorf("%s: %d requests of at most %d", kind, len(reached), most)
			}
			refused := len(answers)
			if refused == 0 {
				t.Errorf("%s: nobody was refused", kind)
			}
			for range refused {
				if w := <-answers; w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
					t.Errorf("%s: %d, Retry-After %q", kind, w.Code, w.Header().Get("Retry-After"))
				}
			}
			if w := s.send(t.Context(), "q1", "create", strings.NewReader("")); w.Code != http.StatusOK {
				t.Errorf("%s: another tenant gets %d: %s", kind, w.Code, w.Body)
			}
			close(release)
			synctest.Wait()
			<-time.After(time.Minute) // fake time
			synctest.Wait()
			for len(reached)+len(answers) > 0 {
				select {
				case <-reached:
				case <-answers:
				}
			}
			s.checkIdle(t)
		}
		storm("wait", tenantServed)
		release = make(chan struct{})
		storm("compute", s.limits.LightEach)
	})
}

// A request counts until the goroutine that serves it has returned, even if its client
// disconnected before. Only then the connection can carry another request.
func TestRequestsLastUntilTheirWorkEnds(t *testing.T) {
	release, reached := make(chan struct{}), make(chan struct{})
	var ended error
	done := false
	s := newShared(t, func(_ http.ResponseWriter, req *http.Request) {
		close(reached)
		<-release
		ended, done = req.Context().Err(), true
	})
	ctx, leave := context.WithCancel(t.Context())
	returned := make(chan bool)
	go func() { s.send(ctx, "a1", "create", nil); returned <- done }()
	<-reached
	leave()
	<-s.left // upstream's timeout filter has returned; the goroutine still runs
	if s.Shares.Idle() {
		t.Error("the request holds nothing any more")
	}
	close(release)
	if !<-returned || ended != nil {
		t.Errorf("the handler returned before the request was served, or it was cut: %v", ended)
	}
	s.checkIdle(t)
}

// flushes is a response that reports the first flush.
type flushes struct {
	*httptest.ResponseRecorder
	first chan int // receives the status code
}

// Flush implements [http.Flusher].
func (f flushes) Flush() { f.first <- f.Code }

// expiring is a context whose deadline passes when its channel is closed.
type expiring struct {
	context.Context
	passed chan struct{}
}

// Done implements [context.Context].
func (e expiring) Done() <-chan struct{} { return e.passed }

// Err implements [context.Context].
func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A request that exceeds its deadline is answered at once, even if its goroutine still runs.
func TestTimeoutsAreAnsweredAtOnce(t *testing.T) {
	ctx, release := expiring{t.Context(), make(chan struct{})}, make(chan struct{})
	s := newShared(t, func(http.ResponseWriter, *http.Request) {
		close(ctx.passed)
		<-release
	})
	w, returned := flushes{httptest.NewRecorder(), make(chan int, 1)}, make(chan struct{})
	go func() {
		defer close(returned)
		s.serve(ctx, w, "a1", "create", nil)
	}()
	select {
	case code := <-w.first:
		if code != http.StatusGatewayTimeout {
			t.Errorf("the client has %d", code)
		}
	case <-time.After(time.Minute):
		t.Error("the client has no answer")
	}
	close(release)
	<-returned
	s.checkIdle(t)
}

// Slow bodies hold no processor. Bodies with too many members, and too many large bodies at
// once, are refused. The error has the limit of members.
func TestBodiesAreBounded(t *testing.T) {
	unlimited()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t, func(_ http.ResponseWriter, req *http.Request) { _, _ = io.Copy(io.Discard, req.Body) })
		slow, end := io.Pipe()
		for range tenantPresent - 1 {
			go s.send(t.Context(), "a1", "create", slow)
		}
		synctest.Wait()
		if w := s.send(t.Context(), "a2", "create", strings.NewReader("{}")); w.Code != http.StatusOK {
			t.Errorf("beside slow bodies: %d %s", w.Code, w.Body)
		}
		_ = end.Close()
		synctest.Wait()
		many := `{"data":{` + strings.TrimSuffix(strings.Repeat(`"k":"",`, maxMembers+1), ",") + `}}`
		if w := s.send(t.Context(), "a1", "create", strings.NewReader(many)); w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "50000") {
			t.Errorf("too many members: %d %s", w.Code, w.Body)
		}
		large := `"` + strings.Repeat("x", 2<<20) + `"`
		held, release := make(chan struct{}, 1000), make(chan struct{})
		s = newShared(t, func(_ http.ResponseWriter, req *http.Request) {
			fair.Wait(req.Context(), func() { held <- struct{}{}; <-release })
		})
		codes := make(chan int, 1000)
		for range 60 {
			go func() { codes <- s.send(t.Context(), "a1", "create", strings.NewReader(large)).Code }()
		}
		synctest.Wait()
		if len(codes) == 0 || len(held) == 0 {
			t.Errorf("%d large bodies are in hand, and %d refused", len(held), len(codes))
		}
		for range len(codes) {
			if code := <-codes; code != http.StatusTooManyRequests {
				t.Errorf("a large body too many: %d", code)
			}
		}
		close(release)
		<-time.After(time.Minute) // fake time
		synctest.Wait()
		s.checkIdle(t)
	})
}

// Before authorization, a request counts for its sender: the user, the tenant of the service
// account, or the address of an anonymous client. The cluster in the URL does not matter.
func TestCallers(t *testing.T) {
	s := newShared(t, nil)
	account := func(home string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:default:a", Extra: map[string][]string{auth.ClusterNameKey: {home}}}
	}
	for name, say := range map[string]struct {
		u               user.Info
		asks, isAllowed string
	}{
		"user":           {&user.DefaultInfo{Name: "ada"}, "user:ada", "cluster:a"},
		"stranger":       {&user.DefaultInfo{Name: user.Anonymous}, "address:192.0.2.1", "cluster:a"},
		"account":        {account("q1"), "cluster:q", "cluster:a"},
		"account of one": {account("a3"), "cluster:a", "cluster:a"},
		"made-up home":   {account("nosuch"), "user:system:serviceaccount:default:a", "cluster:a"},
		"system":         {&user.DefaultInfo{Name: "s", Groups: []string{user.SystemPrivilegedGroup}}, "", "cluster:a"},
	} {
		req := httptest.NewRequestWithContext(cluster.With(t.Context(), "a2"), http.MethodGet, "/", nil)
		if got := s.callerKey(req, say.u); got != say.asks {
			t.Errorf("%s asks as %q", name, got)
		}
		if got := s.tenantKey(req, say.u); got != say.isAllowed {
			t.Errorf("%s in its cluster is %q", name, got)
		}
		for _, c := range []cluster.Name{cluster.Root, cluster.Admin, "made-up"} {
			if got := s.tenantKey(req.WithContext(cluster.With(t.Context(), c)), say.u); got != say.asks {
				t.Errorf("%s in %s is %q", name, c, got)
			}
		}
	}
}

// The class of a request depends on its body and on the objects that the server reads and
// writes for it.
func TestClasses(t *testing.T) {
	s := newShared(t, nil)
	s.Usage = func(_ cluster.Name, gr schema.GroupResource) feed.Usage {
		return map[string]feed.Usage{"few": {Objects: 10, Bytes: 10_000}, "some": {Objects: 100, Bytes: 100_000}, "many": {Objects: 1000, Bytes: 1_000_000}, "big": {Objects: 2, Bytes: 1_000_000}}[gr.Resource]
	}
	for name, say := range map[string]struct {
		verb, resource, target, accept string
		sent                           fair.Extent
		want                           fair.Class
	}{
		"get":               {"get", "many", "/", "", fair.Extent{}, fair.Light},
		"get of a big one":  {"get", "big", "/", "", fair.Extent{}, fair.Heavy},
		"short list":        {"list", "few", "/", "application/json;as=Table", fair.Extent{}, fair.Light},
		"list":              {"list", "some", "/", "application/json", fair.Extent{}, fair.Light},
		"list as a table":   {"list", "some", "/", "application/json;as=Table;v=v1;g=meta.k8s.io", fair.Extent{}, fair.Heavy},
		"list in YAML":      {"list", "some", "/", "application/yaml", fair.Extent{}, fair.Heavy},
		"long list":         {"list", "many", "/", "", fair.Extent{}, fair.Heavy},
		"long selector":     {"list", "few", "/?labelSelector=" + strings.Repeat("x", heavyQuery), "", fair.Extent{}, fair.Heavy},
		"large body":        {"create", "few", "/", "", fair.Extent{Bytes: heavyBody + 1}, fair.Heavy},
		"many members":      {"create", "few", "/", "", fair.Extent{Bytes: 5000, Members: 300}, fair.Heavy},
		"some members":      {"create", "few", "/", "", fair.Extent{Bytes: 5000, Members: 200}, fair.Light},
		"deletecollection":  {"deletecollection", "few", "/", "", fair.Extent{}, fair.Heavy},
		"OpenAPI":           {"", "", "/openapi/v2", "", fair.Extent{}, fair.Heavy},
		"questions":         {"", "", "/services/reachableworkspaces", "", fair.Extent{}, fair.Heavy},
		"discovery, health": {"", "", "/apis", "", fair.Extent{}, fair.Light},
	} {
		req := httptest.NewRequestWithContext(cluster.With(t.Context(), "a1"), http.MethodGet, say.target, nil)
		req.Header.Set("Accept", say.accept)
		if got := s.class(req, &request.RequestInfo{IsResourceRequest: say.verb != "", Verb: say.verb, Resource: say.resource, Path: req.URL.Path}, say.sent); got != say.want {
			t.Errorf("%s: class %d", name, got)
		}
	}
}

// The priority levels are those of kube-apiserver, plus flow schemas for lease renewals and for agents.
// Each tenant is one flow.
func TestLevels(t *testing.T) {
	l := NewLevels(&genericapiserver.Config{MaxRequestsInFlight: MaxReads, MaxMutatingRequestsInFlight: MaxWrites})
	stop := make(chan struct{})
	stopped := make(chan error)
	go func() { stopped <- l.Run(stop) }()
	defer func() { close(stop); <-stopped }()
	handle := func(name, group, resource, verb string) (schema, level, flow string) {
		work := fair.New(shareLimits(2)).Begin()
		work.For("cluster:a")
		groups := []string{user.AllAuthenticated}
		if strings.Contains(name, "serviceaccount") {
			groups = append(groups, "system:serviceaccounts")
		}
		if strings.HasPrefix(name, "system:kcp:agent:") {
			groups = []string{auth.Agents}
		}
		digest := utilflowcontrol.RequestDigest{
			RequestInfo: &request.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: group, Resource: resource, Namespace: "ns"},
			User:        &user.DefaultInfo{Name: name, Groups: groups},
		}
		done := false
		l.Handle(fair.With(t.Context(), work), digest, func(s *flowcontrolv1.FlowSchema, p *flowcontrolv1.PriorityLevelConfiguration, f string) {
			schema, level, flow = s.Name, p.Name, f
		}, func() flowcontrolrequest.WorkEstimate { return flowcontrolrequest.WorkEstimate{InitialSeats: 1} }, func(bool) {}, func() { done = true })
		if !done {
			t.Error("not executed")
		}
		return schema, level, flow
	}
	deadline := time.Now().Add(time.Minute)
	for name, say := range map[string]struct{ user, group, resource, verb, schema, level string }{
		"config map":                  {"ada", "", "configmaps", "get", "global-default", "global-default"},
		"lease":                       {"ada", "coordination.k8s.io", "leases", "update", "leases", "leader-election"},
		"list of leases":              {"ada", "coordination.k8s.io", "leases", "list", "global-default", "global-default"},
		"service account":             {"system:serviceaccount:default:x", "", "configmaps", "list", "service-accounts", "workload-low"},
		"lease of a system account":   {"system:serviceaccount:kube-system:x", "coordination.k8s.io", "leases", "update", "system-leader-election", "leader-election"},
		"account of a like namespace": {"system:serviceaccount:kube-systems:x", "", "configmaps", "list", "service-accounts", "workload-low"},
		"agent":                       {"system:kcp:agent:syncer:east:1", "workload.kcp.io", "synctargets", "update", "agents", "system"},
		"system account":              {"system:serviceaccount:kube-system:x", "", "configmaps", "list", "kube-system-service-accounts", "workload-high"},
	} {
		schema, level, flow := handle(say.user, say.group, say.resource, say.verb)
		for schema == "catch-all" && time.Now().Before(deadline) { // until the levels have read their configuration
			schema, level, flow = handle(say.user, say.group, say.resource, say.verb)
		}
		if schema != say.schema || level != say.level || flow != "cluster:a" {
			t.Errorf("%s: schema %s, level %s, flow %q", name, schema, level, flow)
		}
	}
}

// The loops of the server compute for one tenant at the same time as often as another tenant would.
// They do not wait for requests of that tenant, and their work for no tenant has no limit.
func TestLoopsShareTheProcessors(t *testing.T) {
	unlimited()
	synctest.Test(t, func(t *testing.T) {
		release, reached := make(chan struct{}), make(chan string, 100)
		s := newShared(t, func(_ http.ResponseWriter, req *http.Request) {
			text, _ := io.ReadAll(req.Body)
			reached <- string(text)
			<-release
		})
		begin := func(ctx context.Context, c cluster.Name, text string) int {
			for range 10 {
				go s.send(ctx, c, "update", strings.NewReader(text))
			}
			synctest.Wait()
			n := 0
			for ; len(reached) > 0; n++ {
				if got := <-reached; got != text {
					t.Errorf("%s instead of %s", got, text)
				}
			}
			return n
		}
		loops := inprocess.ForLoop(t.Context())
		for _, c := range []struct {
			ctx  context.Context
			in   cluster.Name
			text string
			want int
		}{
			{loops, "a1", "loops of a", s.limits.LightEach},
			{loops, "root", "loops of nobody", 10},
			{t.Context(), "a2", "requests of a", s.limits.Light - s.limits.LightEach},
		} {
			if got := begin(c.ctx, c.in, c.text); got != c.want {
				t.Errorf("%s: %d compute, want %d", c.text, got, c.want)
			}
		}
		close(release)
		for len(s.left) < 30 {
			for len(reached) > 0 {
				<-reached
			}
			synctest.Wait()
		}
		s.checkIdle(t)
	})
}
