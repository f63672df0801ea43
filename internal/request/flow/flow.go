// Package flow limits the requests of each tenant: their number, order, memory and processor
// time. It puts package fair and upstream's API Priority and Fairness into HTTP filters.
package flow

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/storage/feed"
)

// Limits of one tenant. docs/adr/009 gives the reasons.
const (
	tenantPresent = 100             // admitted requests
	tenantQueue   = 400             // requests that wait for admission
	tenantServed  = 45              // admitted requests at priority levels; every level has more seats
	tenantWait    = 5 * time.Second // longest wait for any of these
	tenantWatches = 10_000

	// leaseQueue is the queue of lease renewals, so that they do not wait behind others.
	leaseQueue = "/leases"

	// watchBegins is the time after which a watch gives back its processor share, even if
	// it has not begun.
	watchBegins = time.Second
)

// shareLimits returns the limits for a number of processors. All tenants together run two
// light requests per processor. While several tenants use the server, the light requests of
// each, and the heavy ones of all, leave one processor free. Requests may hold
// half of the memory that a load peak may add to the process. The other half is for garbage,
// because the heap grows to twice its live size.
func shareLimits(processors int) fair.Limits {
	light, heavy := max(4, 2*processors), max(1, processors-1)
	return fair.Limits{
		Light: light, LightEach: light * 3 / 4, LightShared: heavy, Heavy: heavy, HeavyEach: (heavy + 1) / 2,
		Waiting: tenantPresent + tenantQueue + tenantWatches,
		Present: tenantPresent, Queue: tenantQueue, Served: tenantServed, Watches: tenantWatches, Timeout: tenantWait,
		Memory: fair.Memory{Free: 256 << 10, Tenant: 256 << 20, All: 512 << 20, Reserve: 16 << 20},
	}
}

// Filters divides the server among tenants. It has state only for tenants with requests.
type Filters struct {
	// Shares holds the current use of each tenant.
	Shares *fair.Shares
	// Tenant returns the cluster that stands for the tenant of a cluster, and whether the
	// cluster exists.
	Tenant func(cluster.Name) (cluster.Name, bool)
	// Usage returns the number and size of a cluster's objects of a resource.
	Usage func(cluster.Name, schema.GroupResource) feed.Usage
	// Stopped ends when the server closes.
	Stopped context.Context
	// MaxBody is the maximum size of a request body in bytes.
	MaxBody int64
}

// NewShares returns shares for a number of processors; 0 means GOMAXPROCS.
func NewShares(processors int) *fair.Shares {
	return fair.New(shareLimits(cmp.Or(processors, runtime.GOMAXPROCS(0))))
}

// UntilEnded creates the [fair.Work] of each request, and returns when the work has ended.
// Upstream's timeout filter may return earlier, while a goroutine still serves the request.
// If this handler returned then, the connection could carry further requests.
func (f *Filters) UntilEnded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		work := f.Shares.Begin()
		if _, ok := inprocess.User(req.Context()); !ok {
			work.For(addressKey(req))
		}
		ctx := fair.With(req.Context(), work)
		defer func() {
			if response.Follows(ctx) {
				return
			}
			select {
			case <-work.Ended():
			default:
				if flusher, ok := w.(http.Flusher); ok && !errors.Is(ctx.Err(), context.Canceled) {
					flusher.Flush() // the client gets the timeout error now
				}
				<-work.Ended()
			}
		}()
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// Ending ends the work of a request when it has been served.
func Ending(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if work := fair.From(req.Context()); work != nil {
			defer func() { response.WhenServed(req.Context(), work.End) }()
		}
		next.ServeHTTP(w, req)
	})
}

// Ask limits requests during authorization. They count for their user and not for the
// cluster in their URL, which may belong to another tenant or not exist. The roles of the
// cluster determine how long authorization takes.
func (f *Filters) Ask(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		u, known := request.UserFrom(ctx)
		work := fair.From(ctx)
		if !known || work == nil {
			next.ServeHTTP(w, req)
			return
		}
		work.For(f.callerKey(req, u))
		if err := work.Ask(ctx); err != nil {
			tooMany(w, req, err)
			return
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&yieldingWriter{w, ctx, work}), req)
	})
}

// AskAgain runs do for the user of a request that is being served, with the limits of [Filters.Ask].
// An error means that do did not run.
func (f *Filters) AskAgain(req *http.Request, u user.Info, do func(context.Context)) error {
	work := f.Shares.Begin()
	defer work.End()
	ctx := fair.With(req.Context(), work)
	work.For(f.callerKey(req, u))
	if err := work.Ask(ctx); err != nil {
		return err
	}
	do(ctx)
	return nil
}

// Within queues authorized requests by the limits of their tenant, by priority level and
// for a processor.
func (f *Filters) Within(next http.Handler, c *genericapiserver.Config, levels utilflowcontrol.Interface) http.Handler {
	served := genericfilters.WithPriorityAndFairness(f.computing(next), c.LongRunningFunc, levels, estimateSeats, c.RequestTimeout/4)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u, _ := request.UserFrom(req.Context())
		work := fair.From(req.Context())
		info, known := request.RequestInfoFrom(req.Context())
		if work == nil || !known || u == nil || isSystem(u) {
			if work != nil && known && inprocess.IsLoop(req.Context()) && !c.LongRunningFunc(req, info) {
				work.For(f.loopKey(req))
				if err := work.Ask(req.Context()); err != nil {
					tooMany(w, req, err)
					return
				}
			}
			next.ServeHTTP(w, req)
			return
		}
		work.For(f.tenantKey(req, u))
		var err error
		if c.LongRunningFunc(req, info) {
			req, err = f.watch(req, work, info)
		} else {
			req, err = f.answer(req, work, info)
		}
		if err != nil {
			tooMany(w, req, err)
			return
		}
		served.ServeHTTP(w, req)
	})
}

// watch admits a watch. The watch holds its place only until it has begun.
func (f *Filters) watch(req *http.Request, work *fair.Work, info *request.RequestInfo) (*http.Request, error) {
	if err := work.Watch(); err != nil {
		return req, err
	}
	leave, err := work.Serve(req.Context(), "/watches")
	return req.WithContext(context.WithValue(req.Context(), planKey{}, plan{f.class(req, info, fair.Extent{}), leave})), err
}

// answer admits a request that is no watch, and reads its body.
func (f *Filters) answer(req *http.Request, work *fair.Work, info *request.RequestInfo) (*http.Request, error) {
	queue := ""
	if isLease(info) {
		queue = leaseQueue
	}
	if _, err := work.Enter(req.Context(), queue); err != nil {
		return req, err
	}
	req, extent, err := f.withBody(req, work)
	if err != nil {
		return req, err
	}
	if _, err := work.Serve(req.Context(), queue); err != nil {
		return req, err
	}
	return req.WithContext(context.WithValue(req.Context(), planKey{}, plan{class: f.class(req, info, extent)})), nil
}

// A plan is the estimated cost of a request. It is known before the priority levels.
type plan struct {
	class fair.Class
	leave func() // of a watch; called when it has begun
}

type planKey struct{}

// computing waits for a processor and then runs next. It is inside the priority levels.
func (f *Filters) computing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		work, p := fair.From(ctx), planOf(ctx)
		if err := work.Compute(ctx, p.class); err != nil {
			tooMany(w, req, err)
			return
		}
		info, _ := request.RequestInfoFrom(ctx)
		switch {
		case p.leave != nil:
			begun := func() { work.Rest(); p.leave() }
			defer begun()
			if info.Verb != "watch" { // a stream, such as a command in a pod, waits from the beginning
				begun()
				break
			}
			defer time.AfterFunc(watchBegins, begun).Stop()
			w = &watchWriter{ResponseWriter: w, ctx: ctx, work: work, after: stalledAfter}
			req = req.WithContext(utilflowcontrol.WithInitializationSignal(ctx, signal(func() {
				begun()
				utilflowcontrol.WatchInitialized(ctx)
			})))
		case !slices.Contains([]string{"get", "list", "watch"}, info.Verb):
			// When the context of a write ends, upstream answers and leaves its goroutine
			// running. So the context does not end when the client disconnects.
			lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
			defer cancel()
			defer context.AfterFunc(f.Stopped, cancel)()
			req = req.WithContext(lasting)
		}
		next.ServeHTTP(w, req)
	})
}

func planOf(ctx context.Context) plan {
	p, _ := ctx.Value(planKey{}).(plan)
	return p
}

// signal is the function that upstream calls when a watch has begun.
type signal func()

// Signal implements [utilflowcontrol.InitializationSignal].
func (s signal) Signal() { s() }

// Wait implements [utilflowcontrol.InitializationSignal].
func (signal) Wait() {}

// yieldingWriter gives back the request's processor while it waits for the client to read.
type yieldingWriter struct {
	http.ResponseWriter
	ctx  context.Context // of the request
	work *fair.Work
}

var _ responsewriter.UserProvidedDecorator = (*yieldingWriter)(nil)

// Unwrap implements [responsewriter.UserProvidedDecorator].
func (w *yieldingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements [http.ResponseWriter].
func (w *yieldingWriter) Write(b []byte) (n int, err error) {
	if late := w.work.Yield(w.ctx, func() { n, err = w.ResponseWriter.Write(b) }); err == nil {
		err = late
	}
	return n, err
}

// tooMany answers with err, and with Retry-After if err is a 429.
func tooMany(w http.ResponseWriter, req *http.Request, err error) {
	if apierrors.IsTooManyRequests(err) {
		w.Header().Set("Retry-After", "1")
	}
	edge.Refuse(w, req, err)
}
