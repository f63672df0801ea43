package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
)

// How much of the server one cluster may take at a time. The limits for all of them
// together are several times as high, and of each cluster some are answered beyond them,
// so that one, or many of one owner, cannot use them up.
const (
	clusterRequests = 100             // answered at once
	clusterQueue    = 400             // waiting for that
	clusterWait     = 5 * time.Second // at most
	clusterWatches  = 5_000
	clusterReserve  = 10 // reads, and as many writes, that are answered whatever others do

	maxReads  = 800
	maxWrites = 400

	// Requests of one cluster, and those who ask whether they may make them, that
	// compute at once, for each processor: more would not be done earlier, but hold up
	// the requests of all others.
	computingEach = 2
	computingMin  = 4
	askingEach    = 4
	askingMin     = 8

	// clusterOutside is how many of one cluster are served at once by handlers that may
	// ask a webhook, which answers 16 at once: one that hangs keeps up these alone.
	clusterOutside = 32

	// watchBegins is how long a watch may hold up others of its cluster that begin.
	watchBegins = time.Second
)

// fairness keeps one cluster's requests from crowding out those of others. It knows
// only clusters that have requests now.
type fairness struct {
	answered  *turns // by cluster: those that are let in
	computing *turns // by cluster: those of them that wait for nobody
	outside   *turns // by cluster: those of them that may wait for a webhook
	asking    *turns // by who asks: those that it is not known of yet whether they are allowed
	loads     *loads
	maxBody   int64
	most      kinds[int] // answered at once of all clusters

	mu       sync.Mutex
	watching map[cluster.Name]int
	all      kinds[int]                  // answered now, but for those beyond the most
	own      map[cluster.Name]kinds[int] // answered now
}

// kinds has something for reads and for writes.
type kinds[T any] struct{ reads, writes T }

func (k *kinds[T]) of(verb string) *T {
	if slices.Contains([]string{"get", "list", "watch"}, verb) {
		return &k.reads
	}
	return &k.writes
}

func newFairness(maxBody int64, most kinds[int]) *fairness {
	procs := runtime.GOMAXPROCS(0)
	return &fairness{
		answered:  newTurns(clusterRequests, clusterQueue),
		computing: newTurns(max(computingMin, computingEach*procs), clusterRequests+clusterWatches),
		outside:   newTurns(clusterOutside, clusterRequests+clusterWatches),
		asking:    newTurns(max(askingMin, askingEach*procs), clusterRequests+clusterQueue),
		loads:     newLoads(),
		maxBody:   maxBody, most: most,
		watching: map[cluster.Name]int{}, own: map[cluster.Name]kinds[int]{},
	}
}

// within lets requests pass as their cluster's share and the limits of the server allow.
func (f *fairness) within(next http.Handler, c *genericapiserver.Config) http.Handler {
	limited := genericfilters.WithMaxInFlightLimit(next, c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, c.LongRunningFunc)
	return f.limit(next, limited, c.LongRunningFunc)
}

// limit lets requests pass as their cluster's share allows, through limited unless all
// together are too many and their cluster has few. The system's own always pass.
func (f *fairness) limit(next, limited http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, ok := cluster.From(req.Context())
		info, known := request.RequestInfoFrom(req.Context())
		if u, _ := request.UserFrom(req.Context()); !ok || !known || isSystem(u) {
			limited.ServeHTTP(w, req)
			return
		}
		var leave func()
		var err error
		working := &turn{of: f.computing, kind: string(c)}
		if longRunning(req, info) {
			w, req, leave, err = f.watch(w, req, c, working)
		} else {
			w, req, leave, err = f.answer(w, req, c, working)
		}
		if err != nil {
			w.Header().Set("Retry-After", "1")
			refuse(w, req, err)
			return
		}
		defer func() { serve.WhenServed(req.Context(), leave) }()
		if longRunning(req, info) {
			next.ServeHTTP(w, req)
			return
		}
		counts, out := f.through(c, info.Verb)
		defer out()
		if counts {
			limited.ServeHTTP(w, req)
		} else {
			next.ServeHTTP(w, req)
		}
	})
}

// through reports whether a request counts among those of all clusters: unless there
// are too many, and its cluster has few.
func (f *fairness) through(c cluster.Name, verb string) (counts bool, out func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	most := *f.most.of(verb)
	own := f.own[c]
	counts = *f.all.of(verb) < most || *own.of(verb) >= min(clusterReserve, most)
	if counts {
		*f.all.of(verb)++
	}
	*own.of(verb)++
	f.own[c] = own
	return counts, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if counts {
			*f.all.of(verb)--
		}
		own := f.own[c]
		if *own.of(verb)--; own == (kinds[int]{}) {
			delete(f.own, c)
			return
		}
		f.own[c] = own
	}
}

// watch lets in a watch, which computes until it has begun.
func (f *fairness) watch(w http.ResponseWriter, req *http.Request, c cluster.Name, working *turn) (http.ResponseWriter, *http.Request, func(), error) {
	f.mu.Lock()
	if f.watching[c] >= clusterWatches {
		f.mu.Unlock()
		return w, req, nil, apierrors.NewTooManyRequests("this logical cluster has too many watches open; close some", 1)
	}
	f.watching[c]++
	f.mu.Unlock()
	leave := func() {
		working.end()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.watching[c]--; f.watching[c] == 0 {
			delete(f.watching, c)
		}
	}
	if err := working.begin(req.Context(), clusterWait); err != nil {
		leave()
		return w, req, nil, apierrors.NewTooManyRequests("this logical cluster has too many watches that begin; open fewer at once", 1)
	}
	timer := time.AfterFunc(watchBegins, working.end)
	begun := func() { timer.Stop(); working.end() }
	grow, let := f.loads.request(c)
	req = req.WithContext(store.WithLoad(flowcontrol.WithInitializationSignal(f.mayAsk(req.Context(), working), signal(begun)), grow))
	return w, req, func() { begun(); let(); leave() }, nil
}

// signal is called when a watch has begun.
type signal func()

// Signal implements [flowcontrol.InitializationSignal].
func (s signal) Signal() { s() }

// Wait implements [flowcontrol.InitializationSignal].
func (signal) Wait() {}

// answer lets in a request that is not a watch. It computes but for while it waits for
// its client or for etcd.
func (f *fairness) answer(w http.ResponseWriter, req *http.Request, c cluster.Name, working *turn) (http.ResponseWriter, *http.Request, func(), error) {
	ctx := req.Context()
	if err := f.answered.take(ctx, string(c), clusterWait); errors.Is(err, errQueueFull) {
		return w, req, nil, apierrors.NewTooManyRequests("this logical cluster has too many requests waiting; send fewer at once", 1)
	} else if err != nil {
		return w, req, nil, apierrors.NewTooManyRequests("this logical cluster has too many requests at once; send fewer", 1)
	}
	leave := func() {
		working.end()
		f.answered.give(string(c))
	}
	req = f.withWholeBody(req)
	if err := working.begin(ctx, clusterWait); err != nil {
		leave()
		return w, req, nil, apierrors.NewTooManyRequests("this logical cluster has too many requests that take long; send fewer", 1)
	}
	grow, let := f.loads.request(c)
	req = req.WithContext(store.WithLoad(store.WithPause(f.mayAsk(ctx, working), func() (back func()) {
		if !working.rest() {
			return func() {}
		}
		return working.force
	}), grow))
	leave = func() {
		let()
		working.end()
		f.answered.give(string(c))
	}
	return responsewriter.WrapForHTTP1Or2(&restingWriter{w, ctx, working}), req, leave, nil
}

// mayAsk returns a context for a request that does not compute any more, but waits among
// the others, once it is known to be served with the help of a webhook.
func (f *fairness) mayAsk(ctx context.Context, working *turn) context.Context {
	return serve.WithOutside(ctx, func() error {
		if err := working.move(ctx, f.outside, clusterWait); err != nil {
			return apierrors.NewTooManyRequests("too many requests of this logical cluster wait for webhooks that convert; see to these, or send fewer", 1)
		}
		return nil
	})
}

// withWholeBody returns a request whose body has come, or as much of it as counts.
func (f *fairness) withWholeBody(req *http.Request) *http.Request {
	if req.Body == nil || req.Body == http.NoBody {
		return req
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, f.maxBody+1))
	if err == nil {
		err = io.EOF
	}
	whole := *req
	whole.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), failed{err}), req.Body}
	return &whole
}

// failed is a reader that has only an error.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// restingWriter lays down the turn of a request while it waits for its client.
type restingWriter struct {
	http.ResponseWriter
	ctx  context.Context // of the request, as that of the writer
	turn *turn
}

var _ responsewriter.UserProvidedDecorator = (*restingWriter)(nil)

// Unwrap implements [responsewriter.UserProvidedDecorator].
func (w *restingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements [http.ResponseWriter].
func (w *restingWriter) Write(b []byte) (int, error) {
	held := w.turn.rest()
	n, err := w.ResponseWriter.Write(b)
	if held && err == nil {
		err = w.turn.begin(w.ctx, time.Hour) // or as long as the request lasts
	}
	return n, err
}

// ask has those wait their turn who ask whether they may make a request, each behind
// himself: it takes as long as the roles of the cluster make it. Whoever is allowed to
// has it no more, see [fairness.asked].
func (f *fairness) ask(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		c, ok := cluster.From(ctx)
		u, known := request.UserFrom(ctx)
		if !ok || !known || isSystem(u) {
			next.ServeHTTP(w, req)
			return
		}
		asks := &turn{of: f.asking, kind: asker(c, u)}
		if err := asks.begin(ctx, clusterWait); err != nil {
			w.Header().Set("Retry-After", "1")
			refuse(w, req, apierrors.NewTooManyRequests("you have too many requests at once; send fewer", 1))
			return
		}
		defer asks.end()
		next.ServeHTTP(w, req.WithContext(context.WithValue(ctx, asksKey{}, asks)))
	})
}

type asksKey struct{}

// asked ends the turn of whoever has been allowed his request.
func (f *fairness) asked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if asks, ok := req.Context().Value(asksKey{}).(*turn); ok {
			asks.end()
		}
		next.ServeHTTP(w, req)
	})
}

// asker says who stands behind a user: the cluster that knows him, of which he is a
// service account, or he himself. Nobody in particular stands for himself in each cluster.
func asker(c cluster.Name, u user.Info) string {
	if home := u.GetExtra()[auth.ClusterNameKey]; len(home) == 1 {
		return "cluster " + home[0]
	}
	if u.GetName() == user.Anonymous {
		return "strangers in " + string(c)
	}
	return "user " + u.GetName()
}

func isSystem(u user.Info) bool {
	return u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// withoutUselessBodies drops what is sent along with reads: nobody looks at it, and the
// server would keep it for as long as a watch lasts.
func withoutUselessBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// In HTTP/1 nothing is read that nobody asks for, and closing it would.
		if req.ProtoMajor == 2 && req.Body != nil && (req.Method == http.MethodGet || req.Method == http.MethodHead) {
			_ = req.Body.Close() // it only says that nobody reads it
		}
		next.ServeHTTP(w, req)
	})
}
