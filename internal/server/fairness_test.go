package server

import (
	"context"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A cluster that takes all of its share waits for itself; others do not wait, and
// nothing is remembered of those that have gone.
func TestFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFairness()
		var leaves []func()
		for range clusterRequests {
			leave, err := f.enter(t.Context(), "noisy", false)
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		answers := make(chan error, clusterQueue)
		for range clusterQueue {
			go func() {
				leave, err := f.enter(t.Context(), "noisy", false)
				if err == nil {
					leave()
				}
				answers <- err
			}()
		}
		synctest.Wait()
		if len(answers) != 0 {
			t.Fatalf("%d requests beyond the share were let in or refused", len(answers))
		}
		if _, err := f.enter(t.Context(), "noisy", false); !apierrors.IsTooManyRequests(err) {
			t.Errorf("a request beyond the queue: %v", err)
		}
		leave, err := f.enter(t.Context(), "quiet", false)
		if err != nil {
			t.Fatalf("another cluster: %v", err)
		}
		leave()
		for _, leave := range leaves {
			leave()
		}
		for range clusterQueue {
			if err := <-answers; err != nil {
				t.Errorf("a request that waited its turn: %v", err)
			}
		}
		if len(f.lanes) != 0 {
			t.Errorf("lanes left: %v", f.lanes)
		}
	})
}

// Who waits too long, or goes away, is refused and holds no place.
func TestFairnessGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFairness()
		var leaves []func()
		for range clusterRequests {
			leave, err := f.enter(t.Context(), "c1", false)
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := f.enter(ctx, "c1", false)
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; !apierrors.IsTooManyRequests(err) {
			t.Errorf("a client that went away: %v", err)
		}
		if _, err := f.enter(t.Context(), "c1", false); !apierrors.IsTooManyRequests(err) { // time passes at once in the bubble
			t.Errorf("a request that waited too long: %v", err)
		}
		for _, leave := range leaves {
			leave()
		}
		for range clusterWatches {
			if _, err := f.enter(t.Context(), "c1", true); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.enter(t.Context(), "c1", true); !apierrors.IsTooManyRequests(err) {
			t.Errorf("a watch beyond the limit: %v", err)
		}
	})
}
