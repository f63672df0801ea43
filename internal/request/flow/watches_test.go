package flow

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
)

// The number of watches per tenant is limited, and they hold a light seat until they have
// begun.
func TestWatchesBegin(t *testing.T) {
	unlimited()
	synctest.Test(t, func(t *testing.T) {
		begin, end := make(chan struct{}), make(chan struct{})
		reached := make(chan struct{}, 1000)
		s := newShared(t, func(_ http.ResponseWriter, req *http.Request) {
			if info, _ := request.RequestInfoFrom(req.Context()); info.Verb != "watch" {
				return
			}
			reached <- struct{}{}
			<-begin
			utilflowcontrol.WatchInitialized(req.Context())
			<-end
		})
		few := s.limits.LightEach
		for range few + 5 {
			go s.send(t.Context(), "a1", "watch", nil)
		}
		synctest.Wait()
		if len(reached) != few {
			t.Errorf("%d of at most %d begin", len(reached), few)
		}
		close(begin)
		synctest.Wait()
		for range s.limits.Watches - few - 5 {
			go s.send(t.Context(), "a2", "watch", nil)
		}
		synctest.Wait()
		if len(reached) != s.limits.Watches {
			t.Errorf("%d of %d watches have begun", len(reached), s.limits.Watches)
		}
		if w := s.send(t.Context(), "a3", "watch", nil); w.Code != http.StatusTooManyRequests {
			t.Errorf("a watch beyond the limit: %d", w.Code)
		}
		if w := s.send(t.Context(), "q1", "create", nil); w.Code != http.StatusOK {
			t.Errorf("another tenant: %d", w.Code)
		}
		close(end)
		synctest.Wait()
		s.checkIdle(t)
	})
}

// Streams, such as commands in pods, count as watches and hold no seat.
func TestStreamsHoldNoSeat(t *testing.T) {
	unlimited()
	synctest.Test(t, func(t *testing.T) {
		end, reached := make(chan struct{}), make(chan struct{}, 1000)
		s := newShared(t, func(_ http.ResponseWriter, req *http.Request) {
			if info, _ := request.RequestInfoFrom(req.Context()); info.Verb == "connect" {
				reached <- struct{}{}
				<-end
			}
		})
		began := time.Now()
		for range s.limits.Watches {
			go s.send(t.Context(), "a1", "connect", nil)
		}
		synctest.Wait()
		if w := s.send(t.Context(), "a2", "get", nil); len(reached) != s.limits.Watches || w.Code != http.StatusOK || time.Since(began) > 0 {
			t.Errorf("%d of %d streams have begun, and a get after %s is %d", len(reached), s.limits.Watches, time.Since(began), w.Code)
		}
		if w := s.send(t.Context(), "a3", "connect", nil); w.Code != http.StatusTooManyRequests {
			t.Errorf("a stream beyond the limit: %d", w.Code)
		}
		close(end)
		synctest.Wait()
		s.checkIdle(t)
	})
}
