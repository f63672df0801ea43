package v1alpha1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestLabelSelector(t *testing.T) {
	for name, c := range map[string]struct {
		selector *ShardSelector
		want     map[string]bool // by the labels of a shard
	}{
		"none":  {nil, map[string]bool{"": true, "region=eu": true}},
		"empty": {&ShardSelector{}, map[string]bool{"": true, "region=eu": true}},
		"both": {&ShardSelector{
			MatchLabels:      map[string]LabelValue{"region": "eu"},
			MatchExpressions: []ShardRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []LabelValue{"a", "b"}}},
		}, map[string]bool{"region=eu,tier=b": true, "region=eu,tier=c": false, "region=us,tier=a": false}},
	} {
		selector, err := metav1.LabelSelectorAsSelector(c.selector.LabelSelector())
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range c.want {
			set, err := labels.ConvertSelectorToLabelsMap(text)
			if err != nil {
				t.Fatal(err)
			}
			if got := selector.Matches(set); got != want {
				t.Errorf("%s: %q matches: %v", name, text, got)
			}
		}
	}
}
