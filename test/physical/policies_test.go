package physical

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// policiesComeFirst expects that a physical cluster has the NetworkPolicies of a namespace before its
// first pods.
func (s *tenant) policiesComeFirst(t *testing.T) {
	created := map[string]func() map[string]uint64{}
	for name, c := range s.clusters {
		created[name] = c.creations(t)
	}
	for i := range 5 {
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("first-", i)}}
		if _, err := s.NetworkingV1().NetworkPolicies("default").Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.create(t, "second", 4)
	s.rolledOut(t, "second")
	for name, of := range created {
		at := of()
		for i := range 5 {
			if policy := at[fmt.Sprint("first-", i)]; policy == 0 || at["second"] == 0 || policy > at["second"] {
				t.Errorf("%s: created at the revisions %v", name, at)
			}
		}
	}
	s.remove(t, "second")
	for i := range 5 {
		if err := s.NetworkingV1().NetworkPolicies("default").Delete(t.Context(), fmt.Sprint("first-", i), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// creations watches what is created in a physical cluster. It returns a function that returns the
// revisions, by name.
func (c *cluster) creations(t *testing.T) func() map[string]uint64 {
	t.Helper()
	sets, err := c.AppsV1().Deployments("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policies, err := c.NetworkingV1().NetworkPolicies("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() map[string]uint64 {
		at := map[string]uint64{}
		for _, w := range []watch.Interface{sets, policies} {
			for last := time.After(2 * time.Second); last != nil; {
				select {
				case e := <-w.ResultChan():
					o, ok := e.Object.(metav1.Object)
					if revision, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64); ok && err == nil && e.Type == watch.Added {
						at[o.GetName()] = revision
					}
				case <-last:
					last = nil
				}
			}
			w.Stop()
		}
		return at
	}
}
