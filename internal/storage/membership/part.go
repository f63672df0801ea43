package membership

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
)

// A Part selects some objects of a cluster. The zero value selects all.
type Part struct {
	text     string
	selector labels.Selector // nil for all
}

// NewPart returns the objects whose labels match a selector in the syntax of queries. An empty
// text selects all, and an invalid one none.
func NewPart(text string) Part {
	if text == "" {
		return Part{}
	}
	s, err := labels.Parse(text)
	if err != nil {
		klog.Background().Error(err, "Selector selects nothing", "selector", text)
		s = labels.Nothing()
	}
	return Part{text, s}
}

// Has reports whether an object with some labels is in the part.
func (p Part) Has(of labels.Set) bool { return p.selector == nil || p.selector.Matches(of) }

// String returns the selector, empty for all objects.
func (p Part) String() string { return p.text }

// Requirements returns the requirements of the selector.
func (p Part) Requirements() labels.Requirements {
	if p.selector == nil {
		return nil
	}
	all, selectable := p.selector.Requirements()
	if !selectable {
		never, _ := labels.NewRequirement("kcp.io/none", selection.In, []string{"none"}) // always valid
		return labels.Requirements{*never}
	}
	return all
}

// Equal reports whether two parts have the same selector.
func (p Part) Equal(other Part) bool { return p.text == other.text }
