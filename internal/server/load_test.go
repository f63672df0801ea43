package server

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A cluster takes a part of the memory for lists, and of each cluster some are answered
// whatever others take. What one alone has too much of is told to be asked for in pages.
func TestLoads(t *testing.T) {
	l := newLoads()
	grow, end := l.request("greedy")
	if err := grow(requestLoad); err != nil || l.all != 0 {
		t.Errorf("what nobody asks about: %v, %d", err, l.all)
	}
	if err := grow(clusterLoad); err != nil || l.all != clusterLoad {
		t.Errorf("all that a cluster may take: %v, %d", err, l.all)
	}
	if err := grow(1); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("more than that: %v", err)
	}
	second, endSecond := l.request("greedy")
	if err := second(requestLoad + 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("another list beside it: %v", err)
	}
	endSecond()
	if err := grow(-clusterLoad / 2); err != nil || l.all != clusterLoad/2 {
		t.Errorf("let go of: %v, %d", err, l.all)
	}
	if err := grow(clusterLoad / 2); err != nil {
		t.Error(err)
	}
	ends := []func(){end}
	for l.all < serverLoad {
		grow, end := l.request("another")
		if l.of["another"] > 0 {
			grow, end = l.request("third")
		}
		if err := grow(requestLoad + min(clusterLoad, serverLoad-l.all)); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	grow, end = l.request("quiet")
	if err := grow(requestLoad + reserveLoad); err != nil {
		t.Errorf("some of a quiet one: %v", err)
	}
	if err := grow(1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("much of a quiet one: %v", err)
	}
	for _, end := range append(ends, end) {
		end()
		end() // which changes nothing
	}
	if l.all != 0 || len(l.of) != 0 {
		t.Errorf("left: %d, %v", l.all, l.of)
	}
}
