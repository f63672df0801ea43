package aggregate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/workload/profile"
)

// An Object is an object whose status follows the rules of its profile.
type Object struct {
	*profile.Profile
	Generation int64
	// Status is the present one.
	Status map[string]any
	// NotScheduled is the reason why targets do not have all of the object, with its
	// explanation. It is empty if they have.
	NotScheduled, Message string
}

// A Part is what a target reports about its part of an object.
type Part struct {
	// Location of the target, for messages.
	Location string
	// Generation of the object that is applied at the target.
	Generation int64
	// Current is true if the part is applied as it is assigned, and the controllers of the
	// target have seen it.
	Current bool
	// Leaving is true if the target gives its part away.
	Leaving bool
	// Reason and Message say why the part is not applied.
	Reason, Message string
	// Missing are objects that the target lacks.
	Missing []string
	// Status is that of the object at the target.
	Status map[string]any
}

// Placed is the condition that says why an object is not at its targets as it should be. It is there
// only while that is so.
const Placed = "Placed"

// MissingDependency is its reason if the targets lack something that the object refers to.
const MissingDependency = "MissingDependency"

// Merge returns the status of an object. The generation that the targets observed is that of the
// object only if every target applied it.
func Merge(o Object, parts []Part, now time.Time) map[string]any {
	s := map[string]any{}
	switch {
	case len(o.Counters) > 0:
		sum(s, o, parts)
	case len(o.Addresses) > 0:
		join(s, o, parts)
	default:
		mirror(s, o, parts)
	}
	observed(s, o, parts)
	if o.Conditions {
		setConditions(s, o, parts, now)
	}
	return s
}

// sum adds up the counters. Counters of up-to-date objects count only in parts of the present generation.
func sum(s map[string]any, o Object, parts []Part) {
	for _, field := range o.Counters {
		total, found := int64(0), false
		for _, p := range parts {
			n, ok := number(p.Status[field])
			found = found || ok
			if ok && (!strings.HasPrefix(field, "updated") || p.Current && p.Generation == o.Generation) {
				total += count(n)
			}
		}
		if old, had := o.Status[field]; found || had && old != nil {
			s[field] = total
		}
	}
}

func number(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case float64:
		return int64(n), true
	}
	return 0, false
}

// join collects the addresses of all targets.
func join(s map[string]any, o Object, parts []Part) {
	seen, all := map[string]bool{}, []any{}
	for _, p := range parts {
		list, _, err := unstructured.NestedSlice(p.Status, o.Addresses...)
		if err != nil {
			continue
		}
		for _, a := range list {
			text, err := json.Marshal(a)
			if err == nil && !seen[string(text)] {
				seen[string(text)] = true
				all = append(all, a)
			}
		}
	}
	slices.SortFunc(all, func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	at := s
	for _, field := range o.Addresses[:len(o.Addresses)-1] {
		next := map[string]any{}
		at[field], at = next, next
	}
	if len(all) > 0 {
		at[o.Addresses[len(o.Addresses)-1]] = all
	}
}

// mirror copies the status of the one target. Without one, counts are zero, except of an object that
// has come to its end.
func mirror(s map[string]any, o Object, parts []Part) {
	i := slices.IndexFunc(parts, func(p Part) bool { return !p.Leaving })
	if i < 0 && len(parts) > 0 {
		i = 0
	}
	if i >= 0 && parts[i].Status != nil {
		for field, value := range runtime.DeepCopyJSON(parts[i].Status) {
			s[field] = value
		}
		if o.Finishes {
			resume(s, o.Status)
		}
		return
	}
	for field, value := range o.Status {
		if _, ok := number(value); ok && !o.Finishes {
			value = int64(0)
		}
		s[field] = value
	}
}

// resume makes the status of a Job that began anew continue the old one: a Job starts once, and what
// has ended stays so.
func resume(s, old map[string]any) {
	if at, ok := old["startTime"]; ok && at != nil {
		s["startTime"] = at
	}
	for _, field := range []string{"succeeded", "failed"} {
		before, _ := number(old[field])
		if now, ok := number(s[field]); before > 0 && (!ok || now < before) {
			s[field] = before
		}
	}
	delete(s, "uncountedTerminatedPods")
}

// observed sets the observed generation: only if every target applied it.
func observed(s map[string]any, o Object, parts []Part) {
	_, has := s["observedGeneration"]
	if !has && !o.Observes {
		return
	}
	delete(s, "observedGeneration")
	if before, ok := number(o.Status["observedGeneration"]); ok {
		s["observedGeneration"] = before
	}
	counted := 0
	for _, p := range parts {
		if p.Leaving {
			continue
		}
		if counted++; !p.Current || p.Generation != o.Generation {
			return
		}
	}
	if counted > 0 {
		s["observedGeneration"] = o.Generation
	}
}

// setConditions adds the condition Placed, if it is not true.
func setConditions(s map[string]any, o Object, parts []Part, now time.Time) {
	all, _, err := unstructured.NestedSlice(s, "conditions")
	if err != nil {
		all = nil
	}
	all = slices.DeleteFunc(all, func(c any) bool { return typeOf(c) == Placed })
	reason, message := trouble(o, parts)
	if reason != "" {
		next := map[string]any{"type": Placed, "status": string(metav1.ConditionFalse), "reason": reason, "message": message,
			"lastTransitionTime": now.UTC().Format(time.RFC3339)}
		before, _, _ := unstructured.NestedSlice(o.Status, "conditions")
		for _, c := range before {
			if old, ok := c.(map[string]any); ok && typeOf(c) == Placed && old["lastTransitionTime"] != nil {
				next["lastTransitionTime"] = old["lastTransitionTime"]
			}
		}
		all = append(all, next)
	}
	if delete(s, "conditions"); len(all) > 0 {
		s["conditions"] = all
	}
}

func typeOf(condition any) string {
	m, _ := condition.(map[string]any)
	text, _ := m["type"].(string)
	return text
}

// trouble returns why an object is not at its targets as it should be.
func trouble(o Object, parts []Part) (reason, message string) {
	if o.NotScheduled != "" {
		return o.NotScheduled, cmp.Or(o.Message, o.NotScheduled)
	}
	for _, p := range parts {
		if p.Reason != "" && !p.Leaving {
			return p.Reason, fmt.Sprintf("Location %q: %s", p.Location, cmp.Or(p.Message, p.Reason))
		}
	}
	for _, p := range parts {
		if len(p.Missing) > 0 && !p.Leaving {
			return MissingDependency, missingText(p.Location, p.Missing)
		}
	}
	return "", ""
}

func missingText(location string, missing []string) string {
	text := fmt.Sprintf("Location %q: %s", location, strings.Join(missing, "; "))
	return limited(text)
}

// limited returns the beginning of a text from a target.
func limited(text string) string {
	if len(text) > 1024 {
		text = strings.ToValidUTF8(text[:1024], "")
	}
	return text
}
