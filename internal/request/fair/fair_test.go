package fair

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func limits() Limits {
	return Limits{
		Light: 4, LightEach: 3, Heavy: 1, HeavyEach: 1, Waiting: 20, Present: 10, Queue: 20, Served: 5, Timeout: 5 * time.Second,
		Memory: Memory{Free: 10, Tenant: 100, All: 150, Reserve: 20},
	}
}

func (s *Shares) work(tenant string) *Work {
	w := s.Begin()
	w.For(tenant)
	return w
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("%s: %v", what, err)
	}
}

// One tenant cannot take all seats, and heavy requests do not take seats of light ones.
func TestOneTenantDoesNotTakeAllProcessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(limits())
		compute := func(w *Work, class Class) chan error {
			answer := make(chan error, 1)
			go func() { answer <- w.Compute(t.Context(), class) }()
			synctest.Wait()
			return answer
		}
		var noisy []*Work
		computing := 0
		for range 10 {
			w := s.work("noisy")
			noisy = append(noisy, w)
			computing += len(compute(w, Light))
			h := s.work("noisy")
			noisy = append(noisy, h)
			computing += len(compute(h, Heavy))
		}
		if computing != 3+1 {
			t.Errorf("%d requests of one tenant compute", computing)
		}
		quiet := s.work("quiet")
		if answer := compute(quiet, Light); len(answer) != 1 || <-answer != nil {
			t.Error("a light request of another tenant does not compute")
		}
		// A released seat goes to the tenant that has used the least time.
		late := s.work("late")
		answer := compute(late, Light)
		if len(answer) != 0 {
			t.Error("more requests compute than there are seats")
		}
		<-time.After(time.Millisecond) // of the bubble
		quiet.End()
		synctest.Wait()
		if len(answer) != 1 || <-answer != nil {
			t.Error("the seat went to the tenant that has used the most time")
		}
		for _, w := range append(noisy, late) {
			go w.End()
		}
		synctest.Wait()
		<-time.After(time.Minute) // of the bubble
		for _, w := range noisy {
			w.End()
		}
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}

// A request has no seat while it waits, and then continues without a queue.
func TestWaitingHoldsNoProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(limits())
		first, second := s.work("a"), s.work("a")
		if err := first.Compute(t.Context(), Heavy); err != nil {
			t.Fatal(err)
		}
		refused(t, "while the first computes", second.Compute(t.Context(), Heavy))
		Wait(With(t.Context(), first), func() {
			if err := second.Compute(t.Context(), Heavy); err != nil {
				t.Errorf("while the first waits: %v", err)
			}
		})
		second.Pause()
		refused(t, "while the first continues", second.Compute(t.Context(), Heavy))
		Lend([]*Work{second, first}, func() {
			if err := second.Compute(t.Context(), Heavy); err != nil {
				t.Errorf("while a request of the tenant waits: %v", err)
			}
		})
		second.End()
		first.End()
		Wait(With(t.Context(), first), func() {}) // without effect after the end
		Lend([]*Work{first, second}, func() {})
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}

// A request that rests takes no seat back when it has waited, until it computes again.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(limits())
		first, second := s.work("a"), s.work("a")
		if err := first.Compute(t.Context(), Heavy); err != nil {
			t.Fatal(err)
		}
		Wait(With(t.Context(), first), first.Rest)
		if err := second.Compute(t.Context(), Heavy); err != nil {
			t.Errorf("while the first rests: %v", err)
		}
		refused(t, "the first beside the second", first.Compute(t.Context(), Heavy))
		second.End()
		if err := first.Compute(t.Context(), Heavy); err != nil {
			t.Errorf("the first again: %v", err)
		}
		Wait(With(t.Context(), first), func() {})
		refused(t, "beside the first", s.work("a").Compute(t.Context(), Heavy))
		first.End()
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}

// A request has no seat while any of its goroutines waits for another system.
func TestWaitOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(limits())
		first, second := s.work("a"), s.work("a")
		if err := first.Compute(t.Context(), Heavy); err != nil {
			t.Fatal(err)
		}
		ctx, long := With(t.Context(), first), make(chan struct{})
		go WaitOutside(ctx, func() { <-long })
		synctest.Wait()
		WaitOutside(ctx, func() {})
		if err := second.Compute(t.Context(), Heavy); err != nil {
			t.Errorf("while one goroutine waits: %v", err)
		}
		second.End()
		close(long)
		synctest.Wait()
		refused(t, "while nothing waits", s.work("a").Compute(t.Context(), Heavy))
		first.End()
		WaitOutside(t.Context(), func() {}) // without a request
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}

// A tenant whose light requests take too long computes one at a time.
func TestSlowTenantsComputeOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(limits())
		s.schedulers[Light].delay = func() time.Duration { return 0 }
		works := []*Work{s.work("slow"), s.work("slow"), s.work("slow")}
		for _, w := range works {
			if err := w.Compute(t.Context(), Light); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(2 * long) // of the bubble
		works[0].End()
		works[1].End()
		next := s.work("slow")
		ctx, cancel := context.WithTimeout(t.Context(), slowFor/2)
		refused(t, "a second one of a slow tenant", next.Compute(ctx, Light))
		cancel()
		works[2].End()
		if err := next.Compute(t.Context(), Light); err != nil {
			t.Errorf("alone: %v", err)
		}
		next.End()
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}

// A tenant has a limit of admitted requests and of waiting requests. Others are refused.
func TestRequestsInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits()
		s := New(l)
		answers := make(chan error, 100)
		var works []*Work
		for range l.Present + l.Queue {
			w := s.work("a")
			works = append(works, w)
			go func() {
				_, err := w.Enter(t.Context(), "")
				answers <- err
			}()
		}
		synctest.Wait()
		if len(answers) != l.Present {
			t.Errorf("%d requests are admitted, the limit is %d", len(answers), l.Present)
		}
		_, err := s.work("a").Enter(t.Context(), "")
		refused(t, "beyond the queue", err)
		for name, w := range map[string]*Work{"another tenant": s.work("b"), "another queue": s.work("a")} {
			queue := map[string]string{"another queue": "/leases"}[name]
			if _, err := w.Enter(t.Context(), queue); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			w.End()
		}
		<-time.After(2 * l.Timeout) // of the bubble
		for range l.Present {
			if err := <-answers; err != nil {
				t.Errorf("admitted: %v", err)
			}
		}
		for range l.Queue {
			refused(t, "after the timeout", <-answers)
		}
		for _, w := range works {
			w.End()
			w.End() // without effect
		}
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}

// A seat that becomes free at the moment of a timeout is not lost.
func TestSeatAtTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			s := New(limits())
			first, second, third := s.work("a"), s.work("a"), s.work("a")
			if err := first.Compute(t.Context(), Heavy); err != nil {
				t.Fatal(err)
			}
			freed := time.AfterFunc(limits().Timeout, first.End)
			err := second.Compute(t.Context(), Heavy)
			if err != nil {
				refused(t, "after the timeout", err)
			}
			synctest.Wait()
			if freed.Stop() {
				t.Fatal("the second request did not wait for the timeout")
			}
			if second.Pause() != (err == nil) {
				t.Errorf("the answer is %v, and the seat is another", err)
			}
			if err := third.Compute(t.Context(), Heavy); err != nil {
				t.Errorf("the seat is lost: %v", err)
			}
			second.End()
			third.End()
			if !s.Idle() {
				t.Fatalf("left: %+v", s)
			}
		}
	})
}

// Each tenant has a limit of memory, and a reserve that others cannot use. A request that
// exceeds the limit alone gets 413, so clients do not retry it.
func TestMemory(t *testing.T) {
	s := New(limits())
	a, b, c := s.work("a"), s.work("b"), s.work("c")
	if err := a.Grow(110); err != nil {
		t.Errorf("the limit of a tenant: %v", err)
	}
	if err := a.Grow(1); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("more than that: %v", err)
	}
	refused(t, "another beside it", s.work("a").Grow(50))
	if err := b.Grow(60); err != nil {
		t.Errorf("of another: %v", err)
	}
	if err := c.Grow(30); err != nil {
		t.Errorf("the reserve: %v", err)
	}
	refused(t, "more than the reserve", c.Grow(10))
	a.For("d")
	if s.memory.of["a"] != 0 || s.memory.of["d"] != 100 {
		t.Errorf("moved: %v", s.memory.of)
	}
	if err := a.Grow(-60); err != nil || s.memory.of["d"] != 40 {
		t.Errorf("freed: %v, %v", err, s.memory.of)
	}
	for _, w := range []*Work{a, b, c} {
		w.End()
	}
	if err := a.Grow(1000); err != nil || !s.Idle() {
		t.Errorf("after the end: %v, %+v", err, s.memory)
	}
	if err := Grow(t.Context(), 1<<40); err != nil {
		t.Errorf("without work: %v", err)
	}
}

// A call may lend the seat of another request, which ends during the call.
func TestSeatsLentByOthers(t *testing.T) {
	s := New(limits())
	w := s.work("a")
	if err := w.Compute(t.Context(), Heavy); err != nil {
		t.Fatal(err)
	}
	Lend([]*Work{w}, func() {
		next := s.work("a") // gets the lent seat
		if err := next.Compute(t.Context(), Heavy); err != nil {
			t.Error(err)
		}
		w.End()
		next.End()
	})
	<-w.Ended()
	if !s.Idle() {
		t.Error("seats are taken though no request computes")
	}
	if last := s.work("a"); last.Compute(t.Context(), Heavy) != nil || last.Pause() != true {
		t.Error("the seat cannot be used again")
	}
}

// A light request that computes for long continues as a heavy one: one at a time.
func TestLongRequestsContinueAsHeavyOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(limits())
		var all []*Work
		for range 3 {
			w := s.work("noisy")
			all = append(all, w)
			if err := w.Compute(t.Context(), Light); err != nil {
				t.Fatal(err)
			}
			if Computed(With(t.Context(), w)) {
				t.Error("a request that has just begun has computed for long")
			}
		}
		<-time.After(2 * long)
		continued := make(chan *Work, len(all))
		for _, w := range all {
			if !Computed(With(t.Context(), w)) {
				t.Error("a request has not computed for long")
			}
			go func() {
				if err := Continue(With(t.Context(), w)); err != nil {
					t.Error(err)
				}
				continued <- w
			}()
		}
		for range all {
			synctest.Wait()
			if len(continued) != 1 {
				t.Fatalf("%d requests continue at the same time", len(continued))
			}
			(<-continued).End()
		}
		if err := Continue(t.Context()); err != nil || Computed(t.Context()) {
			t.Errorf("a request without limits: %v", err)
		}
	})
}

// A tenant stays slow while its next request, as long as the last one, computes.
func TestSlowTenantsStaySlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(4, 3, 10)
		s.delay = func() time.Duration { return 0 }
		take := func() bool { return s.acquire(t.Context(), "tenant", time.Nanosecond) == nil }
		for range 2 {
			if !take() {
				t.Fatal("no seat")
			}
		}
		s.release("tenant", 3*time.Second) // the other request stays
		<-time.After(3 * time.Second)
		if take() {
			t.Error("a slow tenant gets a second seat")
		}
		<-time.After(4 * time.Second)
		if !take() {
			t.Error("the tenant is slow for ever")
		}
	})
}

// While several tenants use the server, each computes less at the same time. The questions of
// authorization do not count as use: another tenant may answer for them.
func TestSharedServersHaveFewerSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits()
		l.LightShared = 1
		s := New(l)
		take := func(tenant string) (*Work, error) {
			w := s.work(tenant)
			if err := w.Ask(t.Context()); err != nil {
				return w, err
			}
			w.For(tenant)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			return w, w.Compute(ctx, Light)
		}
		var all []*Work
		hold := func(what, tenant string, want bool) {
			t.Helper()
			w, err := take(tenant)
			if (err == nil) != want {
				t.Errorf("%s: %v", what, err)
			}
			all = append(all, w)
		}
		hold("the first one", "noisy", true)
		hold("alone", "noisy", true)
		hold("another tenant", "quiet", true)
		hold("a third one beside it", "noisy", false)
		<-time.After(2 * sharedFor) // of the bubble
		hold("alone again", "noisy", true)
		for _, w := range all {
			w.End()
		}
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}
