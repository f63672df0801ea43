package usage

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// maxExports is the maximum number of exports in a record. Exports share an identity rarely.
const maxExports = 8

// A subject is a resource of an export in the cluster of a consumer.
type subject struct {
	consumer cluster.Name
	schema.GroupResource
	identity string // of the export
}

func subjectOf(c cluster.Name, r keys.Resource) subject {
	return subject{c, r.GroupResource(), r.Identity}
}

func (s subject) resource() keys.Resource { return keys.CustomResource(s.GroupResource, s.identity) }

// notes is where records are stored. They belong to the server rather than to the consumer, so
// that they outlive its cluster.
func notes() keys.Resource { return keys.Resource{Root: keys.System, Resource: "usage"} }

// mark is the key of the time up to which all records are complete.
func mark() keys.Key { return notes().Key(cluster.Admin, "", "until") }

// key returns where the record of a subject is stored. Neither an identity nor a resource has a
// dot.
func (s subject) key() keys.Key {
	return notes().Key(cluster.Admin, string(s.consumer), strings.Join([]string{s.identity, s.Resource, s.Group}, "."))
}

// parse is the inverse of key.
func parse(k keys.Key) (subject, bool) {
	parts := strings.SplitN(k.Name, ".", 3)
	if k.Namespace == "" || len(parts) != 3 {
		return subject{}, false
	}
	return subject{cluster.Name(k.Namespace), schema.GroupResource{Resource: parts[1], Group: parts[2]}, parts[0]}, true
}

// A sum is an amount multiplied by the time that it was there. It is exact.
type sum struct {
	Seconds int64 `json:"s,omitempty"`
	Millis  int64 `json:"ms,omitempty"` // less than 1000
}

// plus adds an amount that was there for some milliseconds.
func (s sum) plus(amount, millis int64) sum {
	rest := s.Millis + amount*(millis%1000)
	return sum{s.Seconds + amount*(millis/1000) + rest/1000, rest % 1000}
}

// A record has what was stored up to a time, and what is stored from then on: it is complete
// until the next change, also while no server runs. Times are milliseconds since 1970.
type record struct {
	Since      int64 `json:"since"` // when the consumer stored the first object
	At         int64 `json:"at"`    // up to which time the sums count
	Objects    int64 `json:"objects,omitempty"`
	Bytes      int64 `json:"bytes,omitempty"`
	ObjectTime sum   `json:"objectTime,omitzero"`
	ByteTime   sum   `json:"byteTime,omitzero"`
	// Ended is when the consumer no longer had the resource, 0 if it has.
	Ended int64 `json:"ended,omitempty"`
	// Path and Tenant are those of the cluster, which may be gone.
	Path   string       `json:"path,omitempty"`
	Tenant cluster.Name `json:"tenant,omitempty"`
	// Exports are the exports through which the consumer had the resource, the last one last.
	Exports []exports.Name `json:"exports,omitempty"`
}

// until returns the record as of a later time without changes. An earlier time, as after a
// correction of the clock, changes nothing: that time is counted already.
func (r record) until(at int64) record {
	if at > r.At {
		r.ObjectTime = r.ObjectTime.plus(r.Objects, at-r.At)
		r.ByteTime = r.ByteTime.plus(r.Bytes, at-r.At)
		r.At = at
	}
	return r
}

// changed returns the record after a change at a time.
func (r record) changed(at int64, to feed.Usage) record {
	r = r.until(at)
	r.Objects, r.Bytes = to.Objects, to.Bytes
	return r
}

// stores reports whether the record has these numbers as stored.
func (r record) stores(u feed.Usage) bool { return r.Objects == u.Objects && r.Bytes == u.Bytes }

// through returns the exports of the record with one at the end.
func (r record) through(e exports.Name) []exports.Name {
	all := slices.DeleteFunc(slices.Clone(r.Exports), func(have exports.Name) bool { return have == e })
	all = append(all, e)
	return all[max(0, len(all)-maxExports):]
}
