package consumers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
)

// A registry has the labels of namespaces.
type registry struct {
	labels map[kcp.Key]map[string]string
	reads  int
	before func() // called once by the next read, when it has read
}

func (r *registry) read(_ context.Context, cluster kcp.ClusterName, name string) (map[string]string, bool, error) {
	r.reads++
	all, ok := r.labels[kcp.Key{Cluster: cluster, Namespace: name}]
	all = maps.Clone(all)
	if do := r.before; do != nil {
		r.before = nil
		do()
	}
	return all, ok, nil
}

// placed returns a cache with Placements only, of the logical cluster "shop" unless they name another one.
func placed(t *testing.T, r *registry, all ...scheduling.Placement) *Cache {
	t.Helper()
	for i := range all {
		if all[i].Annotations == nil {
			all[i].Annotations = map[string]string{core.ClusterAnnotation: "shop"}
		}
		all[i].CreationTimestamp = metav1.NewTime(time.Unix(int64(1+i), 0)) // the first is the oldest
	}
	open := make(chan struct{})
	close(open)
	c := &Cache{options: Options{Labels: r.read}, Placements: fixed[*scheduling.Placement](&scheduling.PlacementList{Items: all}, open)}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	t.Cleanup(func() { cancel(); work.Wait() })
	work.Go(func() { c.Placements.Run(ctx) })
	<-c.Placements.Ready()
	return c
}

func selecting(name string, s *metav1.LabelSelector) scheduling.Placement {
	p := scheduling.Placement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NamespaceSelector = s
	return p
}

func having(pairs ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		s.MatchLabels[pairs[i]] = pairs[i+1]
	}
	return s
}

func without(key string, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values}}}
}

func in(namespace string) kcp.Key { return kcp.Key{Cluster: "shop", Namespace: namespace} }

// applies fails the test if another Placement applies to a namespace.
func (c *Cache) applies(t *testing.T, key kcp.Key, want string) {
	t.Helper()
	p, err := c.PlacementOf(t.Context(), key)
	if got := ""; err != nil {
		t.Errorf("%s: %v", key, err)
	} else {
		if p != nil {
			got = p.Name
		}
		if got != want {
			t.Errorf("Placement %q applies to %s, want %q", got, key, want)
		}
	}
}

// The oldest Placement applies that selects the labels of the namespace. The name counts as a label, whatever is stored.
func TestPlacementsSelectByLabels(t *testing.T) {
	gone := selecting("gone", nil)
	now := metav1.Now()
	gone.DeletionTimestamp = &now
	r := &registry{labels: map[kcp.Key]map[string]string{
		in("plain"): nil, in("prod"): {"env": "prod"}, in("test"): {"env": "test", corev1.LabelMetadataName: "prod"}, in("both"): {"env": "prod", "team": "a"},
		in("large"): {"env": "prod", "x": strings.Repeat("x", mostLabels)},
	}}
	c := placed(t, r, gone,
		selecting("a-prod", having("env", "prod", "team", "a")),
		selecting("prod", having("env", "prod")),
		selecting("named", having(corev1.LabelMetadataName, "prod")),
		selecting("not-test", without("env", "test")),
		selecting("broken", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Is"}}}),
		selecting("rest", nil),
	)
	for name, want := range map[string]string{"both": "a-prod", "prod": "prod", "plain": "not-test", "test": "rest", "large": "rest", "none": ""} {
		c.applies(t, in(name), want)
	}
}

// Labels are read once, and only in logical clusters where they decide.
func TestLabelsAreReadWhereTheyDecide(t *testing.T) {
	r := &registry{labels: map[kcp.Key]map[string]string{in("prod"): {"env": "prod"}}}
	named := selecting("named", having(corev1.LabelMetadataName, "prod"))
	named.Annotations = map[string]string{core.ClusterAnnotation: "other"}
	c := placed(t, r, selecting("prod", having("env", "prod")), named)
	for _, cluster := range []kcp.ClusterName{"other", "third"} {
		key := kcp.Key{Cluster: cluster, Namespace: "prod"}
		c.applies(t, key, map[kcp.ClusterName]string{"other": "named"}[cluster])
		if changed, err := c.Relabel(t.Context(), key); changed || err != nil || c.selectsByLabels(cluster) {
			t.Errorf("changes of the namespaces of %s count: %v", cluster, err)
		}
	}
	if r.reads > 0 {
		t.Errorf("%d reads where names decide", r.reads)
	}
	for range 3 {
		c.applies(t, in("prod"), "prod")
	}
	if r.reads != 1 || !c.selectsByLabels("shop") {
		t.Errorf("%d reads, want 1", r.reads)
	}
}

// A change counts from when the loop has seen it, which then reports it once. A change of something else is none.
func TestRelabel(t *testing.T) {
	r := &registry{labels: map[kcp.Key]map[string]string{in("prod"): {"env": "prod"}}}
	c := placed(t, r, selecting("prod", having("env", "prod")), selecting("rest", nil))
	step := func(labels map[string]string, changes bool, before, after string) {
		t.Helper()
		r.labels[in("prod")] = labels
		c.applies(t, in("prod"), before)
		if changed, err := c.Relabel(t.Context(), in("prod")); changed != changes || err != nil {
			t.Errorf("changed: %v, %v; want %v", changed, err, changes)
		}
		c.applies(t, in("prod"), after)
	}
	step(map[string]string{"env": "prod"}, false, "prod", "prod")
	step(map[string]string{"env": "test"}, true, "prod", "rest")
	step(map[string]string{"env": "test"}, false, "rest", "rest")
	step(map[string]string{"env": "prod", "x": strings.Repeat("x", mostLabels)}, true, "rest", "rest")
	step(map[string]string{"env": "prod"}, true, "rest", "prod")
	c.namespaces.drop("shop") // then it is not known what decisions were made from
	step(map[string]string{"env": "prod"}, false, "prod", "prod")
	c.namespaces.drop("shop")
	if changed, err := c.Relabel(t.Context(), in("prod")); !changed || err != nil {
		t.Errorf("changed: %v, %v", changed, err)
	}
	delete(r.labels, in("prod"))
	step(nil, true, "prod", "rest")
	delete(r.labels, in("prod"))
	if changed, err := c.Relabel(t.Context(), in("prod")); changed || err != nil {
		t.Errorf("changed: %v, %v", changed, err)
	}
	c.applies(t, in("prod"), "")
	r.labels[in("prod")] = map[string]string{"env": "prod"}
	c.applies(t, in("prod"), "prod")
	c.options.Labels = func(context.Context, kcp.ClusterName, string) (map[string]string, bool, error) {
		return nil, false, errors.New("etcd does not answer")
	}
	if p, err := c.PlacementOf(t.Context(), in("other")); p != nil || err == nil {
		t.Errorf("Placement %v without labels, %v", p, err)
	}
	if _, err := c.Relabel(t.Context(), in("prod")); err == nil {
		t.Error("no error")
	}
	c.applies(t, in("prod"), "prod") // what was known stays
}

// No decision is made from labels that were read before a change which the loop has already seen, or does not see.
func TestNoChangeOfLabelsIsMissed(t *testing.T) {
	for name, meanwhile := range map[string]func(c *Cache){
		"the loop is quicker":                func(c *Cache) { _, _ = c.Relabel(context.Background(), in("prod")) },
		"all labels are dropped":             func(c *Cache) { c.namespaces.drop("shop") },
		"there are too many labels":          fill,
		"the loop, and then all are dropped": func(c *Cache) { _, _ = c.Relabel(context.Background(), in("prod")); c.namespaces.drop("shop") },
	} {
		for _, by := range []string{"a decision", "the loop"} {
			r := &registry{labels: map[kcp.Key]map[string]string{in("prod"): {"env": "test"}}}
			c := placed(t, r, selecting("prod", having("env", "prod")), selecting("rest", nil))
			r.before = func() {
				r.labels[in("prod")] = map[string]string{"env": "prod"}
				meanwhile(c)
			}
			if by == "the loop" && name == "the loop is quicker" {
				continue // there is one, which sees the change after this one
			}
			if by == "the loop" {
				if _, err := c.Relabel(t.Context(), in("prod")); err != nil {
					t.Error(err)
				}
			}
			if p, err := c.PlacementOf(t.Context(), in("prod")); err != nil || p == nil || p.Name != "prod" {
				t.Errorf("%s, %s: %v, %v", name, by, p, err)
			}
		}
	}
}

// fill makes a cache drop labels, because it has too many.
func fill(c *Cache) {
	large := namespace{labels: map[string]string{"x": strings.Repeat("x", mostLabels)}}
	for i := range mostKnown/mostLabels + 1 {
		_, _, drops := c.namespaces.get(in(""))
		c.namespaces.put(kcp.Key{Cluster: "huge", Namespace: fmt.Sprint(i)}, large, drops)
	}
}

// Labels take a bounded amount of memory, and what is kept is counted.
func TestLabelsAreBounded(t *testing.T) {
	c := placed(t, &registry{})
	fill(c)
	if c.namespaces.bytes > mostKnown || len(c.namespaces.of["huge"]) > mostKnown/mostLabels {
		t.Errorf("%d bytes", c.namespaces.bytes)
	}
	for cluster := range c.namespaces.of {
		c.namespaces.forget(kcp.Key{Cluster: cluster, Namespace: "0"})
		c.namespaces.drop(cluster)
	}
	if c.namespaces.bytes != 0 || len(c.namespaces.of) > 0 {
		t.Errorf("%d bytes of nothing", c.namespaces.bytes)
	}
}

// A Placement never applies if an older one selects all its namespaces, whatever labels they get.
func TestShadowing(t *testing.T) {
	prod := having("env", "prod")
	one := having(corev1.LabelMetadataName, "prod")
	for name, c := range map[string]struct {
		older, younger *metav1.LabelSelector
		shadows        bool
	}{
		"all":                       {nil, prod, true},
		"the same":                  {prod, having("env", "prod"), true},
		"one namespace, by name":    {without(corev1.LabelMetadataName, "other"), one, true},
		"another namespace":         {having(corev1.LabelMetadataName, "other"), one, false},
		"one namespace, by a label": {without("env", "prod"), one, false},
		"some of all":               {prod, nil, false},
		"other labels":              {prod, having("team", "a"), false},
	} {
		younger := selecting("younger", c.younger)
		cache := placed(t, &registry{}, selecting("older", c.older), younger)
		of := cache.Shadowing(cache.Placements.Get(kcp.Key{Cluster: "shop", Name: "younger"}))
		if (of != nil) != c.shadows {
			t.Errorf("%s: %v", name, of)
		}
	}
}
