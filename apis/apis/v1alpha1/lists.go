package v1alpha1

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A list converts one list of APIExports or APIBindings. Its entries are of type Old in
// v1alpha1 and of type New in v1alpha2. Some fields of an entry exist in both versions. The
// others are the details of one version. An entry is plain if it has the default details;
// then the other version can express it. v1alpha1 hides entries with certain details.
//
// In each version, an annotation keeps the entries of the other version that are not plain.
type list[Old, New any] struct {
	annotation    string // of v1alpha1, with entries of v1alpha2
	oldAnnotation string // of v1alpha2, with entries of v1alpha1; empty if Old has no details

	defaultOld Old // has the default details
	defaultNew New

	key func(New) key

	// upgrade sets the fields of New that both versions have.
	upgrade func(Old, *New)

	// downgrade sets the fields of Old that both versions have. It reports false if
	// v1alpha1 hides the entry.
	downgrade func(New, *Old) bool
}

// A key identifies an entry of a list.
type key struct {
	schema.GroupResource
	identityHash string
}

// toNew returns the list in v1alpha2. The metadata is that of the object and becomes that of
// the new object.
//
// A client of v1alpha1 that changes the list leaves the annotation as it is. So entries of
// the list win against the annotation, and an entry that is only in the annotation counts
// only if it is hidden: all others were removed by the client.
func (l list[Old, New]) toNew(entries []Old, m *metav1.ObjectMeta) []New {
	parked := l.parked(*m)
	details := map[key]New{}
	for _, p := range parked {
		if p != nil && !l.hides(*p) {
			details[l.key(*p)] = *p
		}
	}
	var out []New
	var unexpressed []Old
	keys := map[key]bool{}
	for _, o := range entries {
		n := l.new(o)
		if back, _ := l.old(n); !equality.Semantic.DeepEqual(back, o) {
			unexpressed = append(unexpressed, o)
		}
		if d, ok := details[l.key(n)]; ok {
			l.upgrade(o, &d)
			n = d
		}
		out = append(out, n)
		keys[l.key(n)] = true
	}
	delete(m.Annotations, l.annotation)
	park(m, l.oldAnnotation, unexpressed)
	return l.merge(out, parked, keys)
}

// merge inserts the hidden entries of parked between the shown ones, whose keys are given.
func (l list[Old, New]) merge(shown []New, parked []*New, keys map[key]bool) []New {
	var out []New
	for _, p := range parked {
		switch {
		case p == nil || !l.hides(*p): // the place of one that is shown
			if len(shown) > 0 {
				out, shown = append(out, shown[0]), shown[1:]
			}
		case !keys[l.key(*p)]:
			out = append(out, *p)
			keys[l.key(*p)] = true
		}
	}
	return append(out, shown...)
}

// toOld returns the list in v1alpha1. The metadata is that of the object and becomes that of
// the new object.
func (l list[Old, New]) toOld(entries []New, m *metav1.ObjectMeta) []Old {
	unexpressed, _ := read[Old](*m, l.oldAnnotation) // a malformed annotation has no details
	details := map[key]Old{}
	for _, o := range unexpressed {
		details[l.key(l.new(o))] = o
	}
	var out []Old
	var parked []*New
	end := 0 // of parked, without the nil at its end
	for _, n := range entries {
		if l.plain(n) {
			parked = append(parked, nil)
		} else {
			parked = append(parked, &n)
			end = len(parked)
		}
		o, shown := l.old(n)
		if !shown {
			continue
		}
		if d, ok := details[l.key(n)]; ok {
			l.downgrade(n, &d)
			o = d
		}
		out = append(out, o)
	}
	delete(m.Annotations, l.oldAnnotation)
	park(m, l.annotation, parked[:end])
	return out
}

// new returns o with the default details of v1alpha2.
func (l list[Old, New]) new(o Old) New {
	n := l.defaultNew
	l.upgrade(o, &n)
	return n
}

// old returns n with the default details of v1alpha1, and whether v1alpha1 shows it.
func (l list[Old, New]) old(n New) (Old, bool) {
	o := l.defaultOld
	shown := l.downgrade(n, &o)
	return o, shown
}

// hides reports whether v1alpha1 hides n.
func (l list[Old, New]) hides(n New) bool {
	_, shown := l.old(n)
	return !shown
}

// plain reports whether v1alpha1 can express n.
func (l list[Old, New]) plain(n New) bool {
	o, _ := l.old(n)
	return equality.Semantic.DeepEqual(l.new(o), n)
}

// parked returns the entries in the annotation of v1alpha1. A malformed one has none.
func (l list[Old, New]) parked(m metav1.ObjectMeta) []*New {
	parked, _ := read[*New](m, l.annotation)
	return parked
}

// read returns the entries in an annotation.
func read[T any](m metav1.ObjectMeta, annotation string) ([]T, error) {
	text, ok := m.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	var out []T
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("the annotation %s must be a JSON array: %w", annotation, err)
	}
	return out, nil
}

// park sets an annotation to entries, or removes it if there are none.
func park[T any](m *metav1.ObjectMeta, annotation string, entries []T) {
	if len(entries) == 0 {
		delete(m.Annotations, annotation)
		return
	}
	text, err := json.Marshal(entries)
	if err != nil {
		panic(err) // a bug: all entries can be encoded
	}
	metav1.SetMetaDataAnnotation(m, annotation, string(text))
}
