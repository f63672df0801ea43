package endpoints

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
)

func set(dimensions []string, selector *topology.ShardSelector) *topology.PartitionSet {
	s := &topology.PartitionSet{}
	s.Name = "set"
	s.Spec.Dimensions, s.Spec.ShardSelector = dimensions, selector
	return s
}

// Every shard that has the labels of all dimensions is in one Partition, and other shards are in none.
func TestDivide(t *testing.T) {
	shards := []labels.Set{
		{"region": "eu", "tier": "A", "env": "prod"}, {"region": "eu", "tier": "b", "env": "prod"}, {"region": "us", "tier": "A", "env": "prod"},
		{"region": "eu", "tier": "A", "env": "prod"}, // the same labels
		{"region": "us", "env": "prod"},              // lacks a dimension
		{"region": "eu", "tier": "A", "env": "test"},
	}
	prod := &topology.ShardSelector{MatchLabels: map[string]topology.LabelValue{"env": "prod"}}
	all, err := divide(set([]string{"region", "tier"}, prod), shards)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d Partitions: %v, %v", len(all), all, err)
	}
	for i, shard := range shards {
		var in []string
		for name, s := range all {
			selector, err := metav1.LabelSelectorAsSelector(s)
			if err != nil {
				t.Fatal(err)
			}
			if selector.Matches(shard) {
				in = append(in, name)
			}
		}
		if want := map[bool]int{true: 1, false: 0}[i < 4]; len(in) != want {
			t.Errorf("shard %v is in %v", shard, in)
		}
	}
	if len(prod.MatchLabels) != 1 {
		t.Errorf("the selector of the set became %v", prod.MatchLabels)
	}

	for name, c := range map[string]struct {
		of   *topology.PartitionSet
		want int // -1 for an error
	}{
		"no dimensions":          {set(nil, prod), 1},
		"no selector":            {set([]string{"env"}, nil), 2},
		"a dimension twice":      {set([]string{"env", "env"}, nil), 2},
		"a dimension no one has": {set([]string{"zone"}, nil), 0},
		"a selected dimension":   {set([]string{"env"}, prod), 1},
		"no key of a label":      {set([]string{"a b"}, nil), -1},
		"a malformed selector":   {set(nil, &topology.ShardSelector{MatchExpressions: []topology.ShardRequirement{{Key: "env", Operator: "Near"}}}), -1},
	} {
		got, err := divide(c.of, shards)
		if (err != nil) != (c.want < 0) || err == nil && len(got) != c.want {
			t.Errorf("%s: %v, %v", name, slices.Collect(maps.Keys(got)), err)
		}
	}
}

// Names of Partitions are valid, differ if any value does, and are those of earlier versions of kcp.
func TestPartitionNames(t *testing.T) {
	seen := map[string][]string{}
	long := strings.Repeat("a.", 125) + "ab"
	for _, tuple := range [][]string{
		{"set"}, {"set", "", ""}, {"set", "", "a"}, {"set", "a", ""}, {"set", "a", "b-c"}, {"set", "a-b", "c"}, {"set", "a.b", "c"}, {"set", "a_b", "c"}, {"set", "A-b", "c"},
		{"set-a", "b-c"}, {long}, {long, "x"}, {long, "y"}, {long[:251]}, {"set", strings.Repeat("Z", 63)},
	} {
		name := partitionName(tuple[0], tuple[1:])
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
			t.Errorf("%q: %s: %v", tuple, name, wrong)
		}
		if before, twice := seen[name]; twice {
			t.Errorf("%q and %q are both %s", before, tuple, name)
		}
		seen[name] = tuple
	}
	if got := partitionName("set", []string{"EU", "a_b"}); got != "set-eu-a-b-4b3fcdb4" {
		t.Errorf("a set makes %s, and would delete what it made before", got)
	}
}

// A Partition belongs to the PartitionSet that controls it. Without a selector it selects all
// shards, with a malformed one none.
func TestPartitionOf(t *testing.T) {
	yes, no := true, false
	owner := metav1.OwnerReference{APIVersion: topology.GroupVersion.String(), Kind: "PartitionSet", Name: "set", UID: "u", Controller: &yes}
	with := func(change func(*metav1.OwnerReference)) []metav1.OwnerReference {
		o := owner
		change(&o)
		return []metav1.OwnerReference{o}
	}
	for name, c := range map[string]struct {
		owners []metav1.OwnerReference
		set    string
	}{
		"owned":             {[]metav1.OwnerReference{owner}, "set"},
		"no owner":          {nil, ""},
		"not controlled":    {with(func(o *metav1.OwnerReference) { o.Controller = &no }), ""},
		"controller unset":  {with(func(o *metav1.OwnerReference) { o.Controller = nil }), ""},
		"another kind":      {with(func(o *metav1.OwnerReference) { o.Kind = "Deployment" }), ""},
		"another group":     {with(func(o *metav1.OwnerReference) { o.APIVersion = "example.com/v1alpha1" }), ""},
		"besides of others": {append(with(func(o *metav1.OwnerReference) { o.Controller, o.Name = nil, "other" }), owner), "set"},
	} {
		p := &topology.Partition{}
		p.OwnerReferences = c.owners
		got, err := partitionOf(p)
		if err != nil || got.Set != c.set || (got.UID != "") != (c.set != "") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if !got.Selector.Matches(labels.Set{"a": "b"}) {
			t.Errorf("%s: a Partition without a selector selects nothing", name)
		}
	}
	p := &topology.Partition{}
	p.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	if got, err := partitionOf(p); err != nil || got.Selector != nil {
		t.Errorf("a malformed selector: %+v, %v", got, err)
	}
}

// Slices are alike if they have the same values, at whatever revision they got them.
func TestLike(t *testing.T) {
	s := Slice{Path: "root:a", Name: "e", Partition: "p", Own: "o", Cached: "c", Since: 5}
	later := s
	if later.Since = 9; !s.Like(&later) || s.Since != 5 || later.Since != 9 {
		t.Errorf("%+v is unlike %+v", s, later)
	}
	for _, change := range []func(*Slice){
		func(s *Slice) { s.Path = "" }, func(s *Slice) { s.Name = "" }, func(s *Slice) { s.Partition = "" }, func(s *Slice) { s.Own = "" }, func(s *Slice) { s.Cached = "" },
	} {
		other := s
		if change(&other); s.Like(&other) {
			t.Errorf("%+v is like %+v", s, other)
		}
	}
}
