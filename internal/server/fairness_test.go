package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// Who takes all of his share waits for himself; others do not wait, and nothing is
// remembered of those that have gone.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, queue = 10, 40
		f := newTurns(each, queue)
		take := func(kind string) error { return f.take(t.Context(), kind, time.Second) }
		for range each {
			if err := take("noisy"); err != nil {
				t.Fatal(err)
			}
		}
		answers := make(chan error, queue)
		for range queue {
			go func() {
				err := take("noisy")
				if err == nil {
					f.give("noisy")
				}
				answers <- err
			}()
		}
		synctest.Wait()
		if len(answers) != 0 {
			t.Fatalf("%d requests beyond the share were let in or refused", len(answers))
		}
		if err := take("noisy"); !errors.Is(err, errQueueFull) {
			t.Errorf("a request beyond the queue: %v", err)
		}
		if err := take("quiet"); err != nil {
			t.Fatalf("another: %v", err)
		}
		f.give("quiet")
		for range each {
			f.give("noisy")
		}
		for range queue {
			if err := <-answers; err != nil {
				t.Errorf("a request that waited its turn: %v", err)
			}
		}
		if len(f.by) != 0 {
			t.Errorf("lines left: %v", f.by)
		}
	})
}

// Who waits too long, or goes away, is refused and holds no place. Who was let in and
// only waited for something else goes on at once.
func TestTurnsGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTurns(1, 10)
		first := &turn{of: f, kind: "c1"}
		if err := first.begin(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- f.take(ctx, "c1", time.Hour) }()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, errTooLong) {
			t.Errorf("a client that went away: %v", err)
		}
		if err := f.take(t.Context(), "c1", time.Second); !errors.Is(err, errTooLong) { // time passes at once in the bubble
			t.Errorf("a request that waited too long: %v", err)
		}
		if !first.rest() || first.rest() {
			t.Error("a turn is laid down once")
		}
		if err := f.take(t.Context(), "c1", 0); err != nil {
			t.Errorf("while the first rests: %v", err)
		}
		first.force()
		f.give("c1")
		if err := f.take(t.Context(), "c1", 0); !errors.Is(err, errTooLong) {
			t.Errorf("while the first goes on: %v", err)
		}
		first.end()
		first.force() // which it does too late
		if len(f.by) != 0 {
			t.Errorf("lines left: %v", f.by)
		}
	})
}

// shares are the share of clusters, of which requests are answered by next.
type shares struct {
	*fairness
	handler http.Handler
}

func newShares(next http.HandlerFunc) shares {
	f := newFairness(1000, kinds[int]{20, 20})
	full := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Counted", "yes")
		next(w, req)
	})
	return shares{f, f.limit(next, full, func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" })}
}

func (s shares) send(ctx context.Context, c cluster.Name, verb string, body io.Reader) *httptest.ResponseRecorder {
	ctx = request.WithRequestInfo(cluster.With(ctx, c), &request.RequestInfo{Verb: verb, IsResourceRequest: true})
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "somebody"})
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body))
	return w
}

// Of each cluster a few requests compute at once. Those that wait for their client or for
// etcd are not among them.
func TestComputing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, reached := make(chan struct{}), make(chan string, 1000)
		committing := make(chan struct{})
		s := newShares(func(w http.ResponseWriter, req *http.Request) {
			text, _ := io.ReadAll(req.Body)
			reached <- string(text)
			switch string(text) {
			case "commit":
				store.Pause(req.Context(), func() { <-committing })
			case "long":
				<-release
			}
		})
		few := s.computing.each
		for range few + 10 {
			go s.send(t.Context(), "noisy", "create", strings.NewReader("long"))
		}
		synctest.Wait()
		if len(reached) != few {
			t.Errorf("%d of at most %d compute", len(reached), few)
		}
		if w := s.send(t.Context(), "quiet", "create", strings.NewReader("")); w.Code != http.StatusOK {
			t.Errorf("of another cluster: %d", w.Code)
		}
		if w := s.send(t.Context(), "noisy", "create", strings.NewReader("")); w.Code != http.StatusTooManyRequests {
			t.Errorf("one that waits too long: %d", w.Code)
		}
		close(release)
		synctest.Wait()
		for len(reached) > 0 {
			<-reached
		}
		slow, _ := io.Pipe() // from which nothing comes
		for range 2 * few {
			go s.send(t.Context(), "noisy", "create", slow)
			go s.send(t.Context(), "noisy", "create", strings.NewReader("commit"))
		}
		synctest.Wait()
		if len(reached) != 2*few {
			t.Errorf("%d of %d wait for etcd", len(reached), 2*few)
		}
		if w := s.send(t.Context(), "noisy", "create", strings.NewReader("")); w.Code != http.StatusOK {
			t.Errorf("beside those that wait: %d", w.Code)
		}
		close(committing)
		_ = slow.Close()
		synctest.Wait()
		if len(s.answered.by)+len(s.computing.by)+len(s.own) != 0 {
			t.Errorf("left: %v, %v, %v", s.answered.by, s.computing.by, s.own)
		}
	})
}

// However many requests of others are under way, some of each cluster are answered.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		reached := make(chan struct{}, 1000)
		s := newShares(func(_ http.ResponseWriter, req *http.Request) {
			store.Pause(req.Context(), func() {
				reached <- struct{}{}
				<-release
			})
		})
		for range 2 * s.most.writes {
			go s.send(t.Context(), "noisy", "create", nil)
		}
		synctest.Wait()
		if s.all.writes != 2*s.most.writes {
			t.Errorf("%d writes are counted", s.all.writes)
		}
		answers := make(chan *httptest.ResponseRecorder, 20)
		for range clusterReserve + 1 {
			go func() { answers <- s.send(t.Context(), "quiet", "create", nil) }()
		}
		synctest.Wait()
		close(release)
		counted := 0
		for range clusterReserve + 1 {
			if w := <-answers; w.Header().Get("Counted") != "" {
				counted++
			}
		}
		if counted != 1 {
			t.Errorf("%d of %d were left to the limit of all clusters", counted, clusterReserve+1)
		}
		synctest.Wait()
		if s.all != (kinds[int]{}) || len(s.own) != 0 {
			t.Errorf("left: %v, %v", s.all, s.own)
		}
	})
}

// Watches are as many as a cluster may have, and compute until they have begun.
func TestWatchesBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, end := make(chan struct{}), make(chan struct{})
		reached := make(chan struct{}, clusterWatches)
		s := newShares(func(_ http.ResponseWriter, req *http.Request) {
			reached <- struct{}{}
			<-begin
			flowcontrol.WatchInitialized(req.Context())
			<-end
		})
		few := s.computing.each
		for range few + 5 {
			go s.send(t.Context(), "c1", "watch", nil)
		}
		synctest.Wait()
		if len(reached) != few {
			t.Errorf("%d of at most %d begin", len(reached), few)
		}
		close(begin)
		synctest.Wait()
		if len(reached) != few+5 {
			t.Errorf("%d of %d have begun", len(reached), few+5)
		}
		for range clusterWatches - few - 5 {
			go s.send(t.Context(), "c1", "watch", nil)
		}
		synctest.Wait()
		if w := s.send(t.Context(), "c1", "watch", nil); w.Code != http.StatusTooManyRequests {
			t.Errorf("a watch beyond the limit: %d", w.Code)
		}
		close(end)
		synctest.Wait()
		if len(s.watching)+len(s.computing.by) != 0 {
			t.Errorf("left: %v, %v", s.watching, s.computing.by)
		}
	})
}

// Whoever is refused waits for himself alone, and whoever is let in does no more.
func TestAskers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFairness(1000, kinds[int]{100, 100})
		decide := make(chan struct{})
		reached := make(chan string, 1000)
		inside := f.asked(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			reached <- "inside"
			<-decide
		}))
		h := f.ask(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if u, _ := request.UserFrom(req.Context()); u.GetName() == "allowed" {
				inside.ServeHTTP(w, req)
				return
			}
			reached <- "asks"
			<-decide
		}))
		send := func(c cluster.Name, u user.Info) int {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(request.WithUser(cluster.With(t.Context(), c), u), http.MethodGet, "/", nil))
			return w.Code
		}
		account := func(home string) user.Info {
			return &user.DefaultInfo{Name: "system:serviceaccount:default:a" + home, Extra: map[string][]string{auth.ClusterNameKey: {home}}}
		}
		most := f.asking.each
		for range most + 10 {
			go send("victim", account("evil"))
			go send("victim", &user.DefaultInfo{Name: user.Anonymous})
			go send("victim", &user.DefaultInfo{Name: "allowed"})
		}
		synctest.Wait()
		if want := 2*most + most + 10; len(reached) != want {
			t.Errorf("%d have come as far as %d may", len(reached), want)
		}
		for name, code := range map[user.Info]int{&user.DefaultInfo{Name: "owner"}: 0, account("victim"): 0, account("evil"): http.StatusTooManyRequests} {
			done := make(chan int, 1)
			go func() { done <- send("victim", name) }()
			if code == 0 {
				synctest.Wait()
				if len(done) != 0 {
					t.Errorf("%s is refused: %d", name.GetName(), <-done)
				}
			} else if got := <-done; got != code {
				t.Errorf("%s: %d", name.GetName(), got)
			}
		}
		go send("elsewhere", &user.DefaultInfo{Name: user.Anonymous})
		close(decide)
		synctest.Wait()
		if len(f.asking.by) != 0 {
			t.Errorf("left: %v", f.asking.by)
		}
	})
}
