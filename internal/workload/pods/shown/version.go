package shown

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Versions are a resource version that clients get: the resource version of each target, by the first
// characters of its key. Every target has revisions of its own, and a watch goes on at each of them.
type Versions map[string]uint64

// StoredKey stands in [Versions] for the objects that are stored in the workspace. No key of a target
// has capital letters.
const StoredKey = "STORED"

// Stored returns the version of the stored objects, empty if it is not known.
func (v Versions) Stored() string {
	if n, ok := v[StoredKey]; ok {
		return strconv.FormatUint(n, 10)
	}
	return ""
}

// nowhere is the resource version of a list for which no target was asked.
const nowhere = "1"

// Add adds what a list or an event of a target says. Of several parts of one target the oldest
// counts, so that nothing is missed. One that is no number is ignored: a watch then begins anew.
func (v Versions) Add(key, version string) {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil || n == 0 {
		return
	}
	k := key[:suffix]
	if have, ok := v[k]; !ok || n < have {
		v[k] = n
	}
}

// At returns the version of the target with a key. ok is false if v does not have it.
func (v Versions) At(key string) (at uint64, ok bool) {
	at, ok = v[key[:suffix]]
	return at, ok
}

// Version returns the resource version of a single pod.
func (o *Origin) Version(at string) string {
	v := Versions{}
	v.Add(o.Key, at)
	return v.String()
}

// String returns the form that clients get.
func (v Versions) String() string {
	if len(v) == 0 {
		return nowhere
	}
	var all []string
	for _, k := range slices.Sorted(maps.Keys(v)) {
		all = append(all, k+"-"+strconv.FormatUint(v[k], 10))
	}
	return strings.Join(all, ".")
}

// mostVersions is the maximum of targets in a resource version.
const mostVersions = 400

// ParseVersions parses the form that clients get. Empty, "0" and "1" name no target.
func ParseVersions(text string) (Versions, error) {
	v := Versions{}
	if text == "" || text == "0" || text == nowhere {
		return v, nil
	}
	all := strings.SplitN(text, ".", mostVersions+1)
	for _, one := range all {
		key, number, ok := strings.Cut(one, "-")
		n, err := strconv.ParseUint(number, 10, 64)
		if !ok || len(key) != suffix || err != nil || n == 0 || len(all) > mostVersions {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resourceVersion %.100q: it is not one of pods", text))
		}
		v[key] = n
	}
	return v, nil
}

// ParseEventVersions parses a version of events: one of all, or one of those that are stored.
func ParseEventVersions(text string) (Versions, error) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		if n == 0 {
			return Versions{}, nil
		}
		return Versions{StoredKey: n}, nil
	}
	return ParseVersions(text)
}
