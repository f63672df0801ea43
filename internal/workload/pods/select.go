package pods

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	eventregistry "k8s.io/kubernetes/pkg/registry/core/event"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// A selection is which pods a request is for.
type selection struct {
	storage.SelectionPredicate
	push metav1.ListOptions // what the targets select
}

// selectorsOf returns the selectors of a request. Without options, they select everything.
func selectorsOf(o *internalversion.ListOptions) (labels.Selector, fields.Selector) {
	label, field := labels.Everything(), fields.Everything()
	if o != nil && o.LabelSelector != nil {
		label = o.LabelSelector
	}
	if o != nil && o.FieldSelector != nil {
		field = o.FieldSelector
	}
	return label, field
}

// selects parses the selectors of a request. The targets select by what means the same there. The
// predicate decides about the pods as the tenant sees them.
func selects(o *internalversion.ListOptions) selection {
	label, field := selectorsOf(o)
	s := selection{SelectionPredicate: podregistry.MatchPod(label, field)}
	there := labels.NewSelector()
	if all, selectable := label.Requirements(); selectable {
		for _, r := range all {
			if r.Key() != shown.LocationLabel {
				there = there.Add(r)
			}
		}
		s.push.LabelSelector = there.String()
	} else {
		s.push.LabelSelector = label.String()
	}
	var pushed []fields.Selector
	for _, r := range field.Requirements() {
		if r.Field == "status.phase" || r.Field == "spec.restartPolicy" || r.Field == "metadata.name" && !strings.Contains(r.Value, ".") {
			if one, err := fields.ParseSelector(r.Field + string(r.Operator) + fields.EscapeValue(r.Value)); err == nil {
				pushed = append(pushed, one)
			}
		}
	}
	s.push.FieldSelector = fields.AndSelectors(pushed...).String()
	return s
}

// selectsEvents parses the selectors of a request for events.
func selectsEvents(o *internalversion.ListOptions) selection {
	label, field := selectorsOf(o)
	s := selection{SelectionPredicate: eventregistry.Matcher(label, field)}
	var pushed []fields.Selector
	for _, r := range field.Requirements() {
		switch r.Field {
		case "involvedObject.name":
			if strings.Contains(r.Value, ".") {
				continue // perhaps a name that only the workspace has
			}
		case "involvedObject.kind", "involvedObject.fieldPath", "type", "reason", "source", "reportingComponent":
		default:
			continue
		}
		if one, err := fields.ParseSelector(r.Field + string(r.Operator) + fields.EscapeValue(r.Value)); err == nil {
			pushed = append(pushed, one)
		}
	}
	s.push.FieldSelector = fields.AndSelectors(pushed...).String()
	return s
}

// filter returns an object if it is selected.
func (s selection) filter(o runtime.Object) runtime.Object {
	if ok, err := s.Matches(o); err != nil || !ok {
		return nil
	}
	return o
}

// matchesLocation reports whether the requirements for the location hold.
func (s selection) matchesLocation(location string) bool {
	all, _ := s.Label.Requirements()
	for _, r := range all {
		if r.Key() == shown.LocationLabel && !r.Matches(locationOnly(location)) {
			return false
		}
	}
	return true
}

// locationOnly are labels with the location.
type locationOnly string

// Has implements [labels.Labels].
func (locationOnly) Has(label string) bool { return label == shown.LocationLabel }

// Get implements [labels.Labels].
func (l locationOnly) Get(label string) string {
	if label == shown.LocationLabel {
		return string(l)
	}
	return ""
}

// Lookup implements [labels.Labels].
func (l locationOnly) Lookup(label string) (string, bool) { return l.Get(label), l.Has(label) }
