package faults

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A mark identifies a write. Every object that the test writes contains one.
type mark struct {
	object string
	write  int // counts the writes of the object from 1
}

func (m mark) String() string { return fmt.Sprintf("fault:%s:%d:", m.object, m.write) }

// markIn returns the mark in a value of etcd, or the zero mark.
func markIn(value []byte) mark {
	found := regexp.MustCompile(`fault:([a-z0-9-]+):([0-9]+):`).FindSubmatch(value)
	if found == nil {
		return mark{}
	}
	n, _ := strconv.Atoi(string(found[2])) // digits
	return mark{string(found[1]), n}
}

// An event is one change of a key in etcd.
type event struct {
	key       string
	rev       int64
	gone      bool // the key was deleted
	mark      mark
	before    mark  // of the value that it replaced
	beforeRev int64 // 0 if there was none
}

// An op is one write request of the load.
type op struct {
	mark
	verb   string // create, update or delete; a delete has no write
	code   int    // status of the answer, 0 if there was none
	rev    int64  // resource version in the answer
	base   int64  // resource version on which the update was conditional, or 0
	doomed bool   // the namespace or workspace of the object is deleted at some time
}

func (o op) acknowledged() bool { return o.code >= 200 && o.code < 300 }
func (o op) refused() bool      { return o.code >= 400 && o.code < 500 }
func (o op) unknown() bool      { return !o.acknowledged() && !o.refused() }

func (o op) String() string { return fmt.Sprintf("%s of %s (answer %d)", o.verb, o.mark, o.code) }

// checkWrites compares requests with the history of etcd. The history must have every
// acknowledged write, at the revision of the answer, and no refused write.
func checkWrites(ops []op, events []event) (wrong []string) {
	puts := map[mark]event{}
	for _, e := range events {
		if e.gone || e.mark == (mark{}) {
			continue
		}
		if first, twice := puts[e.mark]; twice {
			wrong = append(wrong, fmt.Sprintf("%s is in etcd at revisions %d and %d", e.mark, first.rev, e.rev))
		}
		puts[e.mark] = e
	}
	for _, o := range ops {
		if o.verb == "delete" {
			continue
		}
		e, found := puts[o.mark]
		switch {
		case o.acknowledged() && !found:
			wrong = append(wrong, fmt.Sprintf("%s is lost", o))
		case o.acknowledged() && e.rev != o.rev:
			wrong = append(wrong, fmt.Sprintf("%s has revision %d in its answer and %d in etcd", o, o.rev, e.rev))
		case o.acknowledged() && o.base != 0 && e.beforeRev != o.base:
			wrong = append(wrong, fmt.Sprintf("%s names revision %d and replaced %d", o, o.base, e.beforeRev))
		case o.refused() && found:
			wrong = append(wrong, fmt.Sprintf("%s is in etcd at revision %d", o, e.rev))
		}
	}
	return wrong
}

// checkObjects compares the last state of objects with their requests, which must be in the
// order in which they were sent. Only the load deletes these objects.
func checkObjects(ops []op, events []event) (wrong []string) {
	last, deletions := map[string]event{}, map[string]int{}
	for _, e := range events {
		if e.gone {
			deletions[e.before.object]++
			e.mark.object = e.before.object
		}
		last[e.mark.object] = e
	}
	of := map[string][]op{}
	for _, o := range ops {
		if !o.doomed {
			of[o.object] = append(of[o.object], o)
		}
	}
	for object, ops := range of {
		if is := checkObject(ops, last[object], deletions[object]); is != "" {
			wrong = append(wrong, object+": "+is)
		}
	}
	slices.Sort(wrong)
	return wrong
}

// checkObject returns an error about the last event or the number of deletions.
func checkObject(ops []op, last event, deletions int) string {
	var allowed []int // writes that can be the last one
	tried, deleted, created := 0, false, false
	for _, o := range ops {
		switch {
		case o.verb == "delete" && !o.refused():
			tried++
			deleted = deleted || o.acknowledged()
		case o.refused() && created && tried == 0 && (o.code == 403 || o.code == 404):
			return fmt.Sprintf("%s, although the object is there", o)
		case o.verb == "delete":
		case o.acknowledged():
			created = true
			allowed = slices.DeleteFunc(allowed, func(w int) bool {
				return slices.ContainsFunc(ops, func(o op) bool { return o.write == w && o.acknowledged() })
			})
			allowed = append(allowed, o.write)
		case o.unknown():
			allowed = append(allowed, o.write)
		}
	}
	gone := last.gone || last.rev == 0
	switch {
	case deletions > tried:
		return fmt.Sprintf("%d deletions in etcd, %d requested", deletions, tried)
	case deleted && !gone:
		return fmt.Sprintf("deleted, but in etcd at revision %d", last.rev)
	case created && tried == 0 && gone:
		return "not in etcd any more"
	case !gone && !slices.Contains(allowed, last.mark.write):
		return fmt.Sprintf("write %d is the last in etcd, want one of %v", last.mark.write, allowed)
	}
	return ""
}

// A place is a logical cluster, or a namespace in one.
type place struct{ cluster, namespace string }

// placeOf returns the place of the object at a key. A namespace is in itself.
func placeOf(key string) place {
	// /<prefix>/<root>/<group>/<resource>/<identity>/<cluster>/[<namespace>/]<name>
	s := strings.Split(key, "/")
	switch {
	case len(s) == 9:
		return place{s[6], s[7]}
	case len(s) == 8 && s[4] == "namespaces":
		return place{s[6], s[7]}
	case len(s) == 8:
		return place{s[6], ""}
	}
	return place{}
}

// checkOrphans returns the remaining keys in deleted logical clusters and namespaces.
func checkOrphans(events []event, stay map[string]bool, deleted map[place]bool) (orphans []string) {
	live := map[string]bool{}
	for _, e := range events {
		live[e.key] = !e.gone
	}
	for key, is := range live {
		at := placeOf(key)
		if is && at != (place{}) && (!stay[at.cluster] || deleted[at]) {
			orphans = append(orphans, key)
		}
	}
	slices.Sort(orphans)
	return orphans
}

// A probe is one request of a user whose right is revoked.
type probe struct {
	user, server string
	began        time.Time
	code         int
}

// revokedWithin is the time for which a revoked right may be used, as docs/adr/008 promises.
const revokedWithin = 100 * time.Millisecond

// checkRevoked returns the requests that were allowed although they began too long after
// the revoke was acknowledged.
func checkRevoked(probes []probe, acknowledged map[string]time.Time) (wrong []string) {
	for _, p := range probes {
		at, revoked := acknowledged[p.user]
		if late := p.began.Sub(at); revoked && late > revokedWithin && p.code >= 200 && p.code < 300 {
			wrong = append(wrong, fmt.Sprintf("%s allowed a request of %s that began %v after the revoke", p.server, p.user, late))
		}
	}
	return wrong
}

// A takeover is the time from a fault of the process that runs the loops until another
// one had finished a deletion.
type takeover struct {
	fault string
	took  time.Duration
}

// takenOverWithin is the maximum time of a takeover, as docs/operating.md promises.
const takenOverWithin = 5 * time.Second

func checkTakeovers(all []takeover) (wrong []string) {
	for _, t := range all {
		if t.took > takenOverWithin {
			wrong = append(wrong, fmt.Sprintf("%s: the loops were taken over after %v", t.fault, t.took))
		}
	}
	return wrong
}
